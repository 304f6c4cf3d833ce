#include "machine_limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "ops/cpu_features.h"

namespace volley::bench {
namespace {

double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename F>
double best_ns(int times, F&& f) {
  double best = 1e300;
  for (int i = 0; i < times; ++i) {
    const double start = now_ns();
    f();
    best = std::min(best, now_ns() - start);
  }
  return best;
}

#if defined(__x86_64__)

typedef int32_t Line __attribute__((vector_size(64)));

// Eight loads in flight, which nothing waits for.
__attribute__((target("avx512f"))) void read_lines(const char* from, int64_t bytes) {
  for (int64_t i = 0; i + 512 <= bytes; i += 512) {
#pragma GCC unroll 8
    for (int j = 0; j < 512; j += 64) {
      Line line;
      asm volatile("vmovdqa32 %1, %0" : "=v"(line) : "m"(*reinterpret_cast<const Line*>(from + i + j)));
    }
  }
}

// 16 independent chains of vdpbf16ps: more than latency times throughput. 32 products each.
constexpr int kChains = 16;
__attribute__((target("avx512f,avx512bf16"))) void multiply_lines(int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    asm volatile(
        "vdpbf16ps %%zmm31, %%zmm31, %%zmm0\n vdpbf16ps %%zmm31, %%zmm31, %%zmm1\n"
        "vdpbf16ps %%zmm31, %%zmm31, %%zmm2\n vdpbf16ps %%zmm31, %%zmm31, %%zmm3\n"
        "vdpbf16ps %%zmm31, %%zmm31, %%zmm4\n vdpbf16ps %%zmm31, %%zmm31, %%zmm5\n"
        "vdpbf16ps %%zmm31, %%zmm31, %%zmm6\n vdpbf16ps %%zmm31, %%zmm31, %%zmm7\n"
        "vdpbf16ps %%zmm31, %%zmm31, %%zmm8\n vdpbf16ps %%zmm31, %%zmm31, %%zmm9\n"
        "vdpbf16ps %%zmm31, %%zmm31, %%zmm10\n vdpbf16ps %%zmm31, %%zmm31, %%zmm11\n"
        "vdpbf16ps %%zmm31, %%zmm31, %%zmm12\n vdpbf16ps %%zmm31, %%zmm31, %%zmm13\n"
        "vdpbf16ps %%zmm31, %%zmm31, %%zmm14\n vdpbf16ps %%zmm31, %%zmm31, %%zmm15\n" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
              "xmm13", "xmm14", "xmm15");
  }
}

#endif

// For machines without AVX-512: the compiler's loop is enough to reach memory's speed.
int64_t sum_words(const char* from, int64_t bytes) {
  int64_t sum[8] = {};
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    for (int j = 0; j < 8; ++j) sum[j] += reinterpret_cast<const int64_t*>(from + i)[j];
  }
  return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

}  // namespace

MachineLimits measure_limits(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{512} << 20, kPart = 1 << 20;
  const bool bf16 = ops::cpu_has_avx512_bf16();
  MachineLimits limits;
  auto device = *make_cpu_device(1);
  const Buffer buffer = std::move(device->allocate(kBytes)).value();
  char* data = static_cast<char*>(buffer.data());
  std::fill(data, data + kBytes, char{1});
  std::vector<int64_t> sums(pool.threads());
  const double read = best_ns(8, [&] {
    pool.parallel_for(kBytes / kPart, [&](int64_t i, int worker) {
#if defined(__x86_64__)
      if (bf16) return read_lines(data + i * kPart, kPart);
#endif
      sums[worker] += sum_words(data + i * kPart, kPart);
    });
  });
  limits.read_bytes_per_ns = static_cast<double>(kBytes) / read;
#if defined(__x86_64__)
  if (bf16) {
    constexpr int64_t kSteps = 200000;
    const double time =
        best_ns(10, [&] { pool.parallel_for(pool.threads(), [&](int64_t, int) { multiply_lines(kSteps); }); });
    limits.products_per_ns = static_cast<double>(pool.threads() * kSteps * kChains * 32) / time;
  }
#endif
  return limits;
}

}  // namespace volley::bench
