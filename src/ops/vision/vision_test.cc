// Protects, on the CPU and on a GPU: values against fp64 oracles, and that a row's bits do not depend on other rows.
#include "ops/vision/vision.h"

#include <cmath>
#include <functional>
#include <random>

#include "ops/device_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

// Rows that an operation writes, in both types, against an oracle of element (row, column); and single rows alone.
struct Checked {
  Device& device;
  int64_t rows, width;
  std::function<void(TensorView y, int64_t first)> run;  // rows first … of the picture
  std::function<double(int64_t row, int64_t column)> want;
  double tolerance;  // of fp32, relative to 1 + |want|

  void check(const std::vector<float>& before = {}) const {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (!before.empty() && dtype == DType::kBF16) continue;
      const auto values_of = [&](int64_t first, int64_t n) {
        std::vector<char> bytes(static_cast<size_t>(n * width) * dtype_size(dtype), static_cast<char>(0xff));
        if (!before.empty()) std::memcpy(bytes.data(), before.data() + first * width, bytes.size());
        const DeviceTensor y(device, bytes);
        run(y.view(dtype, {n, width}), first);
        return decode(y.read<char>(), dtype);
      };
      const std::vector<float> got = values_of(0, rows);
      for (int64_t i = 0; i < rows * width; ++i) {
        const double expected = want(i / width, i % width);
        const double bound =
            tolerance * (1 + std::fabs(expected)) + (dtype == DType::kBF16 ? std::fabs(expected) * kRoundBF16 : 0);
        ASSERT_NEAR(got[static_cast<size_t>(i)], expected, bound) << "row " << i / width << ", column " << i % width;
      }
      for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
        const std::vector<float> alone = values_of(row, 1);
        ASSERT_EQ(0, std::memcmp(alone.data(), &got[static_cast<size_t>(row * width)], sizeof(float) * width)) << row;
      }
    }
  }
};

constexpr PatchGrid kGrid = {6, 10, 2};

// Patches of merge * merge are neighbours.
TEST(PatchPlaces, FollowSquares) {
  const auto at = [](int64_t patch) { return std::pair(place_of(kGrid, patch).row, place_of(kGrid, patch).column); };
  EXPECT_EQ(at(0), std::pair(0, 0));
  EXPECT_EQ(at(1), std::pair(0, 1));
  EXPECT_EQ(at(2), std::pair(1, 0));
  EXPECT_EQ(at(3), std::pair(1, 1));
  EXPECT_EQ(at(4), std::pair(0, 2));
  EXPECT_EQ(at(20), std::pair(2, 0));
  EXPECT_EQ(at(59), std::pair(5, 9));
}

DEVICE_TEST(Vision, TakesPatches) {
  DEVICE_UNDER_TEST;
  constexpr int64_t kSize = 4, kFrames = 2, kLine = kGrid.width * kSize * 3;
  std::vector<uint8_t> pixels(static_cast<size_t>(kGrid.patches() * kSize * kSize * 3));
  std::mt19937 random(1);
  for (uint8_t& pixel : pixels) pixel = static_cast<uint8_t>(random());
  const DeviceTensor on_device(device, pixels);
  const PatchValues values = {kSize, kFrames, {127.5f, 100, 90}, {127.5f, 60, 70}};
  const auto want = [&](int64_t row, int64_t column) {
    const int64_t channel = column / (kFrames * kSize * kSize), y = column / kSize % kSize, x = column % kSize;
    const PatchPlace place = place_of(kGrid, row);
    const double pixel = pixels[(place.row * kSize + y) * kLine + (place.column * kSize + x) * 3 + channel];
    return (pixel - values.mean[channel]) / values.std[channel];
  };
  const auto run = [&](TensorView y, int64_t first) {
    take_patches(device.stream(), on_device.view(DType::kU8, {std::ssize(pixels)}), kGrid, values, first, y);
  };
  Checked{device, kGrid.patches(), 3 * kFrames * kSize * kSize, run, want, 2 * kRound}.check();
}

DEVICE_TEST(Vision, AddsPlaces) {
  DEVICE_UNDER_TEST;
  constexpr int32_t kSide = 5;
  constexpr int64_t kHidden = 40;
  for (const PatchGrid& grid : {kGrid, PatchGrid{1, 7, 1}, PatchGrid{2, 40, 2}}) {
    const std::vector<float> table = normal_values(kSide * kSide * kHidden, 2);
    const std::vector<float> before = normal_values(grid.patches() * kHidden, 3);
    const std::vector<float> bias = normal_values(kHidden, 9);
    const DeviceTensor on_device(device, table), biases(device, bias);
    const auto between = [](int32_t place, int32_t n) { return n == 1 ? 0.0 : place * (kSide - 1.0) / (n - 1); };
    const auto want = [&](int64_t row, int64_t column) {
      const PatchPlace place = place_of(grid, row);
      const double r = between(place.row, grid.height), c = between(place.column, grid.width);
      double sum = before[row * kHidden + column] + bias[column];
      for (int i = 0; i < kSide; ++i) {
        for (int j = 0; j < kSide; ++j) {
          const double weight = std::max(0.0, 1 - std::fabs(r - i)) * std::max(0.0, 1 - std::fabs(c - j));
          sum += weight * table[(i * kSide + j) * kHidden + column];
        }
      }
      return sum;
    };
    const auto run = [&](TensorView x, int64_t first) {
      add_places(device.stream(), biases.view(DType::kF32, {kHidden}),
                 on_device.view(DType::kF32, {kSide * kSide, kHidden}), kSide, grid, first, x);
    };
    // The place itself is rounded: an error of four units of it moves the weights.
    Checked{device, grid.patches(), kHidden, run, want, 64 * kRound}.check(before);
  }
}

