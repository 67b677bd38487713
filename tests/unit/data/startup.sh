#!/bin/bash
# Makes this VM a part of a Ray cluster. Written by launcher; safe to run again after a reboot.
set -u
umask 077
dir="${TMPDIR:-/tmp}/launcher"
mkdir -p "$dir" && cd "$dir" || exit 1
cat > raynode.py <<'END_OF_RAYNODE'
(the text of raynode.py)
END_OF_RAYNODE
cat > config.json <<'END_OF_CONFIG'
{
 "chips_per_host": 4,
 "packages": {
  "ray": "2.60.0"
 },
 "python": "3.11.7"
}
END_OF_CONFIG

interpreter() {  # the image's own when it has the version, else one that uv fetches
  if [ "$(python3 -c 'import platform; print(platform.python_version())')" = 3.11.7 ]; then
    command -v python3
  else
    echo 3.11.7
  fi
}

install() {  # an interpreter and packages of the coordinator's versions; the image stays as it is
  export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1  # the same wish, in newer and older words
  python3 -m pip --version >/dev/null ||
    { apt-get update -q && apt-get install -y -q python3-pip; }
  python3 -m pip install --quiet --upgrade --target uv uv &&
    PYTHONPATH=uv python3 -m uv venv --quiet --clear --python "$(interpreter)" venv &&
    PYTHONPATH=uv python3 -m uv pip install --quiet --compile-bytecode --python venv/bin/python \
      'ray[default]==2.60.0' 'jax[tpu]==0.10.2'
}

python=python3
if ! why=$("$python" raynode.py check config.json 2>&1); then
  echo "launcher: preparing Python 3.11.7 ($why)"
  install || { echo "launcher: installation failed"; exit 1; }
  python="$dir/venv/bin/python"
fi
nohup "$python" raynode.py host config.json &
