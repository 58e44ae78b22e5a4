"""Run by the tests' python in the project's folder: what its build backend needs for an editable install. One JSON line out.

python build_needs.py BACKEND [BACKEND_PATH ...]
"""

from __future__ import annotations

import importlib
import json
import sys


def main(backend: str, *paths: str) -> list[str]:
    """Ask the backend's own hook (PEP 660); none if it has none."""
    sys.path[0:0] = paths
    module, _, attribute = backend.partition(":")
    found = importlib.import_module(module)
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    hook = getattr(found, "get_requires_for_build_editable", None)
    return list(hook({})) if hook is not None else []


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
