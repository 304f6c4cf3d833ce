#!/usr/bin/env bash
# What takes too long for every change: all tests, whole where they otherwise take a part of their requests, clients
# with more cases, all tests under AddressSanitizer, fuzzing, the neighbour test, the soak test and the lists of what a
# build is made of. Every part runs even if one before it fails; the last line says which did. Minutes of fuzzing a target
# and of soaking: VOLLEY_FUZZ_MINUTES (10), VOLLEY_SOAK_MINUTES (60).
set -uo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

failed=()
part() {
  echo "== $*"
  "$@" || failed+=("$*")
}
part make test
for test in accuracy data_parallel family_invariance grammar invariance lifecycle seen; do
  part env VOLLEY_TEST_MATRIX=full "build/cpu/tests/${test}_test"
done
part scripts/run_client_tests.sh --long
part make test-train
part make asan
part make fuzz SECONDS=$((${VOLLEY_FUZZ_MINUTES:-10} * 60))
part make neighbours
part make soak DURATION=$((${VOLLEY_SOAK_MINUTES:-60} * 60))
part make sbom
if [ "${#failed[@]}" -gt 0 ]; then
  printf 'nightly: failed: %s\n' "${failed[@]}"
  exit 1
fi
echo "nightly: all passed"
