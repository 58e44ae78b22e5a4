"""From settings or a receipt to a provider, a store, a clock. The only place that chooses RunPod or the emulator."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

import platformdirs

from pytest_runpod.core.limits import REQUEST_TIMEOUT_S
from pytest_runpod.core.receipt import Receipt, Where
from pytest_runpod.core.secret import Secret
from pytest_runpod.errors import ProviderUnreachable, ReceiptRefused, RunpodError, SettingsRefused, WatchdogFailed
from pytest_runpod.options import KEY_VARIABLE, TIMEOUT_VARIABLE, URL_VARIABLES, RunSettings
from pytest_runpod.provider.api import Provider
from pytest_runpod.provider.runpod import JOBS_URL, MANAGEMENT_URL, RunPod
from pytest_runpod.provider.transport import Transport
from pytest_runpod.store.receipts import ReceiptFile

STOP_S: Final = 20.0
WATCHDOG_START_S: Final = 60.0
ANSWER_S: Final = 5.0  # for a connection to an emulator, which lives on this machine or near it
WATCHING: Final = "watching"  # what a watchdog says once it watches
STAY: Final = "stay"  # what it is told when the process that started it may end
DETACHED: Final = 0x208 if sys.platform == "win32" else 0  # CREATE_NEW_PROCESS_GROUP | DETACHED_PROCESS


class SystemClock:
    """The real world. Implements `core.clock.Clock`."""

    def now(self) -> float:
        return time.time()

    def iso(self) -> str:
        return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def counter(self) -> float:
        """Seconds from some moment on, which nobody can set; where the system tells, a sleeping machine's time counts too."""
        if sys.platform == "linux":
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

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


@dataclass(slots=True)
class Watchdog:
    """The process that watches our receipt. It sees our end as the end of its lifeline, and then takes over."""

    popen: subprocess.Popen[str]
    log: Path

    def stay(self) -> None:
        """Let it act at the deadline only: this process is about to end, and its endpoint shall live on."""
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(f"{STAY}\n")
            self.popen.stdin.flush()
        except OSError as gone:
            raise WatchdogFailed(
                "The watchdog, which deletes the endpoint at its deadline, is gone. The endpoint is deleted now.",
                looked_at=str(self.log),
                todo="see that nothing ends left-over processes here, then run again",
            ) from gone
        self.end()

    def end(self) -> None:
        """Cut its lifeline. It ends if clean-up is confirmed, and cleans up if it is not: it is never ended by us."""
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):  # it is gone already
                    pipe.close()
        self.popen.returncode = 0  # it is meant to outlive us: no warning about a child that still runs


def connect(settings: RunSettings) -> Connection:
    """Open the provider that *settings* name.

    Raises: SettingsRefused: there is no key. ProviderUnreachable: the emulator did not start.
    """
    if settings.embedded:
        return _start_emulator(settings.request_timeout)
    if not settings.key:
        raise SettingsRefused([f"{KEY_VARIABLE} is not set: the key is read from the environment only"])
    where = Where(settings.provider, settings.management_url or MANAGEMENT_URL, settings.jobs_url or JOBS_URL)
    transport = Transport(settings.key, read_s=settings.request_timeout)
    return Connection(_client(where, transport), where, settings.key, transport)


def reconnect(receipt: Receipt, environ: Mapping[str, str]) -> Provider:
    """Reach the provider that a receipt speaks of, with the key from the environment.

    The key goes to RunPod's own hosts, and to those that the environment names; not wherever a receipt says.
    Raises: SettingsRefused: there is no key. ReceiptRefused: other hosts, or the key of another account.
    """
    key = environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise SettingsRefused([f"{KEY_VARIABLE} is not set: the key is read from the environment only"])
    urls = receipt.where.management_url, receipt.where.jobs_url
    trusted = {(MANAGEMENT_URL, JOBS_URL), tuple(environ.get(name, "").rstrip("/") for name in URL_VARIABLES)}
    if urls not in trusted:
        raise ReceiptRefused(
            "That receipt speaks of other hosts than RunPod's. The key was not sent there, nothing was changed.",
            looked_at=" and ".join(urls),
            todo=f"if they are yours: set {URL_VARIABLES[0]} and {URL_VARIABLES[1]} to them",
        )
    insist_on_account(receipt, receipt.where, key)
    return _client(receipt.where, Transport(key, read_s=_request_timeout(environ)))


