// RMSNorm on a GPU, in rows of 4096: 72 of them one after the other in a CUDA graph, as many as Qwen3-8B's layers have,
// but with nothing between them. Microseconds of one: to bf16, the same with a copy of x for the drafter, and to FP8.
#include <cstdio>

#include "cuda_limits.cuh"
#include "ops/norm/norm.h"

namespace {

using namespace volley;  // NOLINT: a program, not a header

constexpr int kNorms = 72;
constexpr int64_t kHidden = 4096, kMostRows = 2048, kFeatureLayers = 5;

// What a step of the target and of the drafter needs, for any number of rows up to kMostRows.
struct Memory {
  Buffer x, weight, y, scales, features;

  explicit Memory(Device& device) {
    const auto take = [&](int64_t bytes) {
      auto buffer = device.allocate(static_cast<size_t>(bytes));
      VOLLEY_CHECK_MSG(buffer.ok(), "out of GPU memory");
      return std::move(*buffer);
    };
    x = take(kMostRows * kHidden * 4);
    weight = take(kHidden * 4);
    y = take(kMostRows * kHidden * 2);
    scales = take(kMostRows * 4);
    features = take(kMostRows * kHidden * kFeatureLayers * 2);
  }
};

double norm_us(Device& device, const Memory& m, int64_t rows, DType dtype, bool copies) {
  ops::Input y(m.y.view(dtype, {rows, kHidden}));
  if (dtype == DType::kF8E4M3) y.scales = m.scales.view(DType::kF32, {rows});
  ops::FeatureBlock copy;
  if (copies) copy = {m.features.view(DType::kBF16, {rows, kFeatureLayers * kHidden}), 2};
  return bench::graph_us(device,
                         [&] {
                           for (int i = 0; i < kNorms; ++i) {
                             ops::rms_norm(device.stream(), m.x.view(DType::kF32, {rows, kHidden}),
                                           m.weight.view(DType::kF32, {kHidden}), 1e-6f, {}, y, copy);
                           }
                         }) /
         kNorms;
}

}  // namespace

int main() {
  const auto owner = bench::cuda_device();
  Device& device = *owner;
  const Memory memory(device);
  for (const int64_t rows : {1, 16, 128, 256, 512, 2048}) {
    std::printf("{\"rows\": %d, \"bf16_us\": %.2f, \"with_copy_us\": %.2f, \"fp8_us\": %.2f}\n", static_cast<int>(rows),
                norm_us(device, memory, rows, DType::kBF16, false), norm_us(device, memory, rows, DType::kBF16, true),
                norm_us(device, memory, rows, DType::kF8E4M3, false));
  }
  return 0;
}
