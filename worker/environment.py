"""The tests' environment: the image's packages visible, tooling at the client's versions, torch as the image has it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import processes

LONGEST_WORDS = 1400  # of what a failed step said; its log has the rest
IMAGE_VARIABLES = ("LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
IMAGE_PREFIXES = ("CUDA_", "NVIDIA_", "NV_")
INSTALL_PREFIXES = ("PIP_", "UV_", "SSL_")


def last_lines(text: str, longest: int) -> str:
    """The end of *text* in whole lines without blank ones, at most *longest* characters."""
    kept: list[str] = []
    for line in reversed([line.rstrip() for line in text.splitlines() if line.strip()]):
        longest -= len(line) + 1
        if longest < 0:
            break
        kept.insert(0, line)
    return "\n".join(kept)


class StepFailed(Exception):
    """A step that the rest depends on: its name, its exit status, and the end of what it said."""

    def __init__(self, step: str, exit_status: int | None, words: str) -> None:
        words = last_lines(words, LONGEST_WORDS) or "no output"
        super().__init__(f"{step}: {words}" if exit_status is not None else f"{step}: ended at the deadline: {words}")
        self.step, self.exit_status = step, exit_status


@dataclass
class Places:
    """Folders of one job on this worker."""

    base: Path
    root_name: str
    home: Path = field(init=False)
    root: Path = field(init=False)
    venv: Path = field(init=False)
    out: Path = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.base / "home"
        self.root = self.base / "checkout" / self.root_name
        self.venv = self.base / "venv"
        self.out = self.base / "out"

    @property
    def image_folders(self) -> list[str]:
        """Folders of packages that the image brings."""
        return [folder for folder in os.environ["PYTEST_RUNPOD_IMAGE_PATHS"].split(os.pathsep) if folder]

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    def log(self, step: str) -> Path:
        return self.out / "logs" / f"{step}.txt"


def tests_env(places: Places, session: Mapping[str, Any], passed: Mapping[str, str], device: str) -> dict[str, str]:
    """What tests, notebooks and commands see. Nothing of the platform's secrets, webhooks or keys is in it."""
    env = {
        name: value for name, value in os.environ.items() if name in IMAGE_VARIABLES or name.startswith(IMAGE_PREFIXES)
    }
    chosen = {**session["display_env"], **passed}
    env.update({str(name): str(value) for name, value in chosen.items() if not name.startswith("RUNPOD_")})
    env.update(
        PATH=f"{places.venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        VIRTUAL_ENV=str(places.venv),
        HOME=str(places.home),
        PYTEST_RUNPOD_WORKER="1",
        PYTEST_RUNPOD_DEVICE=device,
        PYTEST_RUNPOD_ARTIFACTS=str(places.out / "artifacts"),
    )
    return env


def install_env(places: Places) -> dict[str, str]:
    """What installers see: the index settings of the image, a private HOME, nothing of the platform."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name in IMAGE_VARIABLES or name.startswith(INSTALL_PREFIXES)
    }
    env.update(PATH=f"{places.venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}", HOME=str(places.home))
    return env


def uv_program() -> str | None:
    """The image's uv, or the one that the bootstrap has brought."""
    brought = Path.home() / ".pytest-runpod" / "uv" / "bin" / "uv"
    return shutil.which("uv") or (str(brought) if brought.is_file() else None)