DEVICE_TEST(Vision, NormsLayers) {
  DEVICE_UNDER_TEST;
  for (const int64_t h : {1, 40, 1152, 4608}) {
    constexpr int64_t kRows = 5;
    constexpr float kEps = 1e-6f;
    std::vector<float> x = normal_values(kRows * h, 4);
    for (int64_t i = 0; i < std::ssize(x); ++i)
      x[i] = x[i] * static_cast<float>(i / h + 1) + 3.0f * static_cast<float>(i / h);
    const std::vector<float> weight = normal_values(h, 5), bias = normal_values(h, 6);
    const DeviceTensor xs(device, x), ws(device, weight), bs(device, bias);
    std::vector<double> means, scales;
    for (int64_t row = 0; row < kRows; ++row) {
      double sum = 0, squares = 0;
      for (int64_t j = 0; j < h; ++j) sum += x[row * h + j];
      for (int64_t j = 0; j < h; ++j) squares += std::pow(x[row * h + j] - sum / h, 2);
      means.push_back(sum / h);
      scales.push_back(1 / std::sqrt(squares / h + kEps));
    }
    const auto want = [&](int64_t row, int64_t j) {
      return (x[row * h + j] - means[row]) * scales[row] * weight[j] + bias[j];
    };
    const auto run = [&](TensorView y, int64_t first) {
      layer_norm(device.stream(), xs.view(DType::kF32, {kRows, h}).rows(first, y.dim(0)), ws.view(DType::kF32, {h}),
                 bs.view(DType::kF32, {h}), kEps, y);
    };
    Checked{device, kRows, h, run, want, 64 * kRound}.check();
    // Biases of the products around: the norm sees the first, x has both.
    const std::vector<float> before = normal_values(h, 12), after = normal_values(h, 13);
    std::vector<float> moved = x;
    for (int64_t i = 0; i < std::ssize(x); ++i) moved[i] += before[i % h];
    const DeviceTensor summed(device, moved), again(device, x), first(device, before), last(device, after);
    const DeviceTensor plain(device, x.size() * sizeof(float)), around(device, x.size() * sizeof(float));
    const TensorView weights = ws.view(DType::kF32, {h}), biases = bs.view(DType::kF32, {h});
    layer_norm(device.stream(), summed.view(DType::kF32, {kRows, h}), weights, biases, kEps,
               plain.view(DType::kF32, {kRows, h}));
    layer_norm(device.stream(), again.view(DType::kF32, {kRows, h}), weights, biases, kEps,
               around.view(DType::kF32, {kRows, h}), {first.view(DType::kF32, {h}), last.view(DType::kF32, {h})});
    EXPECT_EQ(around.read<float>(), plain.read<float>());
    for (int64_t i = 0; i < std::ssize(x); ++i) moved[i] += after[i % h];
    EXPECT_EQ(again.read<float>(), moved);
  }
}

DEVICE_TEST(Vision, ComputesGelu) {
  DEVICE_UNDER_TEST;
  const int64_t rows = 7, n = 333;
  std::vector<float> x = normal_values(rows * n, 7);
  for (float& value : x) value = to_float(to_bfloat16(value * 3));
  const std::vector<float> bias = normal_values(n, 10);
  const DeviceTensor biases(device, bias);
  x[0] = -200, x[1] = 200, x[2] = 0;
  for (const bool by_tanh : {true, false}) {
    const auto want = [&](int64_t row, int64_t j) {
      const double v = double{x[row * n + j]} + bias[j];
      return by_tanh ? 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)))
                     : 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    };
    const auto run = [&](TensorView y, int64_t first) {
      std::vector<char> bytes;
      for (int64_t i = first * n; i < first * n + y.count(); ++i) {
        const BFloat16 half = to_bfloat16(x[i]);
        const char* from =
            y.dtype == DType::kF32 ? reinterpret_cast<const char*>(&x[i]) : reinterpret_cast<const char*>(&half);
        bytes.insert(bytes.end(), from, from + dtype_size(y.dtype));
      }
      device.upload(y.data, bytes.data(), bytes.size());
      gelu(device.stream(), y, biases.view(DType::kF32, {n}), by_tanh);
    };
    Checked{device, rows, n, run, want, 16 * kRound}.check();
  }
}

DEVICE_TEST(Vision, NarrowsHeads) {
  DEVICE_UNDER_TEST;
  constexpr int64_t kRows = 9, kHeads = 3, kDim = 12, kRoom = 16;
  const std::vector<float> wide = normal_values(kRows * kHeads * kRoom, 8);
  const DeviceTensor from(device, wide), to(device, size_t{kRows * kHeads * kDim} * 4);
  narrow_heads(device.stream(), from.view(DType::kF32, {kRows, kHeads * kRoom}), kHeads,
               to.view(DType::kF32, {kRows, kHeads * kDim}));
  const std::vector<float> got = to.read<float>();
  for (int64_t i = 0; i < std::ssize(got); ++i) {
    ASSERT_EQ(got[i], wide[i / (kDim / 2) * (kRoom / 2) + i % (kDim / 2)]) << i;
  }
}

}  // namespace
}  // namespace volley::ops
