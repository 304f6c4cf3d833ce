#include "device/probe.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/check.h"
#include "device/cpu/thread_pool.h"

namespace volley {
namespace {

constexpr int kReadPasses = 8, kFlopPasses = 20;  // the best pass counts, because other programs disturb
constexpr int kIterations = 200000;               // steps of a flop pass: about a millisecond
// Independent accumulators: at least latency times throughput of a multiply-add, and no more than there are registers.
constexpr int kChains = 12, kWideChains = 24;

// Each function returns a value that depends on its argument, so the compiler cannot remove the loop.
using Read = uint64_t (*)(const uint64_t* words, int64_t count);
using MultiplyAdd = float (*)(float x);

struct FlopKernel {
  MultiplyAdd run = nullptr;  // null: the CPU has no such instruction
  int chains = 0;
  int flops = 0;  // operations of a chain's step
};

// For any CPU. Vectors of 16 bytes, as SSE and NEON have.
uint64_t read_portable(const uint64_t* words, int64_t count) {
  typedef uint64_t Pair __attribute__((vector_size(16), may_alias));
  Pair sums[8] = {};
  for (int64_t i = 0; i < count; i += 16) {
    const Pair* line = reinterpret_cast<const Pair*>(words + i);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sums[j] += line[j];
  }
  for (int j = 1; j < 8; ++j) sums[0] += sums[j];
  return sums[0][0] ^ sums[0][1];
}

// A product and a sum: the compiler may not join them (-ffp-contract=off).
float multiply_add_portable(float x) {
  typedef float Lanes __attribute__((vector_size(16)));
  const Lanes a = {x, x, x, x}, b = {0.5f, 0.5f, 0.5f, 0.5f};
  Lanes sums[kChains];
  for (Lanes& sum : sums) sum = a;
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sums[j] = sums[j] * b + a;
  }
  for (int j = 1; j < kChains; ++j) sums[0] += sums[j];
  return sums[0][0];
}

#if defined(__x86_64__)

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

bool has_avx512() {
  return __builtin_cpu_supports("avx512f");
}

Read read_kernel() {
  return has_avx512() ? read_avx512 : read_portable;
}

FlopKernel f32_kernel() {
  if (has_avx512()) return {multiply_add_avx512, kWideChains, 32};
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return avx2 ? FlopKernel{multiply_add_avx2, kChains, 16} : FlopKernel{multiply_add_portable, kChains, 8};
}

FlopKernel bf16_kernel() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") ? FlopKernel{dot_bf16, kWideChains, 64} : FlopKernel{};
}

#else

Read read_kernel() {
  return read_portable;
}

FlopKernel f32_kernel() {
  return {multiply_add_portable, kChains, 8};
}

FlopKernel bf16_kernel() {
  return {};
}

#endif

// Seconds until `body` has run for each part. The pool's threads are awake already, so their start is not measured. A
// pass with a late thread takes longer; the best pass counts.
double timed(ThreadPool& pool, const std::function<void(int64_t)>& body) {
  const auto begin = std::chrono::steady_clock::now();
  pool.parallel_for(pool.threads(), [&](int64_t i, int) { body(i); });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double best_flops(ThreadPool& pool, const FlopKernel& kernel) {
  if (kernel.run == nullptr) return 0;
  const int threads = pool.threads();
  std::vector<float> results(static_cast<size_t>(threads));
  double best = 0;
  for (int pass = 0; pass < kFlopPasses; ++pass) {
    const double seconds = timed(
        pool, [&](int64_t i) { results[static_cast<size_t>(i)] = kernel.run(1e-3f * static_cast<float>(pass + 1)); });
    best = std::max(best, double{kIterations} * kernel.chains * kernel.flops * threads / seconds);
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
    : pool_(std::make_unique<ThreadPool>(threads)),
      words_(kBytes / static_cast<int64_t>(sizeof(uint64_t)) / threads / 64 * 64),
      memory_(
          static_cast<uint64_t*>(std::aligned_alloc(64, static_cast<size_t>(words_ * threads) * sizeof(uint64_t)))) {
  VOLLEY_CHECK(memory_ != nullptr);
  std::fill_n(memory_.get(), words_ * pool_->threads(), 1);
}

MachineProbe::~MachineProbe() = default;

MachineSpeed MachineProbe::measure(int64_t working_set) const {
  MachineSpeed speed;
  std::vector<uint64_t> sums(static_cast<size_t>(pool_->threads()));
  const int64_t wanted = working_set / static_cast<int64_t>(sizeof(uint64_t)) / pool_->threads() / 64 * 64;
  const int64_t words = std::clamp<int64_t>(wanted, 64, words_);
  const int64_t rounds = words_ / words;  // so that waking threads costs nothing beside the reading
  const Read read = read_kernel();
  for (int pass = 0; pass < kReadPasses; ++pass) {
    const double seconds = timed(*pool_, [&](int64_t i) {
      const uint64_t* part = memory_.get() + words_ * i;
      for (int64_t round = 0; round < rounds; ++round) sums[static_cast<size_t>(i)] += read(part, words);
    });
    const double bytes = static_cast<double>(words * rounds * pool_->threads()) * sizeof(uint64_t);
    speed.read_bytes_per_s = std::max(speed.read_bytes_per_s, bytes / seconds);
  }
  volatile uint64_t keep = sums[0];
  (void)keep;
  speed.f32_flops = best_flops(*pool_, f32_kernel());
  speed.bf16_flops = best_flops(*pool_, bf16_kernel());
  return speed;
}

}  // namespace volley
