#!/usr/bin/env bash
# Installs what `make test-web` needs and is missing: Node.js, Chromium, and the packages that
# tests/web/package-lock.json pins, those below build/. Apart from scripts/setup.sh, because nobody needs a browser to
# build Volley.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "setup-web-tests: $*" >&2
  exit 1
}

packages=()
node_major=$(node --version 2>/dev/null | sed -nE 's/^v([0-9]+)\..*/\1/p') || true
if [ "${node_major:-0}" -lt 18 ]; then packages+=(nodejs); fi
command -v npm >/dev/null || packages+=(npm)
[ -x "${VOLLEY_CHROMIUM:-/usr/bin/chromium}" ] || packages+=(chromium fonts-dejavu-core)

if [ "${#packages[@]}" -gt 0 ]; then
  command -v apt-get >/dev/null ||
    fail "install Node.js 18 or newer, npm and Chromium (VOLLEY_CHROMIUM names its program)"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing packages: ${packages[*]}: run this as root or install sudo"
    as_root=(sudo)
  fi
  echo "setup-web-tests: installing ${packages[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update </dev/null
  "${as_root[@]}" apt-get install -y --no-install-recommends "${packages[@]}" </dev/null
fi

folder=build/web-tests
if ! cmp -s tests/web/package-lock.json "$folder/installed.json"; then
  mkdir -p "$folder"
  cp tests/web/package.json tests/web/package-lock.json "$folder/"
  npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel=error
  cp tests/web/package-lock.json "$folder/installed.json"
fi
