#!/usr/bin/env bash
# Installs what the build needs and is missing: system packages (apt) and a Rust toolchain. Does nothing, and needs
# neither network nor root, when everything is there. Debian 12 is what this is tried on; the names for Ubuntu 24.04
# follow its archive.
set -euo pipefail

readonly MIN_CARGO_MINOR=87 # cargo 1.87: what llguidance and toktrie ask for

fail() {
  echo "setup: $*" >&2
  exit 1
}

# Where Rust toolchains lie that are not on the PATH: rustup's folder, and Ubuntu's versioned packages.
PATH="${HOME:-/root}/.cargo/bin:$PATH"
for folder in /usr/lib/rust-1.*/bin; do
  if [ -d "$folder" ]; then PATH="$folder:$PATH"; fi
done

# cargo_fits PROGRAM: whether it runs and is new enough.
cargo_fits() {
  local version minor
  version=$("$1" --version 2>/dev/null) || return 1
  minor=$(sed -nE 's/^cargo 1\.([0-9]+)\..*/\1/p' <<<"$version")
  [ -n "$minor" ] && [ "$minor" -ge "$MIN_CARGO_MINOR" ]
}

. /etc/os-release 2>/dev/null || true
boost=libboost-dev
case "${ID:-}:${VERSION_ID:-}" in
  debian:12) boost=libboost1.81-dev ;;
  ubuntu:24.04) boost=libboost1.83-dev ;;
esac
packages=(g++ cmake ninja-build make pkg-config ccache mold clang-format ca-certificates git "$boost" libspdlog-dev
  libcli11-dev nlohmann-json3-dev prometheus-cpp-dev libgtest-dev libgmock-dev libhwy-dev libcurl4-openssl-dev
  libedit-dev libssl-dev libyaml-cpp-dev libzmq3-dev cppzmq-dev)

missing=()
if ! command -v dpkg-query >/dev/null; then
  for program in g++ cmake ninja pkg-config; do
    command -v "$program" >/dev/null ||
      fail "no $program, and this system has no apt: install what these Debian packages hold: ${packages[*]}"
  done
else
  installed=$(dpkg-query -W -f='${Package}:${Status}\n' "${packages[@]}" 2>/dev/null |
    sed -n 's/:install ok installed$//p') || true
  for package in "${packages[@]}"; do
    grep -qxF "$package" <<<"$installed" || missing+=("$package")
  done
fi

need_cargo=0
cargo_fits cargo || need_cargo=1

if [ "${#missing[@]}" -eq 0 ] && [ "$need_cargo" -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null ||
    fail "missing packages: ${missing[*]:-} $([ $need_cargo = 1 ] && echo "and cargo >= 1.$MIN_CARGO_MINOR"): run this as root or install sudo"
  as_root=(sudo)
fi

export DEBIAN_FRONTEND=noninteractive
apt_install() {
  "${as_root[@]}" apt-get install -y --no-install-recommends "$@" </dev/null
}

if command -v apt-get >/dev/null; then
  echo "setup: installing ${missing[*]:-}$([ $need_cargo = 1 ] && echo " Rust")" >&2
  "${as_root[@]}" apt-get update </dev/null
  if [ "${#missing[@]}" -gt 0 ]; then
    apt_install "${missing[@]}"
  fi
  if [ "$need_cargo" -eq 1 ]; then
    # The newest packaged toolchain: Debian's cargo-web, Ubuntu's cargo-1.NN, or plain cargo where it is new enough.
    newest=$(apt-cache search --names-only '^cargo-1\.[0-9]+$' | awk '{print $1}' | sort -t. -k2 -n | tail -1)
    if apt-cache show cargo-web >/dev/null 2>&1; then
      apt_install cargo-web rustc-web
    elif [ -n "$newest" ] && [ "${newest#cargo-1.}" -ge "$MIN_CARGO_MINOR" ]; then
      apt_install "$newest" "rustc-1.${newest#cargo-1.}"
      PATH="/usr/lib/rust-1.${newest#cargo-1.}/bin:$PATH"
    else
      apt_install cargo rustc
    fi
    hash -r
  fi
fi
cargo_fits cargo ||
  fail "no cargo >= 1.$MIN_CARGO_MINOR found: install Rust with rustup and run this again"
