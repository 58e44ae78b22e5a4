"""Run by the tests' python: what is installed, what of the wanted is not, which torch it sees. One JSON line out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys


def satisfied(line: str) -> bool:
    """Whether the requirement *line* is met here; when in doubt it is not, and the installer decides."""
    name, separator, version = line.partition("==")
    if separator and not set(version) & set(";,*<>! "):
        return installed(name) == version
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return False
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return False
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    found = installed(requirement.name)
    return found is not None and requirement.url is None and requirement.specifier.contains(found, prereleases=True)


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_identity() -> dict[str, str] | None:
    version = installed("torch")
    if version is None:
        return None
    spec = importlib.util.find_spec("torch")
    return {"version": version, "location": str(spec.origin if spec else "")}


def main() -> None:
    wanted = json.load(sys.stdin)
    answer = {
        "unsatisfied": [line for line in [*wanted["pins"], *wanted["requirements"]] if not satisfied(line)],
        "torch": torch_identity(),
        "pip": importlib.util.find_spec("pip") is not None,
        "ipykernel": installed("ipykernel") is not None,
        "python": platform.python_version(),
        "pytest11": sorted({point.name for point in importlib.metadata.entry_points(group="pytest11")}),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
