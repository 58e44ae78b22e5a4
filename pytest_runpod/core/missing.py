"""Which files that stayed here a failure speaks of. Values only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

SPEAKS_OF_A_FILE: Final = re.compile(
    r"No such file|FileNotFound|Errno 2\b|not exist|not found|NotFound|[Cc]annot (?:open|find|read)|[Mm]issing|No module named"
)
NO_MODULE: Final = re.compile(r"No module named '([\w.]+)'")
EXTENSIONS: Final = (".so", ".pyd")
MOST_NAMED: Final = 5


def files_missed(text: str, stayed: Iterable[str]) -> tuple[str, ...]:
    """Find the files that were not sent, and that the failure *text* misses by path, by name or as a module.

    Args:
        text: the failure as pytest prints it. stayed: POSIX paths, relative to the root, of files that exist here only.

    >>> files_missed("FileNotFoundError: No such file or directory: '/w/tests/a.csv'", ["tests/a.csv", "tests/b.csv"])
    ('tests/a.csv',)
    """
    if not SPEAKS_OF_A_FILE.search(text):
        return ()
    modules = {name.replace(".", "/") for name in NO_MODULE.findall(text)}
    by_path, by_name = [], []
    for path in stayed:
        name = path.rsplit("/", 1)[-1]
        if name not in text and not path.endswith(EXTENSIONS):
            continue
        if _names(text, path) or _is_module(path, modules):
            by_path.append(path)
        elif len(name) > 2 and _names(text, name):
            by_name.append(path)
    return tuple((by_path or by_name)[:MOST_NAMED])


def _names(text: str, path: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(path)}(?![\w-]|\.\w)", text) is not None


def _is_module(path: str, modules: set[str]) -> bool:
    """Whether *path* is the compiled file of one of *modules*: `a/b.cpython-311-x86_64-linux-gnu.so` is of `a/b`."""
    if not path.endswith(EXTENSIONS):
        return False
    folder, _, name = path.rpartition("/")
    module = f"{folder}/{name.split('.')[0]}".lstrip("/")
    return any(module == wanted or module.endswith(f"/{wanted}") for wanted in modules)
