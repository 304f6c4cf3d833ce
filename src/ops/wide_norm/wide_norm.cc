#include "ops/wide_norm/wide_norm.h"

#include <cmath>

#include "device/cpu/thread_pool.h"
#include "ops/wide_norm/wide_norm_kernels.h"

namespace volley::ops {
namespace {

constexpr int kWideChains = 16;

// Sixteen chains, element i in chain i mod 16, then halved.
float wide_squares_of(const float* x, int64_t width) {
  float chains[kWideChains] = {};
  for (int64_t i = 0; i < width; ++i) chains[i % kWideChains] += x[i] * x[i];
  for (int n = kWideChains / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) chains[i] += chains[i + n];
  }
  return chains[0];
}

// f(row, part, its columns)
template <typename F>
void for_wide_parts(Stream& stream, const WideNorm& norm, const F& f) {
  if (stream.dry()) return;
  stream.pool().parallel_for(norm.x.dim(0) * WideNorm::kParts, [&](int64_t task, int) {
    const int64_t row = task / WideNorm::kParts, part = task % WideNorm::kParts;
    f(row, part, norm.x.as<float>() + row * norm.x.dim(1) + norm.parts[part].first);
  });
}

void sum_squares_cpu(Stream& stream, const WideNorm& norm) {
  for_wide_parts(stream, norm, [&](int64_t row, int64_t part, const float* x) {
    float* sums = norm.sums.as<float>() + row * WideNorm::kSums;
    sums[part] = wide_squares_of(x, norm.parts[part].weight.count());
    sums[part + WideNorm::kParts] = 0;
  });
}

void norm_by_sums_cpu(Stream& stream, const WideNorm& norm, int ranks) {
  for_wide_parts(stream, norm, [&](int64_t row, int64_t part, float* x) {
    const TensorView& weight = norm.parts[part].weight;
    const float sum = norm.sums.as<float>()[row * WideNorm::kSums + part];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(weight.count() * ranks) + norm.eps);
    for (int64_t i = 0; i < weight.count(); ++i) x[i] = x[i] * scale * weight.as<float>()[i];
  });
}

const WideNormKernels& wide_norm_kernels(Stream& stream, const WideNorm& norm) {
  VOLLEY_CHECK(norm.x.dtype == DType::kF32 && norm.x.rank == 2);
  VOLLEY_CHECK(norm.sums.dtype == DType::kF32 && norm.sums.count() == norm.x.dim(0) * WideNorm::kSums);
  for (const WideNorm::Part& part : norm.parts) {
    VOLLEY_CHECK(part.weight.dtype == DType::kF32 && part.weight.count() > 0);
    VOLLEY_CHECK(part.first >= 0 && part.first + part.weight.count() <= norm.x.dim(1));
  }
  return kernels_on<WideNormKernels>(stream);
}

}  // namespace

const WideNormKernels WideNormKernels::kCpu = {sum_squares_cpu, norm_by_sums_cpu};

void sum_squares(Stream& stream, const WideNorm& norm) {
  const WideNormKernels& kernels = wide_norm_kernels(stream, norm);
  if (norm.x.dim(0) > 0) kernels.sum_squares(stream, norm);
}

void norm_by_sums(Stream& stream, const WideNorm& norm, int ranks) {
  const WideNormKernels& kernels = wide_norm_kernels(stream, norm);
  if (norm.x.dim(0) > 0) kernels.norm_by_sums(stream, norm, ranks);
}

}  // namespace volley::ops
