// Protects, on the CPU and on a GPU: values against an fp64 oracle, at the first rows of a block, where the taps end,
// and behind; both sides; that the norm after a convolution is rms_norm()'s; codes; and that a block's rows depend on
// no other block's.
#include "ops/block_conv/block_conv.h"

#include <cmath>

#include "ops/device_for_test.h"
#include "ops/norm/norm.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr float kEps = 1e-5f;

struct Shape {
  int32_t blocks, block_rows, channels, taps, group;
  int64_t rows() const { return int64_t{blocks} * block_rows; }
};

// Widths with and without vectors of four, and one that is too wide for them.
constexpr Shape kShapes[] = {{1, 1, 4, 2, 4},      {1, 8, 64, 2, 16},  {3, 5, 48, 2, 16},  {2, 16, 1040, 2, 16},
                             {2, 2, 24, 4, 3},     {4, 3, 10, 1, 1},   {70, 4, 96, 3, 32}, {2, 16, 2560, 2, 16},
                             {1, 7, 4096, 2, 128}, {1, 3, 6160, 4, 8}, {1, 2, 8208, 2, 16}};

struct Values {
  explicit Values(const Shape& s)
      : x(normal_values(s.rows() * s.channels, 1)),
        y(normal_values(std::ssize(x), 2)),
        base(normal_values(int64_t{2} * s.taps * s.channels, 3)),
        coefficients(normal_values(s.rows() * 2 * s.taps * (s.channels / s.group), 4)),
        weight(normal_values(s.channels, 5)) {
    for (int64_t i = 0; i < std::ssize(x); ++i) x[i] *= static_cast<float>(1 + i / s.channels % 3);  // rows differ
  }
  std::vector<float> x, y, base, coefficients, weight;
};

std::vector<double> normed(const std::vector<float>& x, const std::vector<float>& weight) {
  const size_t h = weight.size();
  std::vector<double> y;
  for (size_t row = 0; row < x.size() / h; ++row) {
    double squares = 0;
    for (size_t i = 0; i < h; ++i) squares += double{x[row * h + i]} * x[row * h + i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(h) + kEps);
    for (size_t i = 0; i < h; ++i) y.push_back(x[row * h + i] * scale * weight[i]);
  }
  return y;
}

// The sum, and the sum of its addends' magnitudes.
std::pair<double, double> oracle(const Shape& s, const Values& v, const std::vector<double>& x, int side, int64_t row,
                                 int64_t ch) {
  double sum = 0, magnitude = 0;
  const int64_t groups = s.channels / s.group;
  for (int64_t o = 0; o < s.taps && o <= row % s.block_rows; ++o) {
    const double own = v.coefficients[((row * 2 + side) * s.taps + o) * groups + ch / s.group];
    const double term = (v.base[(side * s.taps + o) * s.channels + ch] + own) * x[(row - o) * s.channels + ch];
    sum += term;
    magnitude += std::fabs(term) + std::fabs(own * x[(row - o) * s.channels + ch]);
  }
  return {sum, magnitude};
}

// The values on a device, and the rows from `first` on as blocks of `block_rows`.
class OnDevice {
 public:
  OnDevice(Device& device, const Shape& s, const Values& v)
      : device_(device),
        s_(s),
        x_(device, v.x),
        base_(device, v.base),
        coefficients_(device, v.coefficients),
        weight_(device, v.weight),
        scratch_(std::move(device.allocate(16 << 20)).value()) {}

  BlockConv conv(int64_t first, int64_t rows, int32_t block_rows) const {
    BlockConv conv;
    conv.shape = {s_.taps, s_.group};
    conv.base = base_.view(DType::kF32, {int64_t{2} * s_.taps * s_.channels});
    const int64_t width = conv.shape.coefficients(s_.channels);
    conv.coefficients = coefficients_.view(DType::kF32, {s_.rows(), width}).rows(first, rows);
    conv.block_rows = block_rows;
    return conv;
  }
  BlockConv conv() const { return conv(0, s_.rows(), s_.block_rows); }
  TensorView x() const { return x_.view(DType::kF32, {s_.rows(), s_.channels}); }
  NormWeight norm() const { return {weight_.view(DType::kF32, {s_.channels}), kEps}; }
  Arena& scratch() { return scratch_; }
  Stream& stream() const { return device_.stream(); }

