#!/usr/bin/env bash
# The web page's tests: its modules in Node.js, the page in Chromium against a scripted server and against a real
# `volley serve` with the pocket models (VOLLEY_PROGRAM, else the release build). With VOLLEY_SCREENSHOTS=FOLDER it also
# leaves pictures of the page there. Appends "passed failed" to the file that VOLLEY_TEST_TOTALS names, if any.
set -euo pipefail
cd "$(dirname "$0")/.."

export VOLLEY_PROGRAM=${VOLLEY_PROGRAM:-$PWD/build/cpu/bin/volley}
[ -x "$VOLLEY_PROGRAM" ] || { echo "run_web_tests: no $VOLLEY_PROGRAM: run \`make build\` first" >&2; exit 1; }
scripts/setup-web-tests.sh

log=build/web-tests/tests.log
status=0
node --test tests/web/*.test.mjs </dev/null 2>&1 | tee "$log" || status=$?

# Node's summary, in either of its forms: "# pass 3" or "ℹ pass 3".
count() { sed -nE "s/^(#|ℹ) $1 ([0-9]+)\$/\\2/p" "$log" | tail -1; }
passed=$(count pass)
failed=$(count fail)
[ -n "$passed" ] || { echo "run_web_tests: node gave no summary" >&2; exit 1; }
if [ -n "${VOLLEY_TEST_TOTALS:-}" ]; then echo "$passed $failed" >>"$VOLLEY_TEST_TOTALS"; fi
exit "$status"
