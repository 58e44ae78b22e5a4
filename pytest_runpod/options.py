"""Turn strings from the command line, the environment and the ini file into one frozen value, or name every problem at once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_runpod.core.budget import Caps
from pytest_runpod.core.limits import (
    GPU_TYPE,
    IMAGE,
    JOB_TTL_S,
    PYTEST_RESTARTS,
    QUEUE_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    STAGE_BUDGET,
    TOTAL_BUDGET,
    WORKERS_MAX,
)
from pytest_runpod.core.money import MicroUsd, parse_usd
from pytest_runpod.core.secret import Secret
from pytest_runpod.errors import SettingsRefused

ENV_PREFIX: Final = "PYTEST_RUNPOD_"
KEY_VARIABLE: Final = "RUNPOD_API_KEY"
TIMEOUT_VARIABLE: Final = f"{ENV_PREFIX}REQUEST_TIMEOUT"
URL_VARIABLES: Final = ("PYTEST_RUNPOD_MANAGEMENT_URL", "PYTEST_RUNPOD_JOBS_URL")
TRUE: Final = frozenset({"1", "true", "yes", "on"})
FALSE: Final = frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that a user decided about a run. Paths are absolute; None where wiring chooses a default."""

    root: Path
    provider: str = "runpod"
    device: str = "cuda"
    gpu: str = GPU_TYPE
    image: str = IMAGE
    workers: int = WORKERS_MAX
    caps: Caps = field(default_factory=Caps)
    approved_sha: str | None = None
    accuracy: bool = False
    collect: str = "local"
    restarts: int = PYTEST_RESTARTS
    queue_timeout: int = QUEUE_TIMEOUT_S
    request_timeout: int = REQUEST_TIMEOUT_S
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    commands: Mapping[str, str] = field(default_factory=dict)
    state: Path | None = None
    ledger: Path | None = None
    receipt: Path | None = None
    output: Path | None = None
    management_url: str | None = None
    jobs_url: str | None = None
    key: str | None = field(default=None, repr=False)

    @property
    def embedded(self) -> bool:
        """The emulator is to be started by this run, and to end with it."""
        return self.provider == "emulator" and self.management_url is None


def parse_settings(
    options: Mapping[str, Any], environ: Mapping[str, str], ini: Mapping[str, Any], root: Path, cwd: Path
) -> RunSettings:
    """Choose for each setting the option, else the variable, else the ini key, and check them all.

    Args:
        options: Values of the command line by setting name (`provider`, `approved_sha`, ...); None where not given.
        environ: The process's environment.
        ini: Values of the ini file by key (`runpod_provider`, ...), unknown `runpod_*` keys included.
        root: pytest's root folder. cwd: relative paths of options start here; those of the ini file at *root*.
    Raises: SettingsRefused: with every problem.
    """
    return _Reader(options, environ, ini, root, cwd).settings()


KNOWN: Final = (
    "provider",
    "device",
    "gpu",
    "image",
    "workers",
    "budget",
    "budget_total",
    "approved_sha",
    "accuracy",
    "collect",
    "restarts",
    "queue_timeout",
    "request_timeout",
    "include",
    "exclude",
    "requirements",
    "env",
    "commands",
    "state",
    "ledger",
    "receipt",
    "output",
)