 private:
  Device& device_;
  const Shape s_;
  const DeviceTensor x_, base_, coefficients_, weight_;
  Arena scratch_;
};

void check_input(Device& device, const Shape& s) {
  const Values v(s);
  OnDevice in(device, s, v);
  const std::vector<double> x = normed(v.x, v.weight);
  const int64_t rows = s.rows(), n = s.channels;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const DeviceTensor y(device, static_cast<size_t>(rows * n) * dtype_size(dtype)), zeroed(device, v.y);
    const TensorView zeros = zeroed.view(DType::kF32, {rows, n});
    convolve_normed(in.stream(), in.conv(), in.x(), in.norm(), Input(y.view(dtype, {rows, n})),
                    dtype == DType::kF32 ? zeros : TensorView(), in.scratch());
    EXPECT_EQ(zeroed.read<float>(), dtype == DType::kF32 ? std::vector<float>(v.y.size()) : v.y);
    const std::vector<float> got = decode(y.read<char>(), dtype);
    for (int64_t i = 0; i < rows * n; ++i) {
      const auto [want, magnitude] = oracle(s, v, x, 0, i / n, i % n);
      const double roundings = n / 2.0 + 6 + s.taps + 2;  // the norm's (norm_test.cc), and the convolution's
      const double bound = magnitude * roundings * kRound + (dtype == DType::kBF16 ? std::fabs(want) * kRoundBF16 : 0);
      ASSERT_NEAR(got[i], want, bound) << n << " channels, row " << i / n << ", channel " << i % n;
    }
  }
}

DEVICE_TEST(BlockConv, TheInputMatchesOracle) {
  DEVICE_UNDER_TEST;
  for (const Shape& s : kShapes) check_input(device, s);
}

void check_output(Device& device, const Shape& s) {
  const Values v(s);
  OnDevice in(device, s, v);
  const int64_t rows = s.rows(), n = s.channels;
  const DeviceTensor y(device, v.y);
  const TensorView sum = y.view(DType::kF32, {rows, n});
  add_convolved(in.stream(), in.conv(), in.x(), sum);
  const std::vector<double> x(v.x.begin(), v.x.end());
  const std::vector<float> got = y.read<float>();
  for (int64_t i = 0; i < rows * n; ++i) {
    const auto [added, magnitude] = oracle(s, v, x, 1, i / n, i % n);
    const double want = v.y[i] + added;
    ASSERT_NEAR(got[i], want, (magnitude * (s.taps + 2) + std::fabs(want)) * kRound) << "row " << i / n;
  }
  // The norm after it has the bits of a norm by itself.
  const NormWeight norm = in.norm();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const size_t bytes = static_cast<size_t>(rows * n) * dtype_size(dtype);
    const DeviceTensor apart(device, bytes), together(device, bytes), again(device, v.y);
    rms_norm(in.stream(), sum, norm.weight, norm.eps, {}, apart.view(dtype, {rows, n}));
    const TensorView again_sum = again.view(DType::kF32, {rows, n});
    add_convolved(in.stream(), in.conv(), in.x(), again_sum, &norm, Input(together.view(dtype, {rows, n})));
    ASSERT_EQ(again.read<uint32_t>(), y.read<uint32_t>()) << n;
    ASSERT_EQ(together.read<char>(), apart.read<char>()) << n;
  }
}

DEVICE_TEST(BlockConv, TheOutputMatchesOracle) {
  DEVICE_UNDER_TEST;
  for (const Shape& s : kShapes) check_output(device, s);
}

