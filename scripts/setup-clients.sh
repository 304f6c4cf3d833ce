#!/usr/bin/env bash
# Installs what `make test-clients` needs and is missing: Python's venv, Node.js, and the packages that the lists in
# tests/clients, tests/clients/node and tests/clients/agents pin, these below build/clients.
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
python_packages() {  # LIST VENV INSTALLED
  if cmp -s "$1" "$3"; then return; fi
  python3 -m venv --clear "$2"
  "$2/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile -r "$1"
  cp "$1" "$3"
}
node_packages() {  # SOURCE FOLDER
  if cmp -s "$1/package-lock.json" "$2/installed.json"; then return; fi
  mkdir -p "$2"
  cp "$1/package.json" "$1/package-lock.json" "$2/"
  npm ci --prefix "$2" --ignore-scripts --no-audit --no-fund --loglevel=error
  cp "$1/package-lock.json" "$2/installed.json"
}

folder=build/clients
mkdir -p "$folder"
python_packages tests/clients/requirements.txt "$folder/venv" "$folder/installed.txt"
node_packages tests/clients/node "$folder/node"
node_packages tests/clients/agents "$folder/agents"
if python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))'; then
  python_packages tests/clients/agents/aider.txt "$folder/agents/aider" "$folder/agents/aider-installed.txt"
fi
