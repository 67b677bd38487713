"""`plan`: what `run` would do, and nothing done."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from launcher.verbs import Arguments
from launcher.verbs.loading import headline, load, scan


def plan(arguments: Arguments) -> int:
    from launcher import source

    spec, planned = load(arguments)
    manifest = scan(spec)
    if "--json" in arguments.flags:
        print(json.dumps(planned.to_json(), indent=2))
        return 0
    print(headline(spec, planned))
    for request in planned.requests:
        print(f"  CreateNode {request.name}")
        for key, value in request.body.items():
            print(f"    {key}: {brief(value)}")
    for process in planned.processes:
        print(f"  s{process.slice} h{process.host}: {shlex.join(process.argv)}")
    print(f"  {source.describe(manifest)}")
    if "--show-files" in arguments.flags:
        print("\n".join(f"    {entry.path} ({entry.size} bytes)" for entry in manifest.files))
    print("nothing was touched; --json prints all of it, --show-files what would be shipped")
    return 0


def brief(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={brief(v)}" for k, v in value.items())
    text = str(value)
    return f"<{len(text.splitlines())} lines>" if "\n" in text else text
