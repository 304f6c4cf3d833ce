#include "ops/block_conv/block_conv.h"

#include <algorithm>

#include "device/cpu/thread_pool.h"
#include "ops/block_conv/block_conv_kernels.h"

namespace volley::ops {
namespace {

constexpr int64_t kTaskElements = 8 << 10;  // some µs: below that, handing the work out costs more

// f(channel, value) for a row.
template <typename F>
void convolve_row(const BlockConvArgs& args, int64_t row, F&& f) {
  const int64_t n = args.channels, groups = n / args.shape.group;
  const int64_t taps = std::min<int64_t>(args.shape.taps, row % args.block_rows + 1);
  const float* own = args.coefficients + row * args.stride;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t ch = g * args.shape.group; ch < (g + 1) * args.shape.group; ++ch) {
      float sum = 0;
      for (int64_t o = 0; o < taps; ++o)
        sum += (args.base[o * n + ch] + own[o * groups + g]) * args.x[(row - o) * n + ch];
      f(ch, sum);
    }
  }
}

void convolve_cpu(Stream& stream, const BlockConvArgs& args, TensorView y, bool adds) {
  if (stream.dry()) return;
  const int64_t rows = args.rows, n = args.channels, tasks = std::clamp(rows * n / kTaskElements, int64_t{1}, rows);
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    for (int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; ++row) {
      if (y.dtype == DType::kBF16) {
        BFloat16* to = y.as<BFloat16>() + row * n;
        convolve_row(args, row, [to](int64_t ch, float v) { to[ch] = to_bfloat16(v); });
        continue;
      }
      float* to = y.as<float>() + row * n;
      convolve_row(args, row, [to, adds](int64_t ch, float v) { to[ch] = adds ? to[ch] + v : v; });
    }
  });
}

void convolve(Stream& stream, const BlockConv& conv, int side, TensorView x, TensorView y, bool adds) {
  VOLLEY_CHECK(x.rank == 2 && y.rank == 2 && x.dtype == DType::kF32);
  VOLLEY_CHECK(y.dtype == DType::kF32 || (y.dtype == DType::kBF16 && !adds));
  const int64_t rows = x.dim(0), channels = x.dim(1);
  VOLLEY_CHECK(y.dim(0) == rows && y.dim(1) == channels);
  const BlockConvShape& shape = conv.shape;
  VOLLEY_CHECK(shape.taps >= 1 && shape.group >= 1 && channels % shape.group == 0);
  VOLLEY_CHECK(conv.base.dtype == DType::kF32 && conv.base.count() == 2 * shape.taps * channels);
  VOLLEY_CHECK(conv.coefficients.dtype == DType::kF32 && conv.coefficients.dim(0) == rows);
  VOLLEY_CHECK_EQ(conv.coefficients.dim(1), shape.coefficients(channels));
  if (rows == 0) return;
  VOLLEY_CHECK(conv.block_rows >= 1 && rows % conv.block_rows == 0);
  BlockConvArgs args;
  args.shape = shape;
  args.base = conv.base.as<float>() + side * shape.taps * channels;
  args.coefficients = conv.coefficients.as<float>() + side * shape.taps * (channels / shape.group);
  args.stride = shape.coefficients(channels);
  args.block_rows = conv.block_rows;
  args.x = x.as<float>();
  args.rows = rows;
  args.channels = channels;
  kernels_on<BlockConvKernels>(stream).convolve(stream, args, y, adds);
}

}  // namespace

const BlockConvKernels BlockConvKernels::kCpu = {convolve_cpu};

void convolve_input(Stream& stream, const BlockConv& conv, TensorView x, const Input& y, Arena& scratch) {
  if (!y.is_codes()) return convolve(stream, conv, 0, x, y.values, false);
  const ArenaScope scope(scratch);
  const TensorView values = scratch.take(DType::kF32, {x.dim(0), x.dim(1)});
  convolve(stream, conv, 0, x, values, false);
  quantise_rows(stream, values, y);
}

void add_convolved(Stream& stream, const BlockConv& conv, TensorView x, TensorView y) {
  convolve(stream, conv, 1, x, y, true);
}

}  // namespace volley::ops
