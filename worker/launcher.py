"""Run by the tests' python: become pytest, with `sys.path` and `sys.argv` as they are on the client."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> int:
    control = json.loads(Path(os.environ["PYTEST_RUNPOD_CONTROL"]).read_text(encoding="ascii"))
    scripts = str(Path(sys.executable).parent)
    sys.path[0:1] = control["python_path"] or [scripts]
    sys.argv = [str(Path(scripts) / "pytest"), *control["args"]]
    import pytest

    return int(pytest.main())


if __name__ == "__main__":
    sys.exit(main())
