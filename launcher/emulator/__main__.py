"""The emulator's command line.

    python -m launcher.emulator serve --state-dir DIR     runs it; prints its endpoint as JSON
    python -m launcher.emulator fault KIND [NODE] …       breaks something
    python -m launcher.emulator ledger                    what was ever created, what is left
    python -m launcher.emulator hosts                     addresses, pids, console logs

Commands find the emulator by --endpoint, or by --state-dir and its default.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.emulator import client
from launcher.emulator.faults import FAULTS, Fault, load
from launcher.emulator.ledger import Ledger
from launcher.emulator.rules import OPTIONS, duration
from launcher.errors import LauncherError, ProvisioningError

HOST_FAULTS = frozenset(name for name, f in FAULTS.items() if f.act and "worker" in f.options)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code is 0, or that of the error that it prints."""
    given = _parser().parse_args(argv)
    try:
        given.run(given)
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _serve(given: argparse.Namespace) -> None:
    from launcher.emulator.server import Settings, serve

    rules = load(given.rules) if given.rules else ()
    serve(Settings(given.state_dir.absolute(), given.port, given.idle_timeout, rules))


def _fault(given: argparse.Namespace) -> None:
    keys = ("node", *FAULTS[given.fault].keys)
    command = {key: getattr(given, key) for key in keys if getattr(given, key) is not None}
    _print(client.control(_endpoint(given), {"command": "fault", "fault": given.fault, **command}))


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
    _print({**ledger.to_json(), "hosts": []})


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
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--state-dir", type=Path, default=client.default_state_dir(), help="(%(default)s)"
    )
    _add_serve(commands.add_parser("serve", parents=[where], help="run in the foreground"))
    where.add_argument("--endpoint", help="address:port of a running emulator")
    for name, run, text in (
        ("ledger", _ledger, "everything ever created, and what is left, as JSON"),
        ("hosts", _hosts, "the hosts that there are, as JSON"),
    ):
        commands.add_parser(name, parents=[where], help=text).set_defaults(run=run)
    fault = commands.add_parser("fault", help="break something; see fault --help")
    kinds = fault.add_subparsers(required=True, metavar="KIND", dest="fault")
    for name, spec in FAULTS.items():
        _add_fault(kinds.add_parser(name, parents=[where], help=spec.help), name, spec)
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=0, help="(any free one)")
    parser.add_argument("--rules", type=Path, help="JSON or YAML file: a list of faults to arm")
    parser.add_argument(
        "--idle-timeout",
        type=duration,
        default="60s",
        help="how long it waits, empty, for a first client (%(default)s)",
    )
    parser.set_defaults(run=_serve)


def _add_fault(parser: argparse.ArgumentParser, name: str, fault: Fault) -> None:
    parser.set_defaults(run=_fault)
    parser.description = fault.help
    parser.add_argument("node", nargs=None if fault.act else "?", help="node id, or a pattern")
    if name in HOST_FAULTS:
        parser.add_argument("worker", type=int, help=OPTIONS["worker"].help)
    for key in fault.keys:
        if key != "node" and not (key == "worker" and name in HOST_FAULTS):
            parser.add_argument(f"--{key}", help=OPTIONS[key].help)


if __name__ == "__main__":
    sys.exit(main())
