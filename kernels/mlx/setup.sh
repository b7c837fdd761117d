#!/usr/bin/env bash
# Makes the stock mlx-rs crate build on Linux, and does nothing on macOS, where it builds by itself.
#
#   kernels/mlx/setup.sh [--verbose]
#
# Owns: a cache directory per version, target and content of this folder, holding MLX's wheel (libmlx.so), mlx-c
# compiled against it and the Rust bindings; and .cargo/config.toml, which points cargo there.
# Refuses: to change a finished cache entry, to use a file whose SHA-256 it does not know, to install anything
# unless it is root on a Debian-like system. A run that was cut short leaves no entry behind; the next one starts over.
set -euo pipefail

readonly MLX_VERSION=0.32.2 MLX_SYS_VERSION=0.7.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
workspace=$(cd "$here/../.." && pwd)
verbose=0
[ "${1:-}" = --verbose ] && verbose=1

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
# Runs a step with its output kept aside, shown only when the step fails or --verbose asks.
step() {
  local what=$1 began log; shift
  began=$(date +%s); log=$work/step.log
  say "$what"
  if [ "$verbose" = 1 ]; then "$@" || die "failed: $what"
  elif ! "$@" >"$log" 2>&1; then tail -n 40 "$log" >&2; die "failed: $what (above: the end of its output)"; fi
  [ "$verbose" = 0 ] || say "  took $(( $(date +%s) - began )) s"
}

case $(uname -s) in
  Darwin)
    xcrun --find metal >/dev/null 2>&1 ||
      die "Xcode's Metal compiler is missing: install Xcode, then run: xcodebuild -downloadComponent MetalToolchain"
    command -v cmake >/dev/null || die "cmake is missing: install it with: brew install cmake"
    exit 0 ;;
  Linux) ;;
  *) die "unsupported system $(uname -s): Sanctum runs on Linux and macOS" ;;
esac
command -v cargo >/dev/null || die "cargo is missing: install Rust from https://rustup.rs"

