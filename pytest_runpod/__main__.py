"""The command `pytest-runpod`: what one does with a run outside of pytest. Settings come from the same places as pytest's."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from pytest_runpod import bookkeeping
from pytest_runpod.core.budget import Stage
from pytest_runpod.core.clock import RunId
from pytest_runpod.core.limits import SETUP_DEADLINE_S
from pytest_runpod.core.wire import endpoint_env
from pytest_runpod.doctor import examine
from pytest_runpod.endpoint import Deployment
from pytest_runpod.errors import ExitCode, RunpodError, SettingsRefused, worse
from pytest_runpod.leftovers import insist_on_certainty
from pytest_runpod.options import KEY_VARIABLE, RunSettings
from pytest_runpod.preflight import make_spec, new_name, new_receipt, preflight
from pytest_runpod.reap import Line, by_prefix, clean_one, reap, worst
from pytest_runpod.session import Packed
from pytest_runpod.store.ledger import Ledger
from pytest_runpod.store.receipts import ReceiptFile, link_receipt, receipt_path
from pytest_runpod.store.worker_files import worker_files
from pytest_runpod.waiting import Pace
from pytest_runpod.wiring import (
    Connection,
    SystemClock,
    connect,
    fingerprint,
    ledger_path,
    reconnect,
    start_watchdog,
    user_state,
)

Action = Callable[[pytest.Config], int]


class _WithSettings:
    """Runs *action* where pytest would collect: options, environment and ini file are read by pytest itself."""

    def __init__(self, action: Action) -> None:
        self.action = action

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        try:
            return self.action(config)
        except RunpodError as error:
            sys.stderr.write(f"{error}\n")
            return int(error.exit_code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns an exit code of `errors.ExitCode`."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.takes_pytest_options:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return int(options.run(options, rest))
    except RunpodError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what was begun is in its receipt, and `pytest-runpod reap` finishes it\n")
        return ExitCode.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pytest-runpod", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[..., int], text: str, *, pytest_options: bool = False
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run, takes_pytest_options=pytest_options)
        return sub

    command("prepare", _prepare, "pack, print the digests and what would be sent; no network", pytest_options=True)
    command("setup", _setup, "create an approved endpoint ahead of its run; prints its receipt", pytest_options=True)
    health = command("health", _health, "show what a receipt's endpoint does now; read-only")
    health.add_argument("--receipt", type=Path, required=True)
    command(
        "doctor", _doctor, "look whether a run would work: hosts, key, quota, price; read-only", pytest_options=True
    )
    cleanup = command("cleanup", _cleanup, "delete what one receipt names, and confirm; may be repeated")
    cleanup.add_argument("--receipt", type=Path, required=True)
    cleanup.add_argument(
        "--absent", action="store_true", help="of a create whose answer was lost: it is not there, you have looked"
    )
    cleanup.add_argument("--reason", default="", help="with --absent: how you know")
    reaping = command("reap", _reap, "delete what receipts name and no living run uses, and confirm; may be repeated")
    reaping.add_argument("--state", type=Path, help="the state folder (default: the user's)")
    reaping.add_argument(
        "--list", action="store_true", help="only show the endpoints that are named as ours; with the pytest options"
    )
    bookkeeping.add_arguments(
        command("ledger", _ledger, "show the reservations, settle them with the bill, or adjust them")
    )
    emulator = command("emulator", _emulator, "serve the embedded provider on this machine; prints its URLs")
    emulator.add_argument(
        "--lifeline", action="store_true", help="end once standard input has ended and nothing is alive"
    )
    emulator.add_argument(
        "--warm", action="store_true", help="only download what its workers install, for use without a network"
    )
    emulator.add_argument("--faults", type=Path, help="a JSON file of faults to inject")
    emulator.add_argument("--port", type=int, default=0)
    emulator.add_argument("--jobs-port", type=int, default=0)
    return parser


def _with_pytest(action: Action, rest: list[str]) -> int:
    return int(pytest.main(["-p", "no:cacheprovider", *rest], plugins=[_WithSettings(action)]))


def _prepare(_: argparse.Namespace, rest: list[str]) -> int:
    from pytest_runpod import remote

    return _with_pytest(lambda config: remote.prepare(config, tuple(rest)), rest)


def _setup(_: argparse.Namespace, rest: list[str]) -> int:
    from pytest_runpod import remote

    return _with_pytest(lambda config: _set_up(*remote.approved(config, tuple(rest))), rest)


def _set_up(settings: RunSettings, packed: Packed) -> int:
    """Create the endpoint that a later `--runpod-receipt` uses. The watchdog deletes it at its deadline."""
    clock, state, payload = SystemClock(), settings.state or user_state(), packed.payload
    connection = _lasting(settings, "setup")
    run = RunId.make(clock).text
    file = ReceiptFile(settings.receipt or receipt_path(state, run))
    insist_on_certainty(state, connection.where, clock.now())
    offer = preflight(connection.provider, settings)
    env = endpoint_env(packed.worker, payload.sha256, settings.device)
    spec = make_spec(new_name(payload.sha256, clock), settings, offer, env)
    ledger = Ledger(ledger_path(settings, state))
    deployment = Deployment(
        connection.provider, file, ledger, settings.caps, clock, offer.rate, Pace.of(settings), workers=settings.workers
    )
    digests, account = (payload.sha256, payload.worker_sha256), fingerprint(run, connection.key)
    receipt = new_receipt(run, spec, connection.where, account, digests, clock, ledger)
    if file.path.exists():
        file.create(receipt)  # refuses, before any money is reserved
    deployment.reserve(run, Stage.SETUP)
    file.create(receipt)
    link_receipt(state, run, file)
    try:
        watchdog = start_watchdog(file, connection, settings.request_timeout)
        try:
            endpoint = deployment.create(spec)
            deployment.wait_until_idle()
            watchdog.stay()
        finally:
            watchdog.end()
    except BaseException:
        deployment.clean_up()
        raise
    print(f"receipt: {file.path}")
    print(f"endpoint: {endpoint.id} ({endpoint.name}), deleted in {SETUP_DEADLINE_S // 60} minutes at the latest")
    print(f"next: pytest --runpod --approved-sha={payload.sha256} --runpod-receipt={file.path}")
    return ExitCode.OK


def _health(options: argparse.Namespace, _: list[str]) -> int:
    file = ReceiptFile(options.receipt)
    receipt = file.read()
    print(f"{receipt.name}: {receipt.phase.value}, cleanup_confirmed: {str(receipt.cleanup_confirmed).lower()}")
    provider = reconnect(receipt, os.environ)
    endpoint = provider.get_endpoint(receipt.endpoint_id) if receipt.endpoint_id else None
    if endpoint is None:
        print("endpoint: none at the provider")
        return ExitCode.OK
    health = provider.health(endpoint)
    print(f"endpoint: {endpoint.id}, workers.max {endpoint.workers_max}")
    print(f"jobs: {dict(health.jobs) if health else 'not there yet (404)'}")
    print(f"workers: {dict(health.workers) if health else '-'}")
    return ExitCode.OK


def _cleanup(options: argparse.Namespace, _: list[str]) -> int:
    if options.absent and not options.reason:
        raise SettingsRefused(["--absent needs a --reason: how you know that the endpoint never came to be"])
    return _show([clean_one(ReceiptFile(options.receipt), os.environ, options.reason if options.absent else None)])


def _reap(options: argparse.Namespace, _: list[str]) -> int:
    state = options.state or user_state()
    if options.list:
        return _with_pytest(lambda config: _list(_settings(config), state), [])
    return _show(reap(state, os.environ))


def _list(settings: RunSettings, state: Path) -> int:
    return _show(by_prefix(_lasting(settings, "reap --list").provider, state))


def _show(lines: Iterable[Line]) -> int:
    """Print each line as soon as it is known: on standard error where something is wrong."""
    shown = []
    for line in lines:
        print(line.text, file=sys.stderr if line.code else sys.stdout, flush=True)
        shown.append(line)
    return worst(shown)


def _doctor(_: argparse.Namespace, rest: list[str]) -> int:
    return _with_pytest(lambda config: _examine(_settings(config)), rest)


def _examine(settings: RunSettings) -> int:
    state = settings.state or user_state()
    connection, code = _lasting(settings, "doctor"), int(ExitCode.OK)
    print(f"looking at {connection.where.management_url} and {connection.where.jobs_url}; nothing is changed")
    for finding in examine(connection.provider, settings, state, Ledger(ledger_path(settings, state))):
        print(finding, flush=True)
        code = worse(code, finding.code)
    return code


def _settings(config: pytest.Config) -> RunSettings:
    from pytest_runpod import remote

    return remote.settings_of(config)


def _lasting(settings: RunSettings, command: str) -> Connection:
    """Connect to a provider that is there without us. Raises: SettingsRefused: an embedded one would be a new account."""
    if settings.embedded:
        raise SettingsRefused(
            [
                f"{command} needs a provider that outlives it: serve one with `pytest-runpod emulator`, set its URLs and key"
            ]
        )
    return connect(settings)


def _ledger(options: argparse.Namespace, _: list[str]) -> int:
    return _show(bookkeeping.keep(options, os.environ))


def _emulator(options: argparse.Namespace, _: list[str]) -> int:
    try:
        from pytest_runpod.emulator import image
        from pytest_runpod.emulator.faults import Faults
        from pytest_runpod.emulator.server import serve
    except ImportError as missing:
        sys.stderr.write(f"the emulator needs its parts: pip install 'pytest-runpod[emulator]' ({missing})\n")
        return ExitCode.INFRASTRUCTURE
    if options.warm:
        image.warm_cache(worker_files()["sdk.lock"])
        return ExitCode.OK
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        raise SettingsRefused([f"{KEY_VARIABLE} is not set: choose the key that this emulator's account shall take"])
    serve(
        port=options.port,
        jobs_port=options.jobs_port,
        key=key,
        faults=Faults.from_json(options.faults) if options.faults else Faults(),
        lifeline=sys.stdin if options.lifeline else None,
    )
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