class _Reader:
    def __init__(
        self, options: Mapping[str, Any], environ: Mapping[str, str], ini: Mapping[str, Any], root: Path, cwd: Path
    ) -> None:
        self.options, self.environ, self.ini, self.root, self.cwd = options, environ, ini, root, cwd
        self.problems: list[str] = []

    def settings(self) -> RunSettings:
        for key in sorted(set(self.ini) - {f"runpod_{name}" for name in KNOWN}):
            self.problems.append(f"the ini key {key} is not known; known are runpod_{', runpod_'.join(KNOWN)}")
        provider = self.choice("provider", ("runpod", "emulator"), "runpod")
        device = self.choice("device", ("cuda", "cpu"), "cuda")
        if device == "cpu" and provider == "runpod":
            self.problems.append(
                "--runpod-device=cpu is for --runpod-provider=emulator only: RunPod's workers have a GPU"
            )
        management_url, jobs_url = (self.url(name) for name in URL_VARIABLES)
        if (management_url is None) != (jobs_url is None):
            self.problems.append(f"{URL_VARIABLES[0]} and {URL_VARIABLES[1]} belong together: set both, or neither")
        settings = RunSettings(
            root=self.root,
            provider=provider,
            device=device,
            gpu=self.text("gpu") or GPU_TYPE,
            image=self.image(),
            workers=self.whole("workers", 1, 3, WORKERS_MAX),
            caps=Caps(
                run=self.money("budget", STAGE_BUDGET),
                stage=min(self.money("budget", STAGE_BUDGET, quiet=True), STAGE_BUDGET),
                total=self.money("budget_total", TOTAL_BUDGET),
            ),
            approved_sha=self.digest(),
            accuracy=self.switch("accuracy"),
            collect=self.choice("collect", ("local", "worker"), "local"),
            restarts=self.whole("restarts", 0, 20, PYTEST_RESTARTS),
            queue_timeout=self.whole("queue_timeout", 1, JOB_TTL_S, QUEUE_TIMEOUT_S),
            request_timeout=self.whole("request_timeout", 1, 300, REQUEST_TIMEOUT_S),
            include=self.lines("include"),
            exclude=self.lines("exclude"),
            requirements=self.lines("requirements"),
            env=self.names(),
            commands=self.commands(),
            state=self.path("state"),
            ledger=self.path("ledger"),
            receipt=self.path("receipt"),
            output=self.path("output"),
            management_url=management_url,
            jobs_url=jobs_url,
            key=self.key(),
        )
        if settings.accuracy and "accuracy" not in settings.commands:
            self.problems.append(
                "--runpod-accuracy needs the command: runpod_commands = accuracy = python ... in the ini file"
            )
        if self.problems:
            raise SettingsRefused(self.problems)
        return settings

    def raw(self, name: str) -> tuple[Any, str]:
        """The value that counts, and where it came from."""
        option = self.options.get(name)
        if option not in (None, [], False):
            return option, f"--{'approved-sha' if name == 'approved_sha' else 'runpod-' + name.replace('_', '-')}"
        variable = ENV_PREFIX + name.upper()
        if self.environ.get(variable):
            return self.environ[variable], variable
        return self.ini.get(f"runpod_{name}"), f"the ini key runpod_{name}"

    def text(self, name: str) -> str:
        value, _ = self.raw(name)
        return str(value or "").strip()

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        value, source = self.raw(name)
        text = str(value or default).strip()
        if text not in allowed:
            self.problems.append(f"{source} must be {' or '.join(allowed)}, not {text!r}")
            return default
        return text

    def switch(self, name: str) -> bool:
        value, source = self.raw(name)
        if isinstance(value, bool):
            return value
        text = str(value or "").strip().lower()
        if text not in TRUE | FALSE:
            self.problems.append(f"{source} must be true or false, not {text!r}")
        return text in TRUE

    def whole(self, name: str, low: int, high: int, default: int) -> int:
        value, source = self.raw(name)
        if value in (None, ""):
            return default
        if not re.fullmatch(r"\d{1,9}", str(value).strip()) or not low <= int(value) <= high:
            self.problems.append(f"{source} must be a whole number from {low} to {high}, not {value!r}")
            return default
        return int(value)

    def money(self, name: str, default: MicroUsd, *, quiet: bool = False) -> MicroUsd:
        value, source = self.raw(name)
        if value in (None, ""):
            return default
        try:
            return parse_usd(value)
        except ValueError as slip:
            if not quiet:
                self.problems.append(f"{source}: {slip}")
            return default

    def digest(self) -> str | None:
        value, source = self.raw("approved_sha")
        if value in (None, ""):
            return None
        text = str(value).strip().lower()
        if not re.fullmatch(r"[0-9a-f]{64}", text):
            self.problems.append(
                f"{source} must be a whole SHA-256: 64 hexadecimal digits, not {len(text)} of {text[:12]!r}…"
            )
        return text

    def image(self) -> str:
        text = self.text("image") or IMAGE
        if not re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", text):
            self.problems.append(f"--runpod-image must be pinned by digest (name:tag@sha256:…), not {text!r}")
        return text

    def lines(self, name: str) -> tuple[str, ...]:
        value, _ = self.raw(name)
        if isinstance(value, str):
            value = re.split(r"[\n,]" if name in ("include", "exclude", "env") else r"\n", value)
        return tuple(line.strip() for line in value or () if line.strip())

    def names(self) -> tuple[str, ...]:
        names = tuple(name for line in self.lines("env") for name in re.split(r"[\s,]+", line))
        for name in names:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self.problems.append(f"runpod_env takes names of variables, not {name.split('=')[0]!r} with a value")
            elif name.startswith("RUNPOD_"):
                self.problems.append(f"runpod_env must not pass {name}: nothing of RUNPOD_* reaches the tests")
        return names

    def commands(self) -> Mapping[str, str]:
        commands = {}
        for line in self.lines("commands"):
            name, separator, command = (part.strip() for part in line.partition("="))
            if not separator or not command or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
                self.problems.append(f"runpod_commands takes lines of the form name = command, not {line!r}")
                continue
            try:
                shlex.split(command)
            except ValueError as slip:
                self.problems.append(f"runpod_commands: {name}: {slip}")
            commands[name] = command
        return commands

    def path(self, name: str) -> Path | None:
        value, source = self.raw(name)
        if value in (None, ""):
            return None
        base = self.root if source.startswith("the ini") else self.cwd
        return (base / Path(str(value)).expanduser()).absolute()

    def key(self) -> Secret | None:
        value = self.environ.get(KEY_VARIABLE, "").strip()
        if value and not re.fullmatch(r"[!-~]+", value):
            self.problems.append(f"{KEY_VARIABLE} holds a character that no key has: copy it again")
        return Secret(value) if value else None

    def url(self, variable: str) -> str | None:
        value = self.environ.get(variable, "").strip()
        if value and not re.fullmatch(r"https?://[^\s?#@]+", value):
            self.problems.append(f"{variable} must be a base URL such as https://host, without credentials")
        return value.rstrip("/") or None