# --- what must be on the machine -----------------------------------------------------------------------------
has_std_format() { printf '#include <version>\n#ifndef __cpp_lib_format\n#error\n#endif\n' | c++ -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; }
missing_packages() {
  command -v c++ >/dev/null || echo g++
  command -v make >/dev/null || echo make
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
  { ls /usr/lib/llvm-*/lib/libclang.so* /usr/lib/*-linux-gnu/libclang*.so* /usr/lib64/libclang.so* "${LIBCLANG_PATH:-/nonexistent}"/libclang* 2>/dev/null || true; } |
    grep -q . || echo libclang-dev
  if command -v c++ >/dev/null && ! has_std_format && ! [ -e /usr/include/fmt/format.h ]; then echo libfmt-dev; fi
}
glibc=$(ldd --version 2>/dev/null | sed -n '1s/.* \([0-9]*\.[0-9]*\)$/\1/p')
if [ -n "$glibc" ] && [ "$(printf '2.35\n%s\n' "$glibc" | sort -V | head -n 1)" != 2.35 ]; then
  die "MLX's wheel needs glibc 2.35 or newer, this system has $glibc (Debian 12, Ubuntu 22.04 or later have it)"
fi
target=$(rustc -vV | sed -n 's/^host: //p')
case $target in
  x86_64-*-linux-gnu) float16=(-mavx512fp16) ;; # clang parses _Float16 only with it; no code is generated
  aarch64-*-linux-gnu) float16=() ;;
  *) die "unsupported target $target: MLX has wheels for x86_64 and aarch64 Linux with glibc" ;;
esac

# --- the cache entry -----------------------------------------------------------------------------------------
root=${SANCTUM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sanctum}
inputs=$(cat "$here"/{half.h,format.h,mach.c,requirements-cpu.txt,setup.sh,bindings/src/main.rs,bindings/Cargo.lock} | sha256sum | cut -c1-12)
entry=$root/mlx-$MLX_VERSION-sys-$MLX_SYS_VERSION-$target-$inputs

build_entry() {
  local packages
  packages=$(missing_packages | tr '\n' ' ')
  if [ -n "${packages// /}" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      # shellcheck disable=SC2086 # a list of words
      step "installing $packages" bash -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages"
    else
      die "these packages are missing: $packages(Debian names). Install them, for example with: sudo apt-get install $packages"
    fi
  fi
  if ! python3 -m pip --version >/dev/null 2>&1; then die "python3 has no pip: install python3-pip"; fi

  mkdir -p "$work"/{wheel,gen,lib,wheels}
  step "downloading MLX $MLX_VERSION" python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --only-binary :all: --require-hashes --dest "$work/wheels" --requirement "$here/requirements-cpu.txt"
  # The whole tree: libmlx.so finds its BLAS beside itself.
  step "unpacking it" python3 -m zipfile -e "$work"/wheels/*.whl "$work/wheel"

  step "fetching crates" cargo fetch --quiet --locked --target "$target" --manifest-path "$workspace/Cargo.toml"
  local crate
  crate=$(cargo metadata --locked --format-version 1 --filter-platform "$target" --manifest-path "$workspace/Cargo.toml" |
    python3 -c 'import json, os, sys
for p in json.load(sys.stdin)["packages"]:
    if p["name"] == "mlx-sys" and p["version"] == sys.argv[1]: print(os.path.dirname(p["manifest_path"]))' "$MLX_SYS_VERSION")
  [ -n "$crate" ] || die "Cargo.lock has no mlx-sys $MLX_SYS_VERSION: this script and Cargo.toml disagree"

  local include="-include $here/half.h"
  has_std_format || include="$include -include $here/format.h"
  step "configuring mlx-c" cmake -S "$crate/src/mlx-c" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DMLX_C_USE_SYSTEM_MLX=ON -DMLX_C_BUILD_EXAMPLES=OFF \
    -DMLX_DIR="$work/wheel/mlx/share/cmake/MLX" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=14 \
    -DCMAKE_CXX_FLAGS="$include"
  step "compiling mlx-c" ninja -C "$work/build"
  mv "$work/build/libmlxc.a" "$work/lib/"
  cc -O2 -fPIC -c "$here/mach.c" -o "$work/mach.o"
  ar rcs "$work/lib/libmachshim.a" "$work/mach.o"

  step "building the bindings generator" env MLX_SYS_DIR="$crate" cargo build --quiet --locked \
    --manifest-path "$here/bindings/Cargo.toml" --target-dir "$work/bindings"
  step "writing the bindings" "$work/bindings/debug/sanctum-mlx-bindings" "$crate/src/mlx-c" \
    "$work/gen/bindings.rs" -include "$here/half.h" "${float16[@]}"
  rm -rf "$work"/{build,bindings,wheels,mach.o,step.log}
}

if ! [ -e "$entry/complete" ]; then
  mkdir -p "$root"
  exec 9>"$root/lock"
  if ! flock -n 9; then say "another setup is running: waiting for it"; flock 9; fi
  if ! [ -e "$entry/complete" ]; then
    # Built in place under the lock, because the paths are compiled in; "complete" is written last.
    rm -rf "$entry"
    work=$entry
    build_entry
    touch "$entry/complete"
    say "MLX $MLX_VERSION is ready"
  fi
fi

# --- cargo's configuration -----------------------------------------------------------------------------------
mkdir -p "$workspace/.cargo"
config=$workspace/.cargo/config.toml
sed -e "s|@CACHE@|$entry|g" -e "s|@TARGET@|$target|g" -e "s|@MLX@|$MLX_VERSION|g" "$here/cargo-config.toml.in" >"$config.new"
if cmp -s "$config.new" "$config"; then rm "$config.new"; else mv "$config.new" "$config"; fi
