#include "ops/block_conv/block_conv.h"

#include <algorithm>

#include "device/cpu/thread_pool.h"
#include "ops/block_conv/block_conv_kernels.h"
#include "ops/embedding/embedding.h"
#include "ops/norm/norm.h"

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

BlockConvArgs checked_args(const BlockConv& conv, int side, TensorView x) {
  VOLLEY_CHECK(x.rank == 2 && x.dtype == DType::kF32);
  const int64_t rows = x.dim(0), channels = x.dim(1);
  const BlockConvShape& shape = conv.shape;
  VOLLEY_CHECK(shape.taps >= 1 && shape.group >= 1 && channels % shape.group == 0);
  VOLLEY_CHECK(conv.base.dtype == DType::kF32 && conv.base.count() == 2 * shape.taps * channels);
  VOLLEY_CHECK(conv.coefficients.dtype == DType::kF32 && conv.coefficients.dim(0) == rows);
  VOLLEY_CHECK_EQ(conv.coefficients.dim(1), shape.coefficients(channels));
  VOLLEY_CHECK(rows == 0 || (conv.block_rows >= 1 && rows % conv.block_rows == 0));
  BlockConvArgs args;
  args.shape = shape;
  args.base = conv.base.as<float>() + side * shape.taps * channels;
  args.coefficients = conv.coefficients.as<float>() + side * shape.taps * (channels / shape.group);
  args.stride = shape.coefficients(channels);
  args.block_rows = conv.block_rows;
  args.x = x.as<float>();
  args.rows = rows;
  args.channels = channels;
  return args;
}

void check_like(TensorView y, TensorView x) {
  VOLLEY_CHECK(y.rank == 2 && y.dtype == DType::kF32 && y.dim(0) == x.dim(0) && y.dim(1) == x.dim(1));
}

}  // namespace

const BlockConvKernels BlockConvKernels::kCpu = {
    convolve_cpu, [](Stream&, const BlockConvArgs&, const NormWeight&, const Input&, TensorView) { return false; },
    [](Stream&, const BlockConvArgs&, TensorView, const NormWeight&, const Input&) { return false; }};

void convolve_normed(Stream& stream, const BlockConv& conv, TensorView x, const NormWeight& norm, const Input& y,
                     TensorView zeroed, Arena& scratch) {
  check_rms_norm(stream, x, norm.weight, {}, y, {});
  if (zeroed.data != nullptr) check_like(zeroed, x);
  BlockConvArgs args = checked_args(conv, 0, x);
  if (args.rows == 0) return;
  const BlockConvKernels& kernels = kernels_on<BlockConvKernels>(stream);
  if (kernels.convolve_normed(stream, args, norm, y, zeroed)) return;
  const ArenaScope scope(scratch);
  const TensorView normed = scratch.take(DType::kF32, {args.rows, args.channels});
  rms_norm(stream, x, norm.weight, norm.eps, {}, normed);
  args.x = normed.as<float>();
  if (zeroed.data != nullptr) zero(stream, zeroed);
  if (!y.is_codes()) return kernels.convolve(stream, args, y.values, false);
  const TensorView values = scratch.take(DType::kF32, {args.rows, args.channels});
  kernels.convolve(stream, args, values, false);
  quantise_rows(stream, values, y);
}

void add_convolved(Stream& stream, const BlockConv& conv, TensorView x, TensorView y, const NormWeight* norm,
                   const Input& normed) {
  check_like(y, x);
  if (norm != nullptr) check_rms_norm(stream, y, norm->weight, {}, normed, {});
  const BlockConvArgs args = checked_args(conv, 1, x);
  if (args.rows == 0) return;
  const BlockConvKernels& kernels = kernels_on<BlockConvKernels>(stream);
  if (norm != nullptr && kernels.add_and_norm(stream, args, y, *norm, normed)) return;
  kernels.convolve(stream, args, y, true);
  if (norm != nullptr) rms_norm(stream, y, norm->weight, norm->eps, {}, normed);
}

}  // namespace volley::ops
