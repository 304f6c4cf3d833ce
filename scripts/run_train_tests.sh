#!/usr/bin/env bash
# Installs volley-train (train/) with what it needs into a virtual environment below build/train, unless it is there
# already, and runs its tests. PyPI's PyTorch does not start without the CUDA libraries that it is linked to, GPU or not,
# so these come too (4 GB on disk in all), and no others. Appends "passed failed" to the file that
# VOLLEY_TEST_TOTALS names, if any.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/build/train
python=$folder/venv/bin/python
wanted="torch==2.15.0 numpy==2.4.6 safetensors==0.8.0 tokenizers==0.23.3 jinja2==3.1.6 markupsafe==3.0.4
  filelock==4.3.1 fsspec==2026.9.0 sympy==1.14.0 mpmath==1.3.0 networkx==3.6.1 typing_extensions==4.16.0
  pytest==9.2.0 pluggy==1.7.0 iniconfig==2.3.1 packaging==26.4 pygments==2.21.0
  nvidia-cublas==13.4.1.3 nvidia-cuda-cupti==13.2.86 nvidia-cuda-nvrtc==13.2.86 nvidia-cuda-runtime==13.2.86
  nvidia-cudnn-cu13==9.26.0.51 nvidia-cufft==12.2.0.57 nvidia-cufile==1.17.1.22 nvidia-cusparse==12.7.10.12
  nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.30.7 nvidia-nvjitlink==13.2.86 nvidia-nvshmem-cu13==3.7.2"
if [ "$(cat "$folder/installed.txt" 2>/dev/null)" != "$wanted" ]; then
  mkdir -p "$folder"
  python3 -m venv --clear "$folder/venv"
  # shellcheck disable=SC2086
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps $wanted
  echo "$wanted" >"$folder/installed.txt"
fi
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/train
status=0
log=$folder/tests.log
"$python" -m pytest -q -p no:cacheprovider --durations=3 train/tests </dev/null 2>&1 | tee "$log" || status=$?
if [ -n "${VOLLEY_TEST_TOTALS:-}" ]; then
  count() { sed -nE "s/^.*\b([0-9]+) $1.* in [0-9.]+s.*\$/\\1/p" "$log" | tail -1; }
  echo "$(count passed | grep . || echo 0) $(count failed | grep . || echo 0)" >>"$VOLLEY_TEST_TOTALS"
fi
exit "$status"
