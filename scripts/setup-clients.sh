#!/usr/bin/env bash
# Installs what `make test-clients` needs and is missing: Python's venv, Node.js, and the packages that
# tests/clients/requirements.txt and tests/clients/node/package-lock.json pin, these below build/clients.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
command -v python3 >/dev/null || packages+=(python3)
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
node_major=$(node --version 2>/dev/null | sed -nE 's/^v([0-9]+)\..*/\1/p') || true
if [ "${node_major:-0}" -lt 18 ]; then packages+=(nodejs); fi
command -v npm >/dev/null || packages+=(npm)

scripts/install-packages.sh "Python 3.10 or newer with venv, Node.js 18 or newer, and npm" "${packages[@]}"

# What is installed is remembered as a copy of the list it was installed from.
folder=build/clients
mkdir -p "$folder/node"
if ! cmp -s tests/clients/requirements.txt "$folder/installed.txt"; then
  python3 -m venv --clear "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r tests/clients/requirements.txt
  cp tests/clients/requirements.txt "$folder/installed.txt"
fi
if ! cmp -s tests/clients/node/package-lock.json "$folder/node/installed.json"; then
  cp tests/clients/node/package.json tests/clients/node/package-lock.json "$folder/node/"
  npm ci --prefix "$folder/node" --ignore-scripts --no-audit --no-fund --loglevel=error
  cp tests/clients/node/package-lock.json "$folder/node/installed.json"
fi
