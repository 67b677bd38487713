"""The startup script of a TPU VM, or of the VM of the Ray head: makes it a part of the cluster.

The script holds nothing that is known only at run time and no secret: the head's address and the
cluster's token come from the node's metadata (`launcher-join`, `launcher-token`).
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

RAYNODE = Path(__file__).with_name("raynode.py")

TEMPLATE = """\
#!/bin/bash
# Makes this VM a part of a Ray cluster. Written by launcher; safe to run again after a reboot.
{before}set -u
umask 077
dir="${{TMPDIR:-/tmp}}/launcher"
mkdir -p "$dir" && cd "$dir" || exit 1
cat > raynode.py <<'END_OF_RAYNODE'
{raynode}
END_OF_RAYNODE
cat > config.json <<'END_OF_CONFIG'
{config}
END_OF_CONFIG

interpreter() {{  # the image's own when it has the version, else one that uv fetches
  if [ "$(python3 -c 'import platform; print(platform.python_version())')" = {python} ]; then
    command -v python3
  else
    echo {python}
  fi
}}

install() {{  # an interpreter and packages of the coordinator's versions; the image stays as it is
  export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1  # the same wish, in newer and older words
  python3 -m pip --version >/dev/null ||
    {{ apt-get update -q && apt-get install -y -q python3-pip; }}
  python3 -m pip install --quiet --upgrade --target uv uv &&
    PYTHONPATH=uv python3 -m uv venv --quiet --clear --python "$(interpreter)" venv &&
    PYTHONPATH=uv python3 -m uv pip install --quiet --compile-bytecode --python venv/bin/python \\
      {packages}
}}

python=python3
if ! why=$("$python" raynode.py check config.json 2>&1); then
  echo "launcher: preparing Python {python} ($why)"
  install || {{ echo "launcher: installation failed"; exit 1; }}
  python="$dir/venv/bin/python"
fi
{run}
"""

HOST = 'nohup "$python" raynode.py host config.json &'
VM = """\
nohup bash -c 'while :; do "$0" raynode.py vm config.json; sleep 2; done' "$python" &"""


def startup_script(
    config: Mapping[str, Any],
    requirements: Sequence[str],
    *,
    before: Sequence[str] = (),
    env: Mapping[str, str] = MappingProxyType({}),
    run: str = HOST,
) -> str:
    """The script's text; `config` is what `raynode.py` reads on the host.

    `env` and then `before`, lines of shell of the user's own, take effect first. `run`, HOST or VM,
    is the last line.
    """
    exports = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    packages = [f"ray[default]=={config['packages']['ray']}", *requirements]
    return TEMPLATE.format(
        raynode=RAYNODE.read_text(encoding="utf-8").rstrip(),
        config=json.dumps(config, indent=1, sort_keys=True),
        python=config["python"],
        packages=" ".join(map(shlex.quote, packages)),
        before="".join(f"{line}\n" for line in (*exports, *before)),
        run=run,
    )


def host_config(
    chips_per_host: int, join_timeout: float, requirements: Sequence[str], python: str
) -> dict[str, Any]:
    """What a host must have to join.

    `python` is the coordinator's version, patch digit included; packages map to a version or None.
    """
    wanted = {package_name(line): exact_version(line) for line in requirements}
    return {
        "python": python,
        "packages": {**wanted, "ray": ray_version()},
        "chips_per_host": chips_per_host,
        "join_timeout": join_timeout,
        "object_store_memory": 100_000_000,
    }


@functools.cache
def ray_version() -> str:
    return version("ray")


def package_name(requirement: str) -> str:
    found = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return found.group(1) if found else requirement


def exact_version(requirement: str) -> str | None:
    found = re.search(r"==\s*([^\s;,*]+)\s*(;|$)", requirement)
    return found.group(1) if found else None
