#!/usr/bin/env bash
# Fetches the parts of CUDA 13 that the build needs, as Python wheels, into build/cuda-toolkit (about 1 GB). For machines
# without a toolkit; does nothing when it is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
home=build/cuda-toolkit
if [ -x "$home/bin/nvcc" ]; then exit 0; fi
packages=()
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
scripts/install-packages.sh "Python 3 with venv" "${packages[@]}"
python3 -m venv build/cuda-venv
build/cuda-venv/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r scripts/requirements-cuda.txt
root=$(echo "$PWD"/build/cuda-venv/lib/python3*/site-packages/nvidia/cu13)
# The wheels lack what a toolkit has by habit: lib64, and library names without a version.
ln -sfn lib "$root/lib64"
for library in "$root"/lib/lib*.so.*; do
  name=$(basename "$library")
  ln -sfn "$name" "$root/lib/${name%%.so.*}.so"
done
ln -sfn "$root" "$home"
echo "CUDA toolkit: $home"
