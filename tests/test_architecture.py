"""What a reader may rely on: the twins are equal, the floors hold, the entry module is light."""

import ast
import doctest
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

from pytest_runpod.core import limits
from pytest_runpod.core.wire import endpoint_env
from pytest_runpod.store.worker_files import worker_files

ROOT = Path(__file__).parent.parent


def test_the_unpacker_is_the_same_on_both_sides():
    ours = (ROOT / "pytest_runpod/core/unpack.py").read_bytes()
    assert ours == (ROOT / "worker/unpack.py").read_bytes()


def test_the_limits_are_the_same_on_both_sides():
    spec = importlib.util.spec_from_file_location("worker_limits", ROOT / "worker/limits.py")
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    shared = {name for name in vars(theirs) if name.isupper()}
    assert shared
    assert {name: getattr(limits, name) for name in shared} == {name: getattr(theirs, name) for name in shared}


def test_the_worker_fits_into_the_environment_of_an_endpoint():
    env = endpoint_env(worker_files(), "a" * 64, "cuda")
    assert sum(len(name) + len(value) for name, value in env.items()) < limits.MAX_ENV


def test_the_worker_and_the_package_never_import_each_other():
    for path in (ROOT / "worker").rglob("*.py"):
        assert "pytest_runpod" not in _imported(path), path
    worker_modules = {path.stem for path in (ROOT / "worker").glob("*.py")} - {"limits", "unpack", "results"}
    for path in (ROOT / "pytest_runpod").rglob("*.py"):
        assert not _imported(path) & worker_modules, path


def test_an_unused_plugin_loads_nothing_of_ours_but_its_entry_module(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it():\n    ours = sorted(m for m in sys.modules if m.startswith('pytest_runpod'))\n"
        "    assert ours == ['pytest_runpod', 'pytest_runpod.plugin']\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout


def test_the_examples_in_docstrings_hold():
    tried = 0
    for path in sorted((ROOT / "pytest_runpod").rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            outcome = doctest.testmod(importlib.import_module(name))
            assert outcome.failed == 0, name
            tried += outcome.attempted
    assert tried > 10


def test_no_file_is_longer_than_a_reader_can_hold():
    long = [
        path for folder in ("pytest_runpod", "worker") for path in (ROOT / folder).rglob("*.py") if _lines(path) > 520
    ]
    assert long == []


def _imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())
