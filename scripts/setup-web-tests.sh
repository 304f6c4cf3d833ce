#!/usr/bin/env bash
# Installs what `make test-web` needs and is missing: Node.js, Chromium, and the packages that
# tests/web/package-lock.json pins, those below build/. Apart from scripts/setup.sh, because nobody needs a browser to
# build Volley.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
node_major=$(node --version 2>/dev/null | sed -nE 's/^v([0-9]+)\..*/\1/p') || true
if [ "${node_major:-0}" -lt 18 ]; then packages+=(nodejs); fi
command -v npm >/dev/null || packages+=(npm)
[ -x "${VOLLEY_CHROMIUM:-/usr/bin/chromium}" ] || packages+=(chromium fonts-dejavu-core)

scripts/install-packages.sh "Node.js 18 or newer, npm and Chromium (VOLLEY_CHROMIUM names its program)" "${packages[@]}"

folder=build/web-tests
if ! cmp -s tests/web/package-lock.json "$folder/installed.json"; then
  mkdir -p "$folder"
  cp tests/web/package.json tests/web/package-lock.json "$folder/"
  npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel=error
  cp tests/web/package-lock.json "$folder/installed.json"
fi
