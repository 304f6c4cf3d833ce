#!/usr/bin/env bash
# Usage: make_wheel.sh [PRESET]   (cpu)
# Builds the wheel of the Python package around the engine in build/PRESET, with pinned tools in a virtual environment below
# build/wheel. It is the only one in build/wheels afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "make_wheel: $*" >&2
  exit 1
}

engine=$PWD/build/${1:-cpu}
[ -f "$engine/build.ninja" ] || fail "no $engine: run \`make build\` first"

packages=()
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
  packages+=(python3-dev)
scripts/install-packages.sh "Python 3.10 or newer with venv and its headers" "${packages[@]}"

# The tools, as the tests' list pins them. What is installed is remembered as a copy of what it was installed from.
folder=$PWD/build/wheel
python=$folder/venv/bin/python
mkdir -p "$folder"
awk '/^[a-z]/ { keep = /^(build|nanobind|packaging|pathspec|pyproject-hooks|scikit-build-core|tomli)==/ } keep' \
  python/requirements-test.txt >"$folder/requirements.txt"
if ! cmp -s "$folder/requirements.txt" "$folder/installed.txt"; then
  python3 -m venv --clear "$folder/venv"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$folder/requirements.txt"
  cp "$folder/requirements.txt" "$folder/installed.txt"
fi

rm -rf build/wheels
"$python" -m build --wheel --no-isolation --outdir build/wheels -C build-dir="$folder/build" \
  -C cmake.define.VOLLEY_BUILD_DIR="$engine" python >"$folder/wheel.log" 2>&1 ||
  { tail -40 "$folder/wheel.log" >&2; fail "the wheel could not be built; $folder/wheel.log holds everything"; }
echo "$(echo build/wheels/volley-*.whl): pip install it"
