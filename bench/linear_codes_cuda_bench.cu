// Products with codes on a GPU beside those with bf16 weights, in the shapes of Qwen3-8B: of each shape enough
// distinct weights that none stays in the cache, in a CUDA graph, µs of one product. int4/32 has bf16 scales, as
// --quantization int4 makes them; uint4/128 has zero points and fp16 scales, as AWQ's and GPTQ's files; the others are
// those of GGUF's Q4_K, Q8_0 and Q6_K. "of_bandwidth": of the bytes that are read. Prints one JSON object a line.
// Options: --tiles times every tile that fits; --portable takes the kernels for GPUs without wgmma; --rows N.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "cuda_limits.cuh"
#include "ops/linear/cuda/linear_cuda_codes.h"
#include "stream_limit.cuh"

namespace {

using namespace volley;  // NOLINT: a program, not a header

struct Shape {
  const char* name;
  int64_t n, k;
  ops::EndKind kind;
  DType y;

  ops::LinearLayout layout() const {
    return kind == ops::EndKind::kSwiGlu ? ops::LinearLayout::kGateUp : ops::LinearLayout::kPlain;
  }
  int64_t outputs() const { return kind == ops::EndKind::kSwiGlu ? n / 2 : n; }
};
constexpr Shape kShapes[] = {{"qkv", 6144, 4096, ops::EndKind::kStore, DType::kF32},
                             {"o", 4096, 4096, ops::EndKind::kAdd, DType::kF32},
                             {"gate_up", 24576, 4096, ops::EndKind::kSwiGlu, DType::kBF16},
                             {"down", 4096, 12288, ops::EndKind::kAdd, DType::kF32}};
constexpr int kRows[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024};
constexpr int64_t kMaxRows = 1024, kMaxWidth = 24576;
constexpr size_t kDistinctBytes = size_t{500} << 20;

using bench::allocate;

ops::LinearWeight random_weight(Device& device, const Shape& s, const ops::WeightFormat& format) {
  if (!format.is_codes()) {
    ops::LinearWeight w;
    w.n = s.n;
    w.k = s.k;
    w.layout = s.layout();
    w.packed = allocate(device, static_cast<size_t>(ops::packed_bytes(DeviceKind::kCuda, s.n, s.k, format, w.layout)));
    bench::fill_bf16(device, w.packed.data(), s.n * s.k, 1, 1.7f / std::sqrt(static_cast<float>(s.k)));
    return w;
  }
  const auto rows_from = [&](int64_t first, int64_t count) {
    ops::WeightRows part;
    part.rows = count;
    part.codes = [first, &format](int64_t row, const ops::CodedRow& out) {
      auto state = static_cast<uint32_t>(first + row + 1) * 2654435761u;
      for (uint8_t& code : out.codes) code = (state = state * 1664525u + 1013904223u) >> 28;
      for (float& scale : out.scales) scale = format.zeros ? 0x1.234p-8f : 0x1.24p-8f;
      for (uint8_t& zero : out.zeros) zero = (state = state * 1664525u + 1013904223u) >> 28;
    };
    return part;
  };
  std::vector<ops::WeightRows> parts = {rows_from(0, s.n / 2), rows_from(s.n / 2, s.n - s.n / 2)};
  return std::move(ops::pack_linear(device, parts, s.k, format, s.layout())).value();
}

std::vector<ops::LinearWeight> weights_of(Device& device, const Shape& s, const ops::WeightFormat& format) {
  std::vector<ops::LinearWeight> weights;
  weights.push_back(random_weight(device, s, format));
  const size_t bytes = weights[0].packed.bytes();
  while (weights.size() < std::max<size_t>(4, kDistinctBytes / bytes)) {
    ops::LinearWeight copy = weights[0].unpacked();
    copy.packed = allocate(device, bytes);
    device.enqueue_copy(copy.packed.data(), weights[0].packed.data(), bytes);
    weights.push_back(std::move(copy));
  }
  device.synchronize();
  return weights;
}

// Microseconds of the product of one of the weights, all of which are run one after the other.
double us_of_each(Device& device, const std::vector<ops::LinearWeight>& weights, int replays, int repeats,
                  const std::function<void(const ops::LinearWeight&)>& product) {
  const double us = bench::graph_us(
      device, [&] { std::ranges::for_each(weights, product); }, replays, repeats);
  return us / static_cast<double>(weights.size());
}

void print_tiles(Device& device, const std::vector<ops::LinearWeight>& weights, const Shape& s, TensorView x,
                 TensorView y) {
  const int64_t rows = y.shape[0];
  const ops::LinearCudaPlan planned = ops::linear_codes_plan(weights[0], rows, false);
  for (const ops::LinearTile& tile :
       ops::linear_codes_tiles(s.layout(), planned.split, false, !weights[0].format.is_nibbles())) {
    ops::LinearCudaPlan plan = planned;
    plan.tile = tile;
    plan.row_tiles = (rows + tile.rows - 1) / tile.rows;
    if (plan.row_tiles > 8 || (tile.rows > 16 && tile.rows >= 4 * rows)) continue;
    const double us = us_of_each(device, weights, 2, 3, [&](const ops::LinearWeight& w) {
      ops::linear_codes_tiles_cuda(device.stream(), w, x, y, {s.kind}, plan);
    });
    std::printf("{\"what\": \"%s\", \"weights\": \"%s\", \"rows\": %d, \"tile\": \"%d x %d%s\", \"us\": %.2f%s}\n",
                s.name, ops::format_name(weights[0].format).c_str(), static_cast<int>(rows), tile.halves, tile.rows,
                tile.shared ? " shared" : "", us, tile == planned.tile ? ", \"chosen\": true" : "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool tiles = false, portable = false;
  int only_rows = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiles") == 0) tiles = true;
    if (std::strcmp(argv[i], "--portable") == 0) portable = true;
    if (std::strcmp(argv[i], "--rows") == 0 && i + 1 < argc) only_rows = std::atoi(argv[i + 1]);
  }
  const auto owner = bench::cuda_device();
  Device& device = *owner;
  const double bandwidth = bench::read_bandwidth();
  std::printf("{\"limit\": \"read\", \"TBps\": %.3f}\n", bandwidth * 1e-6);
  const Buffer x = allocate(device, kMaxRows * 12288 * 2), y = allocate(device, kMaxRows * kMaxWidth * 4);
  bench::fill_bf16(device, x.data(), kMaxRows * 12288, 7, 1.0f);
  const ops::WeightFormat formats[] = {
      DType::kBF16,       ops::kInt4Weights, ops::WeightFormat(DType::kI4, 1, 128, true),
      ops::kInt4Minimums, ops::kInt8Weights, ops::kInt6Weights};
  for (const Shape& s : kShapes) {
    for (const ops::WeightFormat& format : formats) {
      std::vector<ops::LinearWeight> weights = weights_of(device, s, format);
      for (ops::LinearWeight& w : weights) w.portable = portable;
      for (int rows : kRows) {
        if (only_rows != 0 && rows != only_rows) continue;
        const TensorView in(x.data(), DType::kBF16, {rows, s.k}), out(y.data(), s.y, {rows, s.outputs()});
        if (tiles && format.is_codes()) {
          print_tiles(device, weights, s, in, out);
          continue;
        }
        Arena none{Buffer()};
        const double us = us_of_each(device, weights, 4, 5, [&](const ops::LinearWeight& w) {
          ops::linear(device.stream(), w, in, out, {s.kind}, none);
        });
        std::printf("{\"what\": \"%s\", \"weights\": \"%s\", \"rows\": %d, \"us\": %.2f, \"of_bandwidth\": %.3f}\n",
                    s.name, ops::format_name(format).c_str(), rows, us,
                    static_cast<double>(weights[0].packed.bytes()) / us / bandwidth);
      }
    }
  }
  return 0;
}