// Whatever stands beside it, a block has the same bits; and a short block those of a longer one's beginning.
DEVICE_TEST(BlockConv, ABlockStandsAlone) {
  DEVICE_UNDER_TEST;
  for (const Shape& s : {Shape{3, 6, 32, 3, 8}, {3, 6, 33, 3, 11}, {3, 6, 4096, 2, 16}}) {
    const Values v(s);
    OnDevice in(device, s, v);
    const int64_t n = s.channels;
    const auto part = [&](const std::vector<float>& all, int64_t first, int64_t rows) {
      return std::vector<float>(all.begin() + first * n, all.begin() + (first + rows) * n);
    };
    const auto input = [&](int64_t first, int64_t rows, int32_t block_rows) {
      const DeviceTensor y(device, static_cast<size_t>(rows * n) * 4);
      convolve_normed(in.stream(), in.conv(first, rows, block_rows), in.x().rows(first, rows), in.norm(),
                      Input(y.view(DType::kF32, {rows, n})), {}, in.scratch());
      return y.read<float>();
    };
    const auto output = [&](int64_t first, int64_t rows, int32_t block_rows) {
      const DeviceTensor y(device, part(v.y, first, rows)), after(device, static_cast<size_t>(rows * n) * 4);
      const NormWeight norm = in.norm();
      add_convolved(in.stream(), in.conv(first, rows, block_rows), in.x().rows(first, rows),
                    y.view(DType::kF32, {rows, n}), &norm, Input(after.view(DType::kF32, {rows, n})));
      return after.read<float>();
    };
    EXPECT_EQ(input(6, 6, 6), part(input(0, 18, 6), 6, 6)) << n;
    EXPECT_EQ(input(6, 4, 4), part(input(0, 18, 6), 6, 4)) << n;
    EXPECT_EQ(output(6, 6, 6), part(output(0, 18, 6), 6, 6)) << n;
    EXPECT_EQ(output(6, 4, 4), part(output(0, 18, 6), 6, 4)) << n;
  }
}

#ifdef VOLLEY_OPS_TEST_CUDA

// Codes are those of the same values in fp32, of rows and in groups.
DEVICE_TEST(BlockConv, CodesAreThoseOfTheValues) {
  DEVICE_UNDER_TEST;
  for (const Shape& s : {Shape{2, 3, 48, 2, 16}, {2, 8, 4096, 2, 16}, {2, 2, 48, 2, 3}, {1, 2, 8320, 2, 16}}) {
    const Values v(s);
    OnDevice in(device, s, v);
    const int64_t rows = s.rows(), n = s.channels;
    for (const bool in_groups : {false, true}) {
      const DeviceTensor values(device, static_cast<size_t>(rows * n) * 4), sum(device, v.y);
      const TensorView plain = values.view(DType::kF32, {rows, n}), y = sum.view(DType::kF32, {rows, n});
      const int64_t scales = in_groups ? (n + kScaleGroup - 1) / kScaleGroup * ((rows + 3) / 4 * 4) : rows;
      const DeviceTensor bytes(device, static_cast<size_t>(rows * n)), factors(device, scales * 4);
      const Input codes(bytes.view(DType::kF8E4M3, {rows, n}),
                        in_groups ? factors.view(DType::kF32, {(n + kScaleGroup - 1) / kScaleGroup, (rows + 3) / 4 * 4})
                                  : factors.view(DType::kF32, {rows}));
      const auto read = [&] { return std::pair(bytes.read<uint8_t>(), factors.read<uint32_t>()); };
      convolve_normed(in.stream(), in.conv(), in.x(), in.norm(), codes, {}, in.scratch());
      const auto convolved = read();
      convolve_normed(in.stream(), in.conv(), in.x(), in.norm(), Input(plain), {}, in.scratch());
      quantise_rows(in.stream(), plain, codes);
      EXPECT_EQ(read(), convolved) << n;
      const NormWeight norm = in.norm();
      add_convolved(in.stream(), in.conv(), in.x(), y, &norm, codes);
      const auto after = read();
      rms_norm(in.stream(), y, norm.weight, norm.eps, {}, codes);
      EXPECT_EQ(read(), after) << n;
    }
  }
}

#endif

}  // namespace
}  // namespace volley::ops
