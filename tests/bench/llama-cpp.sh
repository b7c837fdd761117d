#!/bin/sh
# Builds llama.cpp's own benchmarks from its PyPI source package, once, and prints the directory of the programs.
#
#   tests/bench/llama-cpp.sh CACHE
#
# Refuses a source package whose SHA-256 is not the pinned one. A cut build leaves no entry that looks finished.
set -eu
VERSION=0.3.36
SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
cache=$1/llama-cpp-python-$VERSION

say() { printf 'bench: %s\n' "$*" >&2; }
if ! [ -e "$cache/complete" ]; then
  command -v cmake >/dev/null && command -v ninja >/dev/null ||
    { say "cmake and ninja are missing: install them (on Debian: cmake ninja-build)"; exit 1; }
  rm -rf "$cache"
  mkdir -p "$cache"
  say "downloading llama.cpp (llama-cpp-python $VERSION, 77 MB)"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
    --dest "$cache" "llama-cpp-python==$VERSION" >&2
  sdist=$cache/llama_cpp_python-$VERSION.tar.gz
  python3 - "$sdist" "$SHA256" <<'PYTHON'
import hashlib, sys
found = hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest()
if found != sys.argv[2]:
    sys.exit(f"bench: {sys.argv[1]}: SHA-256 is {found}, expected {sys.argv[2]}")
PYTHON
  tar -xzf "$sdist" -C "$cache"
  say "building it (about ten minutes on two cores)"
  log=$cache/build.log
  {
    nice cmake -S "$cache/llama_cpp_python-$VERSION/vendor/llama.cpp" -B "$cache/build" -G Ninja \
      -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
      -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF &&
      nice ninja -C "$cache/build" llama-bench llama-batched-bench
  } >"$log" 2>&1 || { tail -n 30 "$log" >&2; say "the build failed"; exit 1; }
  rm -f "$sdist"
  touch "$cache/complete"
fi
echo "$cache/build/bin"
