#!/usr/bin/env bash
# Usage: run_fuzz.sh [SECONDS [TARGET...]]
# Builds the fuzz targets (all of tests/fuzz) with a clang that has libFuzzer, installing clang 14 where there is none,
# and runs each for SECONDS (60) from its seeds in tests/data/fuzz, as many at once as there are cores. New inputs are
# kept in build/fuzz/corpus, one that fails in build/fuzz/found, and the exit status is 1. Appends "passed failed" to the
# file that VOLLEY_TEST_TOTALS names, if any.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
targets=("${@:2}")
[ "${#targets[@]}" -gt 0 ] || targets=(http bodies safetensors gguf config batch multipart grammar tokenizer pictures nodes)

# The clang++ of its version, if that can make a fuzz target.
has_fuzzer() {
  command -v "clang++-$1" >/dev/null &&
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char *, unsigned long) { return 0; }' |
    "clang++-$1" -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null
}
find_clang() {
  for version in 14 15 16 17 18 19 20 21; do
    if has_fuzzer "$version"; then return; fi
  done
  return 1
}

if [ ! -e build/fuzz/build.ninja ]; then
  find_clang || scripts/install-packages.sh "clang 14 with libFuzzer" clang-14 libclang-rt-14-dev
  find_clang || { echo "run_fuzz: no clang 14 or newer makes a fuzz target: install its libclang-rt" >&2; exit 1; }
  mkdir -p build
  CC=clang-$version CXX=clang++-$version cmake --preset fuzz >build/fuzz.configure.log || {
    cat build/fuzz.configure.log; exit 1; }
fi
started=$SECONDS
ninja -C build/fuzz -j "$(nproc)" "${targets[@]/#/fuzz_}"
echo "run_fuzz: built in $((SECONDS - started)) s"

fuzz() {
  local target=$1 corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log dictionary=() status=0
  mkdir -p "$corpus" build/fuzz/found
  [ ! -e "tests/data/fuzz/$target.dict" ] || dictionary=("-dict=tests/data/fuzz/$target.dict")
  ASAN_OPTIONS=detect_stack_use_after_return=0 build/fuzz/fuzz/fuzz_"$target" \
    -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$target-" "${dictionary[@]}" "$corpus" "tests/data/fuzz/$target" >"$log" 2>&1 ||
    status=1
  if [ "$status" -ne 0 ]; then
    echo "run_fuzz: $target failed:"
    tail -30 "$log"
  fi
  echo "run_fuzz: $target: $(sed -nE 's/^stat::number_of_executed_units: *//p' "$log") runs," \
    "$(sed -nE 's/^stat::average_exec_per_sec: *//p' "$log") a second"
  return "$status"
}
export -f fuzz
export seconds
failed=0
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {} || touch build/fuzz/failed.{}' || true
for target in "${targets[@]}"; do
  if [ -e "build/fuzz/failed.$target" ]; then failed=$((failed + 1)); rm "build/fuzz/failed.$target"; fi
done
if [ -n "${VOLLEY_TEST_TOTALS:-}" ]; then echo "$((${#targets[@]} - failed)) $failed" >>"$VOLLEY_TEST_TOTALS"; fi
[ "$failed" -eq 0 ]
