#!/usr/bin/env bash
# Installs the suite (suite/) and what suite/requirements.txt pins into a virtual environment below build/suite, unless
# it is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
scripts/install-packages.sh "Python 3.11 or newer with venv" "${packages[@]}"

# What is installed is remembered as a copy of the list it was installed from.
folder=$PWD/build/suite
python=$folder/venv/bin/python
mkdir -p "$folder"
if ! cmp -s suite/requirements.txt "$folder/installed.txt"; then
  python3 -m venv --clear "$folder/venv"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps -r suite/requirements.txt
  cp suite/requirements.txt "$folder/installed.txt"
fi

# From a copy: the build leaves its folders beside the sources.
rm -rf "$folder/source"
mkdir "$folder/source"
cp -r suite/pyproject.toml suite/volley_suite "$folder/source/"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall "$folder/source"
