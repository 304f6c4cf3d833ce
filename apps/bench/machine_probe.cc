#include "apps/bench/machine_probe.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "base/check.h"

namespace volley::apps {
namespace {

constexpr int64_t kProbeBytes = int64_t{256} << 20;
constexpr int kReadPasses = 8, kFlopPasses = 20;  // the best counts: other programs disturb
constexpr int kIterations = 200000;               // of a flop pass: about a millisecond
// Independent accumulators: at least latency times throughput of a multiply-add, and no more than there are registers.
constexpr int kChains = 12, kWideChains = 24;

// Each takes a value that it returns a function of, so that nothing can be optimised away.
__attribute__((target("avx512f"))) uint64_t read_avx512(const uint64_t* words, int64_t count) {
  __m512i sums[4] = {};
  for (int64_t i = 0; i < count; i += 32) {
    for (int j = 0; j < 4; ++j) sums[j] = _mm512_add_epi64(sums[j], _mm512_load_si512(words + i + 8 * j));
  }
  const __m512i sum = _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, sum);
  return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3] ^ lanes[4] ^ lanes[5] ^ lanes[6] ^ lanes[7];
}

uint64_t read_generic(const uint64_t* words, int64_t count) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < count; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

__attribute__((target("avx512f"))) float multiply_add_avx512(float x) {
  __m512 sums[kWideChains];
  const __m512 a = _mm512_set1_ps(x), b = _mm512_set1_ps(0.5f);
  for (__m512& sum : sums) sum = a;
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kWideChains; ++j) sums[j] = _mm512_fmadd_ps(sums[j], b, a);
  }
  for (int j = 1; j < kWideChains; ++j) sums[0] = _mm512_add_ps(sums[0], sums[j]);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx2,fma"))) float multiply_add_avx2(float x) {
  __m256 sums[kChains];
  const __m256 a = _mm256_set1_ps(x), b = _mm256_set1_ps(0.5f);
  for (__m256& sum : sums) sum = a;
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sums[j] = _mm256_fmadd_ps(sums[j], b, a);
  }
  for (int j = 1; j < kChains; ++j) sums[0] = _mm256_add_ps(sums[0], sums[j]);
  return _mm256_cvtss_f32(sums[0]);
}

float multiply_add_sse(float x) {
  __m128 sums[kChains];
  const __m128 a = _mm_set1_ps(x), b = _mm_set1_ps(0.5f);
  for (__m128& sum : sums) sum = a;
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sums[j] = _mm_add_ps(_mm_mul_ps(sums[j], b), a);
  }
  for (int j = 1; j < kChains; ++j) sums[0] = _mm_add_ps(sums[0], sums[j]);
  return _mm_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) float dot_bf16(float x) {
  __m512 sums[kWideChains];
  const __m512 start = _mm512_set1_ps(x);
  const __m512bh a = _mm512_cvtne2ps_pbh(start, start);
  for (__m512& sum : sums) sum = start;
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kWideChains; ++j) sums[j] = _mm512_dpbf16_ps(sums[j], a, a);
  }
  for (int j = 1; j < kWideChains; ++j) sums[0] = _mm512_add_ps(sums[0], sums[j]);
  return _mm512_cvtss_f32(sums[0]);
}

// Seconds until all threads have run `body(thread)`.
double timed(int threads, const std::function<void(int)>& body) {
  std::vector<std::thread> helpers;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 1; i < threads; ++i) helpers.emplace_back(body, i);
  body(0);
  for (std::thread& helper : helpers) helper.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double best_flops(int threads, float (*kernel)(float), int chains, int flops_per_instruction) {
  std::vector<float> results(static_cast<size_t>(threads));
  double best = 0;
  for (int pass = 0; pass < kFlopPasses; ++pass) {
    const double seconds =
        timed(threads, [&](int i) { results[static_cast<size_t>(i)] = kernel(1e-3f * static_cast<float>(pass + 1)); });
    best = std::max(best, double{kIterations} * chains * flops_per_instruction * threads / seconds);
  }
  volatile float keep = results[0];
  (void)keep;
  return best;
}

}  // namespace

void MachineProbe::Free::operator()(uint64_t* memory) const {
  std::free(memory);
}

MachineProbe::MachineProbe(int threads)
    : threads_(threads),
      words_(kProbeBytes / static_cast<int64_t>(sizeof(uint64_t)) / threads / 64 * 64),
      memory_(
          static_cast<uint64_t*>(std::aligned_alloc(64, static_cast<size_t>(words_ * threads) * sizeof(uint64_t)))) {
  VOLLEY_CHECK(memory_ != nullptr);
  std::fill_n(memory_.get(), words_ * threads_, 1);
}

MachineSpeed MachineProbe::measure(int64_t working_set) const {
  const bool avx512 = __builtin_cpu_supports("avx512f");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  MachineSpeed speed;
  std::vector<uint64_t> sums(static_cast<size_t>(threads_));
  const int64_t wanted = working_set / static_cast<int64_t>(sizeof(uint64_t)) / threads_ / 64 * 64;
  const int64_t words = std::clamp<int64_t>(wanted, 64, words_);
  const int64_t rounds = words_ / words;  // so that starting threads costs nothing beside the reading
  for (int pass = 0; pass < kReadPasses; ++pass) {
    const double seconds = timed(threads_, [&](int i) {
      const uint64_t* part = memory_.get() + words_ * i;
      for (int64_t round = 0; round < rounds; ++round) {
        sums[static_cast<size_t>(i)] += avx512 ? read_avx512(part, words) : read_generic(part, words);
      }
    });
    const double bytes = static_cast<double>(words * rounds * threads_) * sizeof(uint64_t);
    speed.read_bytes_per_s = std::max(speed.read_bytes_per_s, bytes / seconds);
  }
  volatile uint64_t keep = sums[0];
  (void)keep;
  speed.f32_flops = avx512 ? best_flops(threads_, multiply_add_avx512, kWideChains, 32)
                    : avx2 ? best_flops(threads_, multiply_add_avx2, kChains, 16)
                           : best_flops(threads_, multiply_add_sse, kChains, 8);
  if (avx512 && __builtin_cpu_supports("avx512bf16"))
    speed.bf16_flops = best_flops(threads_, dot_bf16, kWideChains, 64);
  return speed;
}

}  // namespace volley::apps