class TestEnvironment:
    """Makes the environment, step by step; each install is watched for what it does to torch."""

    __test__ = False  # a name that pytest would collect

    def __init__(
        self, places: Places, session: Mapping[str, Any], requirements: list[str], left_s: Callable[[], float]
    ) -> None:
        self.places, self.session, self.requirements, self.left_s = places, session, requirements, left_s
        self.env = install_env(places)
        self.found: dict[str, Any] = {}
        self.installed: list[str] = []

    async def make(self) -> None:
        """Raises: StepFailed: an install failed, or changed torch."""
        await self._create()
        self.found = await self._probe()
        missing = list(self.found["unsatisfied"])
        if missing:
            await self._watched("packages", self._pip_install(missing))
        project = self.session["project"]
        if project is not None:
            self._hand_the_version_over(str(project["version"]))
            await self._bring_build_needs(project)
            await self._watched("project", self._install_project(project))
        self.found = await self._probe() if self.installed or project is not None else self.found
        self._insist_on_versions()
        self._register_kernel()

    def _insist_on_versions(self) -> None:
        """Ids, reports and outcomes depend on the versions of pytest and its plugins. Raises: StepFailed: one differs."""
        differ = [line for line in self.found["unsatisfied"] if line in self._pins()]
        if differ:
            raise StepFailed("environment", 0, f"not the versions of the client, which are {', '.join(differ)}")

    def _pins(self) -> list[str]:
        return [f"{name}=={version}" for name, version in self.session["tooling"].items()]

    async def _create(self) -> None:
        image_python = os.environ["PYTEST_RUNPOD_IMAGE_PYTHON"]
        self.places.home.mkdir(parents=True, exist_ok=True)
        await self._step("venv", [image_python, "-m", "venv", "--without-pip", str(self.places.venv)])
        (site,) = self.places.venv.glob("lib/python*/site-packages")
        # Last in the alphabet, so that what is installed here comes before what the image has.
        (site / "zzz_image.pth").write_text("\n".join(self.places.image_folders) + "\n", encoding="utf-8")
        shutil.copytree(Path(__file__).parent / "inside", site / "pytest_runpod_inside")

    async def _probe(self) -> dict[str, Any]:
        project = self.session["project"]
        builds = [str(line) for line in project["build_requires"]] if project is not None else []
        wanted = {"pins": self._pins(), "requirements": [*self.requirements, *builds]}
        log = self.places.log("probe")
        log.unlink(missing_ok=True)
        probe = Path(__file__).parent / "probe.py"
        command = [str(self.places.python), str(probe)]
        done = await processes.run(
            command,
            log=log,
            env=self.env,
            cwd=self.places.base,
            limit_s=self.left_s(),
            stdin=json.dumps(wanted).encode(),
        )
        if done.exit != 0:
            raise StepFailed("probe", done.exit, done.output)
        result: dict[str, Any] = json.loads(done.output.splitlines()[-1])
        return result

    async def _bring_build_needs(self, project: Mapping[str, Any]) -> None:
        """Without build isolation nobody else installs what the backend asks for beyond `build-system.requires`."""
        script = Path(__file__).parent / "build_needs.py"
        command = [str(self.places.python), str(script), str(project["backend"]), *map(str, project["backend_path"])]
        log = self.places.log("build_needs")
        done = await processes.run(command, log=log, env=self.env, cwd=self.places.root, limit_s=self.left_s())
        if done.exit != 0:
            raise StepFailed("build_needs", done.exit, done.output)
        needs = json.loads(done.output.splitlines()[-1])
        if needs:
            self.requirements = [*self.requirements, *needs]
            self.found = await self._probe()
            missing = list(self.found["unsatisfied"])
            if missing:
                await self._watched("build_needs", self._pip_install(missing))

    def _register_kernel(self) -> None:
        """Notebooks ask for `python3`: an image may have one of its own, which would not see the project."""
        if self.found["ipykernel"]:
            folder = self.places.venv / "share" / "jupyter" / "kernels" / "python3"
            folder.mkdir(parents=True, exist_ok=True)
            words = [str(self.places.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            spec = {"argv": words, "display_name": "Python 3 (ipykernel)", "language": "python"}
            (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")

    def _pip_install(self, missing: list[str]) -> list[str]:
        constraints = self.places.base / "constraints.txt"
        torch = self.found["torch"]
        constraints.write_text(f"torch=={torch['version']}\n" if torch else "", encoding="utf-8")
        self.installed += missing
        options = ["-c", str(constraints), *missing]
        if not self.found["pip"] and (uv := uv_program()):
            return [uv, "pip", "install", "--python", str(self.places.python), "--no-config", *options]
        return [str(self.places.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *options]

    def _hand_the_version_over(self, version: str) -> None:
        """A version that comes from version control cannot be found here; backends ask for it at each step."""
        self.env.update(
            SETUPTOOLS_SCM_PRETEND_VERSION=version,
            PDM_BUILD_SCM_VERSION=version,
            POETRY_DYNAMIC_VERSIONING_BYPASS=version,
        )

    def _install_project(self, project: Mapping[str, Any]) -> list[str]:
        options = ["--no-deps", "--no-build-isolation", "--editable", str(self.places.root)]
        if uv := uv_program():
            return [uv, "pip", "install", "--python", str(self.places.python), "--no-config", *options]
        return [str(self.places.python), "-m", "pip", "install", *options]

    async def _watched(self, step: str, command: list[str]) -> None:
        before = self.found["torch"]
        await self._step(step, command)
        after = (await self._probe())["torch"]
        if before is not None and before != after:
            raise StepFailed(step, 0, f"it changed the image's torch: {before} became {after}")

    async def _step(self, step: str, command: list[str]) -> None:
        log = self.places.log(step)
        done = await processes.run(command, log=log, env=self.env, cwd=self.places.base, limit_s=self.left_s())
        if done.exit != 0:
            raise StepFailed(step, done.exit, done.output)
