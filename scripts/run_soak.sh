#!/usr/bin/env bash
# Usage: run_soak.sh [DURATION [OPTIONS OF soak.py]]
# The soak test (tests/soak/soak.py) with the release build, for DURATION seconds (3600). Its plots need matplotlib, which
# goes to build/soak/venv.
set -euo pipefail
cd "$(dirname "$0")/.."

export VOLLEY_PROGRAM=${VOLLEY_PROGRAM:-$PWD/build/cpu/bin/volley} PYTHONDONTWRITEBYTECODE=1
[ -x "$VOLLEY_PROGRAM" ] || { echo "run_soak: no $VOLLEY_PROGRAM: run \`make build\` first" >&2; exit 1; }
folder=build/soak
mkdir -p "$folder"
if ! cmp -s scripts/requirements-plots.txt "$folder/installed.txt"; then
  python3 -m venv --clear "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r scripts/requirements-plots.txt
  cp scripts/requirements-plots.txt "$folder/installed.txt"
fi
exec "$folder/venv/bin/python" tests/soak/soak.py --duration "${1:-3600}" "${@:2}"
