#!/bin/sh
# Makes a virtual environment for a requirements file, once per content of the file, and prints its python.
#
#   tests/bench/python-venv.sh CACHE REQUIREMENTS
set -eu
cache=$1
requirements=$2
key=$(cksum <"$requirements" | tr -d ' ')-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
name=$(basename "$requirements" .txt)
venv=$cache/venv-$name-$key
if ! [ -e "$venv/complete" ]; then
  mkdir -p "$cache"
  # Two tests may want it at once: the first one makes it, the other waits for the directory's lock to go.
  while ! mkdir "$venv.lock" 2>/dev/null; do
    if [ -e "$venv/complete" ]; then break; fi
    owner=$(cat "$venv.lock/pid" 2>/dev/null || echo)
    if [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; then rm -rf "$venv.lock"; fi
    sleep 1
  done
  if ! [ -e "$venv/complete" ]; then
    echo $$ >"$venv.lock/pid"
    trap 'rm -rf "$venv.lock"' EXIT
    printf 'python: installing %s\n' "$name" >&2
    rm -rf "$venv"
    python3 -m venv "$venv" >&2 || { echo "python3 cannot make a venv (on Debian: python3-venv)" >&2; exit 1; }
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements" >&2
    touch "$venv/complete"
  else
    rm -rf "$venv.lock"
  fi
fi
echo "$venv/bin/python"