def has_ended(where: Where) -> bool:
    """Whether *where* is an emulator, and nobody listens there any more: what it had made has ended with it."""
    if where.kind != "emulator":
        return False
    address = urlsplit(where.management_url)
    try:
        with socket.create_connection((address.hostname or "", address.port or 80), ANSWER_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def fingerprint(run: str, key: str) -> str:
    """Tell accounts apart without keeping the key: salted with the run's name, cut to 16 hexadecimal digits."""
    return hashlib.sha256(f"{run}:{key}".encode()).hexdigest()[:16]


def insist_on_account(receipt: Receipt, where: Where, key: str) -> None:
    """Let nobody look for an endpoint in another account: he would not find it, and take that for its deletion.

    Raises: ReceiptRefused: another provider, or another key than the one that created it.
    """
    elsewhere = (receipt.where.management_url, receipt.where.jobs_url) != (where.management_url, where.jobs_url)
    if elsewhere or receipt.account not in ("", fingerprint(receipt.run, key)):
        raise ReceiptRefused(
            "That receipt is of another provider or another key. Nothing was asked, nothing was changed.",
            looked_at=f"{receipt.name}, created at {receipt.where.management_url}"
            + (f", not at {where.management_url}" if elsewhere else ", with another key"),
            todo=f"set {KEY_VARIABLE}, and the PYTEST_RUNPOD_*_URL variables, as they were when it was created",
        )


def _request_timeout(environ: Mapping[str, str]) -> float:
    text = environ.get(TIMEOUT_VARIABLE, "").strip()
    return float(text) if text.isdigit() and int(text) else REQUEST_TIMEOUT_S


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


def start_watchdog(file: ReceiptFile, connection: Connection, request_timeout: int) -> Watchdog:
    """Start the watchdog of a receipt, and wait until it watches: before that, nothing may be created.

    Its own session, nobody's child, a clean environment; the key is in that and nowhere else.
    Raises: WatchdogFailed: it did not come up.
    """
    command = [sys.executable, "-m", "pytest_runpod.watchdog", str(file.path.resolve()), "--parent", str(os.getpid())]
    where = connection.where
    env = {
        **_clean_environment(),
        KEY_VARIABLE: connection.key,
        TIMEOUT_VARIABLE: str(request_timeout),
        **dict(zip(URL_VARIABLES, (where.management_url, where.jobs_url), strict=True)),
    }
    try:
        with file.watchdog_log.open("ab") as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=tempfile.gettempdir(),  # modules of the project must not stand in front of ours
                env=env,
                start_new_session=True,
                creationflags=DETACHED,
            )
    except OSError as no:
        raise _no_watchdog(str(no)) from no
    said = _first_line(popen, WATCHDOG_START_S)
    if not said.startswith(WATCHING):
        popen.kill()
        popen.wait(STOP_S)
        Watchdog(popen, file.watchdog_log).end()
        raise _no_watchdog(f"{file.watchdog_log}: {_last_line(file.watchdog_log)}")
    if os.name != "nt":
        popen.wait()  # it has forked itself away
    return Watchdog(popen, file.watchdog_log)


def _no_watchdog(looked_at: str) -> WatchdogFailed:
    return WatchdogFailed(
        "The watchdog, which deletes the endpoint if this process dies, did not start. Nothing was created.",
        looked_at=looked_at,
        todo="repair what that says, then run again",
    )


def _first_line(popen: subprocess.Popen[str], limit_s: float) -> str:
    """What a process says first, within *limit_s* seconds; nothing if it has ended, or takes longer."""
    said: list[str] = []
    assert popen.stdout is not None
    reader = threading.Thread(target=lambda out: said.append(out.readline()), args=(popen.stdout,), daemon=True)
    reader.start()
    reader.join(limit_s)
    return said[0] if said else ""


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _client(where: Where, transport: Transport) -> Provider:
    return RunPod(transport, where.management_url, where.jobs_url)


def _start_emulator(request_timeout: float) -> Connection:
    key = Secret(f"rpa_emulator_{secrets.token_hex(16)}")
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
    transport = Transport(key, read_s=request_timeout)
    return Connection(_client(where, transport), where, key, transport, process)


def _last_words(stream: IO[str]) -> str:
    stream.seek(0)
    lines = stream.read().strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _clean_environment() -> dict[str, str]:
    """What a watchdog needs. Nothing by which a CI runner knows its own processes (`BUILD_ID`, `RUNNER_TRACKING_ID`, …)."""
    kept = (
        "PATH", "HOME", "USERPROFILE", "SYSTEMROOT", "LANG", "LC_ALL", "TMPDIR", "TEMP", "PYTHONPATH", "VIRTUAL_ENV",
        "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy",
        "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "PYTHONHOME", "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH", "ALL_PROXY", "all_proxy",
    )  # fmt: skip
    found = {name: os.environ[name] for name in kept if name in os.environ}
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = os.pathsep.join(
            str(Path(part).absolute()) for part in found["PYTHONPATH"].split(os.pathsep)
        )
    return found


def describe_failure(error: Exception) -> str:
    return str(error) if isinstance(error, RunpodError) else f"{type(error).__name__}: {error}"
