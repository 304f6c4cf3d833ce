#!/usr/bin/env bash
# Checks the types of the suite and of its tests, and runs the tests, whole runs against `volley serve` with the pocket
# models (VOLLEY_PROGRAM, else the release build) among them. Appends "passed failed" to the file that VOLLEY_TEST_TOTALS
# names, if any.
set -euo pipefail
cd "$(dirname "$0")/.."

export VOLLEY_PROGRAM=${VOLLEY_PROGRAM:-$PWD/build/cpu/bin/volley}
[ -x "$VOLLEY_PROGRAM" ] || { echo "run_suite_tests: no $VOLLEY_PROGRAM: run \`make build\` first" >&2; exit 1; }
scripts/setup-suite.sh

folder=$PWD/build/suite
python=$folder/venv/bin/python
# Caches belong into build/ too.
export PYTHONDONTWRITEBYTECODE=1 MYPY_CACHE_DIR=$folder/mypy XDG_CACHE_HOME=$folder/cache
status=0
log=$folder/tests.log
"$python" -m mypy --config-file suite/pyproject.toml -p volley_suite || status=$?
"$python" -m mypy --config-file suite/pyproject.toml suite/tests || status=$?
types=$status
"$python" -m pytest -q -p no:cacheprovider --durations=5 suite/tests </dev/null 2>&1 | tee "$log" || status=$?

# pytest's summary: "2 failed, 14 passed, 1 error in 9.12s".
count() { sed -nE "s/^.*\b([0-9]+) $1.* in [0-9.]+s.*\$/\\1/p" "$log" | tail -1; }
passed=$(count passed)
[ -n "$passed" ] || { echo "run_suite_tests: pytest gave no summary" >&2; exit 1; }
failed=$(($(count failed | grep . || echo 0) + $(count error | grep . || echo 0)))
if [ "$types" -ne 0 ]; then failed=$((failed + 1)); else passed=$((passed + 1)); fi
if [ -n "${VOLLEY_TEST_TOTALS:-}" ]; then echo "$passed $failed" >>"$VOLLEY_TEST_TOTALS"; fi
exit "$status"
