"""The emulator's command line.

    python -m launcher.emulator serve --state-dir DIR     runs it; prints its endpoint as JSON
    python -m launcher.emulator fault KIND [NODE] …       breaks something; see fault --help
    python -m launcher.emulator ledger                    what was ever created, what is left
    python -m launcher.emulator hosts                     addresses, pids, console logs
    python -m launcher.emulator bucket NAME LOCATION      declares a bucket of Cloud Storage

Commands find the emulator by --endpoint, or by --state-dir and its default; these two may stand
before KIND or after it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.config.values import seconds
from launcher.emulator import client
from launcher.emulator.faults import FAULTS, OPTIONS, Fault, Target
from launcher.emulator.ledger import Ledger
from launcher.emulator.rules import check_rule, load
from launcher.errors import LauncherError, ProvisioningError
from launcher.pipes import until_unread


class _Command(argparse.ArgumentParser):
    """An option that is not given sets nothing, so that it may stand before KIND or after it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(argument_default=argparse.SUPPRESS, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code is 0, or that of the error that it prints."""
    given = _parser().parse_args(argv)
    try:
        given.run(given)
    except LauncherError as error:
        print(f"emulator: {type(error).__name__}\n{error}", file=sys.stderr)
        return error.exit_code
    return 0


def _serve(given: argparse.Namespace) -> None:
    from launcher.emulator.server import Settings, serve

    rules = load(given.rules) if given.rules else ()
    serve(Settings(given.state_dir.absolute(), given.port, given.idle_timeout, rules))


def _fault(given: argparse.Namespace) -> None:
    keys = ("fault", *FAULTS[given.fault].keys)
    rule = {key: value for key, value in vars(given).items() if key in keys}
    check_rule(rule)
    _print(client.control(_endpoint(given), {"command": "fault", **rule}))


def _bucket(given: argparse.Namespace) -> None:
    command = {"command": "bucket", "name": given.name, "location": given.location}
    _print(client.control(_endpoint(given), command))


def _hosts(given: argparse.Namespace) -> None:
    _print(client.control(_endpoint(given), {"command": "hosts"}))


def _ledger(given: argparse.Namespace) -> None:
    if given.endpoint or client.is_alive(given.state_dir):
        _print(client.control(_endpoint(given), {"command": "ledger"}))
        return
    ledger = Ledger(given.state_dir / "ledger.json")
    lock = given.state_dir / "lock"
    if lock.exists():
        ledger.bury(lock.stat().st_mtime)
    _print({**ledger.to_json(), "hosts": [], "calls": {}})


def _endpoint(given: argparse.Namespace) -> str:
    endpoint = given.endpoint or client.read_endpoint(given.state_dir)
    if not endpoint:
        raise ProvisioningError(f"no emulator runs in {given.state_dir}")
    return str(endpoint)


def _print(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m launcher.emulator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(endpoint=None, state_dir=client.default_state_dir())
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Command)
    _add_serve(commands.add_parser("serve", help="run in the foreground"))
    for name, run, text in (
        ("ledger", _ledger, "everything ever created, and what is left, as JSON"),
        ("hosts", _hosts, "the hosts that there are, as JSON"),
    ):
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=run)
        _add_where(command)
    bucket = commands.add_parser("bucket", help="declare a bucket of Cloud Storage")
    bucket.set_defaults(run=_bucket)
    bucket.add_argument("name")
    bucket.add_argument("location", help="a region such as us-east5, or US, EU, ASIA")
    _add_where(bucket)
    fault = commands.add_parser("fault", help="break something; see fault --help")
    _add_where(fault)
    _add_kinds(fault)
    return parser


def _add_kinds(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(
        required=True, metavar="KIND", dest="fault", parser_class=_Command
    )
    for name, fault in FAULTS.items():
        _add_fault(kinds.add_parser(name, help=fault.help), fault)


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--endpoint", help="address:port of a running emulator")
    _add_state_dir(parser)


def _add_state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", type=Path, help=f"({client.default_state_dir()})")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_state_dir(parser)
    parser.add_argument("--port", type=int, default=0, help="(any free one)")
    parser.add_argument(
        "--rules", type=Path, default=None, help="JSON or YAML file: a list of faults to arm"
    )
    parser.add_argument(
        "--idle-timeout",
        type=seconds,
        default="60s",
        help="how long it waits, empty, for a first client (%(default)s)",
    )
    parser.set_defaults(run=_serve)


def _add_fault(parser: argparse.ArgumentParser, fault: Fault) -> None:
    parser.set_defaults(run=_fault)
    parser.description = fault.help
    if "node" in fault.keys:
        optional = fault.target is Target.EVENT
        parser.add_argument("node", nargs="?" if optional else None, help="node id, or a pattern")
    for key in fault.required:
        parser.add_argument(key, help=OPTIONS[key].help)
    for key in sorted(set(fault.keys) - {"node", *fault.required}, key=fault.keys.index):
        parser.add_argument(f"--{key}", help=OPTIONS[key].help)
    _add_where(parser)


if __name__ == "__main__":
    sys.exit(until_unread(main))
