// Protects, on the CPU and on a GPU: values against an fp64 oracle, at the first rows of a block, where the taps end,
// and behind; both sides; and that a block's rows depend on no other block's.
#include "ops/block_conv/block_conv.h"

#include <cmath>

#include "ops/device_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

struct Shape {
  int32_t blocks, block_rows, channels, taps, group;
};

struct Values {
  explicit Values(const Shape& s)
      : x(normal_values(int64_t{s.blocks} * s.block_rows * s.channels, 1)),
        y(normal_values(std::ssize(x), 2)),
        base(normal_values(int64_t{2} * s.taps * s.channels, 3)),
        coefficients(normal_values(int64_t{s.blocks} * s.block_rows * 2 * s.taps * (s.channels / s.group), 4)) {}
  std::vector<float> x, y, base, coefficients;
};

// The sum, and the sum of its addends' magnitudes.
std::pair<double, double> oracle(const Shape& s, const Values& v, int side, int64_t row, int64_t ch) {
  double sum = 0, magnitude = 0;
  const int64_t groups = s.channels / s.group;
  for (int64_t o = 0; o < s.taps && o <= row % s.block_rows; ++o) {
    const double own = v.coefficients[((row * 2 + side) * s.taps + o) * groups + ch / s.group];
    const double term = (v.base[(side * s.taps + o) * s.channels + ch] + own) * v.x[(row - o) * s.channels + ch];
    sum += term;
    magnitude += std::fabs(term) + std::fabs(own * v.x[(row - o) * s.channels + ch]);
  }
  return {sum, magnitude};
}

void check(Device& device, const Shape& s) {
  const Values v(s);
  const int64_t rows = int64_t{s.blocks} * s.block_rows, n = s.channels;
  const DeviceTensor x(device, v.x), base(device, v.base), coefficients(device, v.coefficients);
  BlockConv conv;
  conv.shape = {s.taps, s.group};
  conv.base = base.view(DType::kF32, {std::ssize(v.base)});
  conv.coefficients = coefficients.view(DType::kF32, {rows, conv.shape.coefficients(n)});
  conv.block_rows = s.block_rows;
  Arena none = Arena::measuring();  // plain rows take no scratch memory
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const DeviceTensor y(device, static_cast<size_t>(rows * n) * dtype_size(dtype));
    convolve_input(device.stream(), conv, x.view(DType::kF32, {rows, n}), Input(y.view(dtype, {rows, n})), none);
    const std::vector<float> got = decode(y.read<char>(), dtype);
    for (int64_t i = 0; i < rows * n; ++i) {
      const auto [want, magnitude] = oracle(s, v, 0, i / n, i % n);
      const double bound = magnitude * (s.taps + 2) * 0x1p-24 + (dtype == DType::kBF16 ? std::fabs(want) * 0x1p-8 : 0);
      ASSERT_NEAR(got[i], want, bound) << "row " << i / n << ", channel " << i % n;
    }
  }
  const DeviceTensor y(device, v.y);
  add_convolved(device.stream(), conv, x.view(DType::kF32, {rows, n}), y.view(DType::kF32, {rows, n}));
  const std::vector<float> got = y.read<float>();
  for (int64_t i = 0; i < rows * n; ++i) {
    const auto [sum, magnitude] = oracle(s, v, 1, i / n, i % n);
    const double want = v.y[i] + sum;
    ASSERT_NEAR(got[i], want, (magnitude * (s.taps + 2) + std::fabs(want)) * 0x1p-24) << "row " << i / n;
  }
}

DEVICE_TEST(BlockConv, MatchesOracle) {
  DEVICE_UNDER_TEST;
  for (const Shape& s : {Shape{1, 1, 4, 2, 4},
                         {1, 8, 64, 2, 16},
                         {3, 5, 48, 2, 16},
                         {2, 16, 1040, 2, 16},
                         {2, 2, 24, 4, 3},
                         {4, 3, 10, 1, 1},
                         {70, 4, 96, 3, 32}}) {
    check(device, s);
  }
}

// Whatever stands beside it, a block has the same bits; and a short block those of a longer one's beginning.
DEVICE_TEST(BlockConv, ABlockStandsAlone) {
  DEVICE_UNDER_TEST;
  const Shape s = {3, 6, 32, 3, 8};
  const Values v(s);
  Arena none = Arena::measuring();
  const DeviceTensor x(device, v.x), base(device, v.base), coefficients(device, v.coefficients);
  BlockConv conv;
  conv.shape = {s.taps, s.group};
  conv.base = base.view(DType::kF32, {std::ssize(v.base)});
  const auto run = [&](int64_t first, int32_t rows, int32_t block_rows) {
    conv.coefficients = coefficients.view(DType::kF32, {18, 24}).rows(first, rows);
    conv.block_rows = block_rows;
    const DeviceTensor y(device, static_cast<size_t>(rows) * 32 * 4);
    convolve_input(device.stream(), conv, x.view(DType::kF32, {18, 32}).rows(first, rows),
                   Input(y.view(DType::kF32, {rows, 32})), none);
    return y.read<float>();
  };
  const std::vector<float> all = run(0, 18, 6);
  EXPECT_EQ(run(6, 6, 6), std::vector<float>(all.begin() + 6 * 32, all.begin() + 12 * 32));
  EXPECT_EQ(run(6, 4, 4), std::vector<float>(all.begin() + 6 * 32, all.begin() + 10 * 32));
}

}  // namespace
}  // namespace volley::ops
