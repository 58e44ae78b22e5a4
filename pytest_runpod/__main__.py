"""The command `pytest-runpod`: what one does with a run outside of pytest. Settings come from the same places as pytest's."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_runpod.cleanup import clean_receipt
from pytest_runpod.core.budget import Entry, Stage
from pytest_runpod.core.clock import RunId
from pytest_runpod.core.limits import SETUP_DEADLINE_S
from pytest_runpod.core.money import MicroUsd, format_usd, parse_usd
from pytest_runpod.core.wire import endpoint_env
from pytest_runpod.endpoint import Deployment, make_spec, new_name, new_receipt, preflight
from pytest_runpod.errors import CleanupUnresolved, ExitCode, RunpodError, SettingsRefused, worse
from pytest_runpod.options import KEY_VARIABLE, RunSettings
from pytest_runpod.session import Packed
from pytest_runpod.store.ledger import Ledger
from pytest_runpod.store.receipts import ReceiptFile, all_receipts, receipt_path
from pytest_runpod.store.worker_files import worker_files
from pytest_runpod.wiring import SystemClock, connect, detach_watchdog, ledger_path, reconnect, user_state

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
    cleanup = command("cleanup", _cleanup, "delete what receipts name, and confirm; may be repeated")
    cleanup.add_argument("--receipt", type=Path, help="one receipt (default: all in the state folder)")
    cleanup.add_argument("--state", type=Path, help="the state folder (default: the user's)")
    ledger = command("ledger", _ledger, "show the ledger, or settle a run against its bill")
    ledger.add_argument("--ledger", type=Path, help="the ledger (default: in the state folder)")
    ledger.add_argument("--settle", metavar="RUN", help="replace what this run reserved by what was billed")
    ledger.add_argument(
        "--amount", metavar="USD", help="with --settle: the billed amount, instead of asking the provider"
    )
    ledger.add_argument("--reason", default="", help="with --amount: where that figure comes from")
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
    if settings.embedded:
        raise SettingsRefused(
            [
                "setup needs a provider that outlives it: serve one with `pytest-runpod emulator` and set its URLs and key"
            ]
        )
    clock, state, payload = SystemClock(), settings.state or user_state(), packed.payload
    connection = connect(settings)
    offer = preflight(connection.provider, settings)
    run = RunId.make(clock).text
    file = ReceiptFile(settings.receipt or receipt_path(state, run))
    env = endpoint_env(packed.worker, payload.sha256, settings.device)
    spec = make_spec(new_name(payload.sha256, clock), settings, offer, env)
    ledger = Ledger(ledger_path(settings, state))
    deployment = Deployment(connection.provider, file, ledger, settings.caps, clock, offer.rate)
    receipt = new_receipt(run, spec, connection.where, (payload.sha256, payload.worker_sha256), clock, ledger)
    if file.path.exists():
        file.create(receipt)  # refuses, before any money is reserved
    deployment.reserve(run, Stage.SETUP)
    file.create(receipt)
    detach_watchdog(file.path, connection.key)
    try:
        endpoint = deployment.create(spec)
        deployment.wait_until_idle()
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
    files = (ReceiptFile(options.receipt),) if options.receipt else all_receipts(options.state or user_state())
    code: int = ExitCode.OK
    for file in files:
        try:
            receipt = file.read()
            if not receipt.cleanup_confirmed:
                receipt = clean_receipt(file, reconnect(receipt, os.environ), SystemClock().iso)
            print(f"{receipt.name}: cleanup_confirmed: {str(receipt.cleanup_confirmed).lower()}")
        except RunpodError as error:
            sys.stderr.write(f"{file.path}: {error}\n")
            code = worse(code, ExitCode.CLEANUP if isinstance(error, CleanupUnresolved) else error.exit_code)
    if not files:
        print("no receipts: nothing was ever created from this state folder")
    return code


def _ledger(options: argparse.Namespace, _: list[str]) -> int:
    ledger = Ledger(options.ledger or user_state() / "ledger.json")
    if options.settle:
        return _settle(ledger, options)
    entries = ledger.entries()
    for entry in entries:
        actual = "open" if entry.actual is None else format_usd(entry.actual)
        money = f"reserved {format_usd(entry.reserved)}  billed {actual}"
        print(f"{entry.at}  {entry.run}  {entry.stage.value:<6} {money}  {entry.note}")
    print(f"{len(entries)} entries in {ledger.path}, {format_usd(sum(entry.counted for entry in entries))} count")
    return ExitCode.OK


def _settle(ledger: Ledger, options: argparse.Namespace) -> int:
    entries = [entry for entry in ledger.entries() if entry.run == options.settle]
    if options.amount is not None:
        if not options.reason:
            raise SettingsRefused(["--amount needs a --reason: where the figure comes from"])
        try:
            amount = parse_usd(options.amount)
        except ValueError as slip:
            raise SettingsRefused([str(slip)]) from slip
        changed = ledger.settle(options.settle, amount, options.reason)
    else:
        amount, records = _billed(options.settle, entries, ledger)
        if not records or not amount:
            print(
                "the bill shows nothing for that endpoint yet: it lags, and a zero proves nothing. Nothing was changed."
            )
            return ExitCode.OK
        changed = ledger.settle(options.settle, amount, f"bill, {records} records")
    print(f"{options.settle}: {len(changed)} reservations settled at {format_usd(amount)}")
    return ExitCode.OK


def _billed(run: str, entries: list[Entry], ledger: Ledger) -> tuple[MicroUsd, int]:
    endpoint_id = next((entry.endpoint_id for entry in entries if entry.endpoint_id), None)
    if endpoint_id is None:
        raise SettingsRefused([f"{ledger.path} knows no endpoint of {run}"])
    receipt = ReceiptFile(receipt_path(ledger.path.parent, run)).read()
    bill = reconnect(receipt, os.environ).bill(endpoint_id)
    return bill.amount, bill.records


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
