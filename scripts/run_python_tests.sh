#!/usr/bin/env bash
# Usage: run_python_tests.sh [PRESET]   (cpu)
# Builds the wheel (make_wheel.sh), installs it into a virtual environment below build/python, checks the types of the
# package and of its tests, and runs the tests. Appends "passed failed" to the file that VOLLEY_TEST_TOTALS names, if any.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "run_python_tests: $*" >&2
  exit 1
}

scripts/make_wheel.sh "${1:-cpu}"

# What is installed is remembered as a copy of the list it was installed from.
folder=$PWD/build/python
python=$folder/venv/bin/python
mkdir -p "$folder"
if ! cmp -s python/requirements-test.txt "$folder/installed.txt"; then
  python3 -m venv --clear "$folder/venv"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps -r python/requirements-test.txt
  cp python/requirements-test.txt "$folder/installed.txt"
fi
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/wheels/volley-*.whl

# Caches belong into build/ too, and nothing may come from the source folder instead of the wheel.
export PYTHONDONTWRITEBYTECODE=1 MYPY_CACHE_DIR=$folder/mypy XDG_CACHE_HOME=$folder/cache
status=0
log=$folder/tests.log
"$python" -m mypy --strict -p volley || status=$?
"$python" -m mypy --strict python/tests || status=$?
types=$status
"$python" -m pytest -q -p no:cacheprovider --durations=5 python/tests </dev/null 2>&1 | tee "$log" || status=$?

# pytest's summary: "2 failed, 14 passed, 1 error in 9.12s".
count() { sed -nE "s/^.*\b([0-9]+) $1.* in [0-9.]+s.*\$/\\1/p" "$log" | tail -1; }
passed=$(count passed)
[ -n "$passed" ] || fail "pytest gave no summary"
failed=$(($(count failed | grep . || echo 0) + $(count error | grep . || echo 0)))
if [ "$types" -ne 0 ]; then failed=$((failed + 1)); else passed=$((passed + 1)); fi
if [ -n "${VOLLEY_TEST_TOTALS:-}" ]; then echo "$passed $failed" >>"$VOLLEY_TEST_TOTALS"; fi
exit "$status"
