#!/usr/bin/env bash
# Usage: run_tests.sh PRESET [--only REGEX]
#   --only REGEX  the tests whose name or label matches, and no others are built
# Builds and runs the tests of one CMake preset, then lists what was skipped and why. Appends "passed failed" to the
# file that VOLLEY_TEST_TOTALS names, if any, so that a caller can add several runs up. VOLLEY_BUILD_ONLY: only builds.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
only=
if [ "${2:-}" = --only ]; then only=$3; fi
build=build/$preset
jobs=$(nproc)

cmake --preset "$preset" >"$build.configure.log" 2>&1 || {
  cat "$build.configure.log" >&2
  echo "run_tests: cmake could not configure the preset $preset; \`make setup\` installs what the build needs" >&2
  exit 1
}

select=()
if [ -n "$only" ]; then
  list() { ctest --test-dir "$build" -N "$@" | sed -nE 's/^ *Test +#[0-9]+: (.*)$/\1/p'; }
  names=$({ list -L "$only"; list -R "$only"; } | sort -u)
  [ -n "$names" ] || { echo "run_tests: no test of $preset matches $only" >&2; exit 1; }
  # A test's name is its build target; a few tests run a program of another name, so ninja is asked which it knows.
  targets=$(ninja -C "$build" -t targets all | sed -nE 's/^([^/:]+): phony$/\1/p')
  ninja -C "$build" -j "$jobs" $(comm -12 <(echo "$names") <(sort -u <<<"$targets"))
  select+=(-R "^($(paste -sd'|' <<<"$names"))\$")
else
  ninja -C "$build" -j "$jobs"
fi

if [ -n "${VOLLEY_BUILD_ONLY:-}" ]; then exit; fi

log=$build/tests.log
status=0
# ThreadSanitizer's shadow memory has fixed addresses, which address randomisation of newer kernels runs into. Some
# containers forbid to switch it off.
run=()
fixed=(setarch "$(uname -m)" --addr-no-randomize)
if [ "$preset" = tsan ] && "${fixed[@]}" true 2>/dev/null; then run=("${fixed[@]}"); fi
if [ "$preset" = tsan ]; then export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.supp ${TSAN_OPTIONS:-}"; fi
if [ "$preset" = asan ]; then
  export LSAN_OPTIONS="suppressions=$PWD/scripts/lsan.supp print_suppressions=0 ${LSAN_OPTIONS:-}"
fi
tests() { "${run[@]}" ctest --test-dir "$build" --output-on-failure "$@" </dev/null; }
# Tests of processes that hang or die wait most of the time, which under a sanitizer nothing is measured against.
if [ "$preset" = asan ]; then jobs=$((jobs + 1)); fi
tests -j "$jobs" "${select[@]}" | tee "$log" || status=$?
details=$build/details.log
cp "$build/Testing/Temporary/LastTest.log" "$details"
count() { sed -nE "s/^[0-9]+% tests passed, ([0-9]+) tests failed out of ([0-9]+).*/\\$1/p" "$2" | tail -1; }
failed=$(count 1 "$log") total=$(count 2 "$log")

# A busy machine can make a test too slow for once. Where nothing but time ran out, it runs again, alone, and is named.
shaky=
if [ "${failed:-0}" -gt 0 ] && [ "$(grep -c '\*\*\*Timeout' "$log")" -eq "$failed" ]; then
  shaky=$(sed -nE 's/^[[:space:]]+[0-9]+ - ([A-Za-z0-9_]+) \(.*/\1/p' "$log" | sort -u | paste -sd' ')
  status=0
  tests --rerun-failed | tee "$log.again" || status=$?
  failed=$(count 1 "$log.again")
fi
if [ -n "${VOLLEY_TEST_TOTALS:-}" ] && [ -n "$failed" ]; then echo "$((total - failed)) $failed" >>"$VOLLEY_TEST_TOTALS"; fi

# GoogleTest prints "FILE:LINE: Skipped", the reason, and then the test's name.
skipped=$(awk '/: Skipped$/ { getline reason; next }
               /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ { sub(/^\[  SKIPPED \] /, ""); sub(/ \([0-9]+ ms\)$/, "")
                                                     print "  " $0 ": " reason }' \
  "$details" | sort -u)
if [ -n "$skipped" ]; then
  echo "Skipped in $preset ($(wc -l <<<"$skipped") cases):"
  echo "$skipped"
else
  echo "Skipped in $preset: none"
fi
[ -n "$failed" ] || { echo "run_tests: ctest gave no summary" >&2; exit 1; }
if [ -n "$shaky" ]; then echo "Too slow in $preset beside other tests, and ran again alone: $shaky"; fi
echo "$preset: $((total - failed)) of $total tests passed"
exit "$status"
