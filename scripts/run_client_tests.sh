#!/usr/bin/env bash
# Usage: run_client_tests.sh [--long | costs | others]
#   --long  2,500 generated requests against openapi.json instead of 600, and 500 stop-string cases instead of 60
#   costs   those alone that measure the server's CPU time, which a build beside them falsifies; others: all but those
# Clients for Python and Node.js (OpenAI's and Anthropic's packages and what is built on them) and schemathesis, against `volley serve` with the pocket models
# (VOLLEY_PROGRAM, else the release build), and the attacks of tests/data/hostile. Appends "passed failed" to the file that VOLLEY_TEST_TOTALS names, if any.
set -euo pipefail
cd "$(dirname "$0")/.."

export VOLLEY_PROGRAM=${VOLLEY_PROGRAM:-$PWD/build/cpu/bin/volley}
[ -x "$VOLLEY_PROGRAM" ] || { echo "run_client_tests: no $VOLLEY_PROGRAM: run \`make build\` first" >&2; exit 1; }
costs=tests/clients/test_cost.py
tests=(tests/clients tests/hostile)
node=(tests/clients/node/*.test.mjs)
case ${1:-} in
  --long) export VOLLEY_API_CASES=2500 VOLLEY_STOP_CASES=500 ;;
  costs) tests=("$costs") node=() ;;
  others) tests+=("--ignore=$costs") ;;
esac
scripts/setup-clients.sh

status=0
python_log=build/clients/python.log
node_log=build/clients/node.log
# The tests' caches belong into build/ too.
export PYTHONDONTWRITEBYTECODE=1
build/clients/venv/bin/python -m pytest -q -p no:cacheprovider --durations=5 "${tests[@]}" </dev/null 2>&1 |
  tee "$python_log" || status=$?
echo "# pass 0" >"$node_log"
[ ${#node[@]} -eq 0 ] || node --test "${node[@]}" </dev/null 2>&1 | tee "$node_log" || status=$?

# pytest's summary: "2 failed, 130 passed, 1 error in 60.12s". Node's, in either of its forms: "# pass 3", "ℹ pass 3".
pytest_count() { sed -nE "s/^.*[^0-9]?\b([0-9]+) $1.* in [0-9.]+s.*\$/\\1/p" "$python_log" | tail -1; }
node_count() { sed -nE "s/^(#|ℹ) $1 ([0-9]+)\$/\\2/p" "$node_log" | tail -1; }
passed=$(pytest_count passed)
[ -n "$passed" ] && [ -n "$(node_count pass)" ] || { echo "run_client_tests: a suite gave no summary" >&2; exit 1; }
failed=$(($(pytest_count failed | grep . || echo 0) + $(pytest_count error | grep . || echo 0) + $(node_count fail | grep . || echo 0)))
passed=$((passed + $(node_count pass)))
if [ -n "${VOLLEY_TEST_TOTALS:-}" ]; then echo "$passed $failed" >>"$VOLLEY_TEST_TOTALS"; fi
exit "$status"
