"""From settings or a receipt to a provider, a store, a clock. The only place that chooses RunPod or the emulator."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Final

import platformdirs

from pytest_runpod.core.receipt import Receipt, Where
from pytest_runpod.errors import ProviderUnreachable, RunpodError, SettingsRefused
from pytest_runpod.options import KEY_VARIABLE, RunSettings
from pytest_runpod.provider.api import Provider
from pytest_runpod.provider.runpod import JOBS_URL, MANAGEMENT_URL, RunPod
from pytest_runpod.provider.transport import Transport

EMULATOR_START_S: Final = 60.0
STOP_S: Final = 20.0


class SystemClock:
    """The real world. Implements `core.clock.Clock`."""

    def now(self) -> float:
        return time.time()

    def iso(self) -> str:
        return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def token(self) -> str:
        return secrets.token_hex(16)


@dataclass(slots=True)
class Connection:
    """A provider to talk to, where it is, the key that it takes, and the emulator's process if we started one."""

    provider: Provider
    where: Where
    key: str
    transport: Transport
    emulator: Process | None = None

    def close(self) -> None:
        self.transport.close()
        if self.emulator is not None:
            self.emulator.end()


@dataclass(slots=True)
class Process:
    """A helper process of ours in its own session. It sees our death as the end of its standard input."""

    popen: subprocess.Popen[str]

    def end(self) -> None:
        """Close its lifeline and wait until it has gone by itself; one that does not is ended."""
        if self.popen.stdin is not None and not self.popen.stdin.closed:
            self.popen.stdin.close()
        try:
            self.popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.popen.terminate()
            self.popen.wait(STOP_S)
        if self.popen.stdout is not None:
            self.popen.stdout.close()


def connect(settings: RunSettings) -> Connection:
    """Open the provider that *settings* name.

    Raises: SettingsRefused: there is no key. ProviderUnreachable: the emulator did not start.
    """
    if settings.embedded:
        return _start_emulator()
    if not settings.key:
        raise SettingsRefused([f"{KEY_VARIABLE} is not set: the key is read from the environment only"])
    where = Where(settings.provider, settings.management_url or MANAGEMENT_URL, settings.jobs_url or JOBS_URL)
    transport = Transport(settings.key)
    return Connection(_client(where, transport), where, settings.key, transport)


def reconnect(receipt: Receipt, environ: Mapping[str, str]) -> Provider:
    """Reach the provider that a receipt speaks of, with the key from the environment.

    Raises: SettingsRefused: there is no key.
    """
    key = environ.get(KEY_VARIABLE)
    if not key:
        raise SettingsRefused([f"{KEY_VARIABLE} is not set: the key is read from the environment only"])
    return _client(receipt.where, Transport(key))


def user_state() -> Path:
    """Where receipts, approvals and the ledger live by default: outside of every checkout."""
    return Path(platformdirs.user_state_dir("pytest-runpod", appauthor=False))


def state_folder(settings: RunSettings, output: Path) -> Path:
    """The folder of receipts and ledger. An embedded emulator is a new account each time, so its books live with its results."""
    if settings.state is not None:
        return settings.state
    return output / "state" if settings.embedded else user_state()


def approvals_folder(settings: RunSettings) -> Path:
    """Where manifests are kept under their digest. The same for every provider: a review is worth as much everywhere."""
    return (settings.state or user_state()) / "approvals"


def ledger_path(settings: RunSettings, state: Path) -> Path:
    return settings.ledger or state / "ledger.json"


def start_watchdog(receipt: Path, key: str) -> Process:
    """Start the watchdog of *receipt*: own session, clean environment, the key in it and nowhere else."""
    log = receipt.with_suffix(".watchdog.txt")
    with log.open("ab") as sink:
        return Process(
            subprocess.Popen(
                [sys.executable, "-m", "pytest_runpod.watchdog", str(receipt)],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                text=True,
                cwd=receipt.parent,
                env={**_clean_environment(), KEY_VARIABLE: key},
                start_new_session=True,
            )
        )


def detach_watchdog(receipt: Path, key: str) -> int:
    """Start a watchdog that outlives this command and acts at the deadline only. Returns its process id."""
    log = receipt.with_suffix(".watchdog.txt")
    with log.open("ab") as sink:
        popen = subprocess.Popen(
            [sys.executable, "-m", "pytest_runpod.watchdog", "--until-deadline", str(receipt)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            cwd=receipt.parent,
            env={**_clean_environment(), KEY_VARIABLE: key},
            start_new_session=True,
        )
    popen.returncode = 0  # it is meant to outlive us: no warning about a child that still runs
    return popen.pid


def _client(where: Where, transport: Transport) -> Provider:
    return RunPod(transport, where.management_url, where.jobs_url)


def _start_emulator() -> Connection:
    key = f"rpa_emulator_{secrets.token_hex(16)}"
    with tempfile.TemporaryFile("w+", errors="replace") as words:  # a pipe that nobody reads would fill up
        popen = subprocess.Popen(
            [sys.executable, "-m", "pytest_runpod", "emulator", "--lifeline"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            env={**os.environ, KEY_VARIABLE: key},
            start_new_session=True,
        )
        process = Process(popen)
        assert popen.stdout is not None
        line = popen.stdout.readline()
        try:
            ready = json.loads(line)
            where = Where("emulator", ready["management_url"], ready["jobs_url"])
        except (ValueError, KeyError):
            process.end()
            raise ProviderUnreachable(
                "The embedded emulator did not start. Nothing was created.",
                looked_at=_last_words(words),
                todo="install its parts: pip install 'pytest-runpod[emulator]'",
            ) from None
    transport = Transport(key)
    return Connection(_client(where, transport), where, key, transport, process)


def _last_words(stream: IO[str]) -> str:
    stream.seek(0)
    lines = stream.read().strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _clean_environment() -> dict[str, str]:
    kept = (
        "PATH", "HOME", "USERPROFILE", "SYSTEMROOT", "LANG", "LC_ALL", "TMPDIR", "TEMP", "PYTHONPATH", "VIRTUAL_ENV",
        "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy",
        "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE",
    )  # fmt: skip
    return {name: os.environ[name] for name in kept if name in os.environ}


def describe_failure(error: Exception) -> str:
    return str(error) if isinstance(error, RunpodError) else f"{type(error).__name__}: {error}"
