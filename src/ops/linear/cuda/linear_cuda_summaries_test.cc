// Protects, on a GPU of compute capability 9.0: that summaries agree exactly with the outputs that would be stored, for
// every tile that makes them, in both storages, with ties, NaN and infinities and ends that no group divides; that a
// row is summarised or stored as the device's memory says, and nothing else is touched; that its bits depend on neither
// tile nor neighbours. Which calls can summarise is checked anywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "device/cuda/launch.h"
#include "ops/device_for_test.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr DType kF8 = DType::kF8E4M3, kF32 = DType::kF32, kBF16 = DType::kBF16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A third of the outputs have the weights of one before them, next to it or groups away, so that sums are equal; the
// first weight of the second group's outputs is negative, so that an infinite x makes them all -inf.
LinearWeight make_weight(Device& device, int64_t n, int64_t k, DType storage) {
  std::vector<float> values = normal_values(n * k, 11);
  std::mt19937 random(12);
  for (int64_t i = 1; i < n; ++i) {
    if (random() % 3 != 0) continue;
    const int64_t from = random() % 2 == 0 ? i - 1 : static_cast<int64_t>(random() % i);
    std::copy_n(&values[from * k], k, &values[i * k]);
  }
  for (int64_t i = kSummaryGroup; i < std::min<int64_t>(n, 2 * kSummaryGroup); ++i) {
    values[i * k] = -std::fabs(values[i * k]) - 0.5f;
  }
  const std::vector<WeightRows> parts = {{values.data(), kF32, n}};
  return std::move(pack_linear(device, parts, k, storage)).value();
}

// Rows of x as the weight takes them. Of each seven rows one is zero, so that all outputs are equal, one has a NaN, and
// one an infinity (codes have none: they are NaN then).
class TestInput {
 public:
  TestInput(Device& device, int64_t rows, int64_t k, DType storage)
      : rows_(rows),
        k_(k),
        storage_(storage),
        values_(device, rows * k * dtype_size(storage)),
        scales_(device, rows * 4) {
    std::vector<float> x = normal_values(rows * k, 5);
    for (int64_t row = 0; row < rows; ++row) {
      if (row % 7 == 2) std::fill_n(&x[row * k], k, 0.0f);
      if (row % 7 == 4) x[row * k + 3] = std::nanf("");
      if (row % 7 == 6) x[row * k] = kInfinity;
    }
    if (storage == kF8) {
      const DeviceTensor raw(device, x);
      quantise_rows(device.stream(), raw.view(kF32, {rows, k}), all());
      device.synchronize();
      return;
    }
    std::vector<BFloat16> rounded(x.size());
    std::transform(x.begin(), x.end(), rounded.begin(), [](float v) { return to_bfloat16(v); });
    device.upload(all().values.data, rounded.data(), rounded.size() * sizeof(BFloat16));
  }
  Input all() const {
    const TensorView values = values_.view(storage_, {rows_, k_});
    return storage_ == kF8 ? Input(values, scales_.view(kF32, {rows_})) : Input(values);
  }
  Input row(int64_t at) const {
    const Input whole = all();
    return storage_ == kF8 ? Input(whole.values.rows(at, 1), whole.scales.rows(at, 1))
                           : Input(whole.values.rows(at, 1));
  }

 private:
  int64_t rows_, k_;
  DType storage_;
  DeviceTensor values_, scales_;
};

bool is_poison(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits == 0xffffffff;
}

// `group` against the outputs that it stands for.
void check_group(const GroupSummary& group, const float* outputs, int64_t first, int64_t count, bool weights) {
  const float* const end = outputs + count;
  if (std::any_of(outputs, end, [](float v) { return std::isnan(v); })) {
    ASSERT_TRUE(std::isnan(group.highest));
    return;
  }
  const float* const highest = std::max_element(outputs, end);  // the first of them
  ASSERT_EQ(group.highest, *highest);
  ASSERT_EQ(group.output, first + (highest - outputs));
  if (!weights || !std::isfinite(*highest)) return;
  // The argument is rounded twice, the quick exponential has an error of two units, and a term goes through 17
  // additions at most, which lose half a unit each.
  double weight = 0, bound = 0;
  for (const float* v = outputs; v != end; ++v) {
    const double x = double{*v} - *highest;
    if (std::isinf(x)) continue;
    weight += std::exp(x);
    bound += std::exp(x) * (2 * std::fabs(x) + 11) * 0x1p-23;
  }
  ASSERT_NEAR(group.weight, weight, bound);
}

void check_rows(const std::vector<float>& y, const std::vector<float>& outputs, const std::vector<uint8_t>& whole,
                int64_t n, bool weights) {
  const int64_t groups = summary_groups(n);
  for (size_t row = 0; row < whole.size(); ++row) {
    const float* const mine = &y[row * n];
    const float* const want = &outputs[row * n];
    SCOPED_TRACE(testing::Message() << "row " << row);
    if (whole[row] != 0) {
      ASSERT_EQ(std::memcmp(mine, want, n * sizeof(float)), 0);
      continue;
    }
    for (int64_t g = 0; g < groups; ++g) {
      GroupSummary group;
      std::memcpy(&group, mine + 4 * g, sizeof(group));
      const int64_t first = g * kSummaryGroup;
      ASSERT_NO_FATAL_FAILURE(
          check_group(group, want + first, first, std::min<int64_t>(kSummaryGroup, n - first), weights))
          << "group " << g;
    }
    for (int64_t i = 4 * groups; i < n; ++i) ASSERT_TRUE(is_poison(mine[i])) << "was not to be touched";
  }
}

// y with each tile, and of some rows alone.
void check_tiles(Device& device, const LinearWeight& w, const TestInput& in, int64_t rows, bool weights) {
  Arena none{Buffer()};
  const DeviceTensor stored(device, rows * w.n * 4);
  linear(device.stream(), w, in.all(), stored.view(kF32, {rows, w.n}), {}, none);
  const std::vector<float> outputs = stored.read<float>();
  std::vector<uint8_t> whole(rows);
  std::mt19937 random(7);
  for (uint8_t& flag : whole) flag = random() % 3 == 0;
  const DeviceTensor flags(device, whole);
  const RowSummaries summaries = {flags.view(DType::kU8, {rows}).as<uint8_t>(), weights};

  LinearCudaPlan plan = LinearCudaPlan::make_summarising(w, rows);
  std::vector<float> first;
  for (const LinearTile& tile : LinearCudaPlan::summary_tiles()) {
    SCOPED_TRACE(testing::Message() << tile.rows << " rows a tile" << (tile.shared ? ", shared" : ""));
    plan.tile = tile;
    plan.row_tiles = (rows + tile.rows - 1) / tile.rows;
    const DeviceTensor y(device, rows * w.n * 4);
    linear_tiles_cuda(device.stream(), w, in.all(), y.view(kF32, {rows, w.n}), {.summaries = summaries}, plan);
    const std::vector<float> values = y.read<float>();
    if (first.empty()) {
      first = values;
      ASSERT_NO_FATAL_FAILURE(check_rows(first, outputs, whole, w.n, weights));
    }
    ASSERT_EQ(std::memcmp(values.data(), first.data(), values.size() * 4), 0) << "other bits than the first tile's";
  }
  for (int64_t row = 0; row < rows; row += 1 + rows / 7) {
    const DeviceTensor y(device, w.n * 4);
    const RowSummaries alone = {summaries.whole + row, weights};
    linear(device.stream(), w, in.row(row), y.view(kF32, {1, w.n}), {.summaries = alone}, none);
    ASSERT_EQ(std::memcmp(y.read<float>().data(), &first[row * w.n], w.n * 4), 0) << "row " << row << " alone";
  }
}

void check_storage(Device& device, DType storage) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{4, 64}, {68, 272}, {200, 528}, {1996, 272}}) {
    const LinearWeight w = make_weight(device, n, k, storage);
    if (!linear_summarises(device.stream(), w, storage)) GTEST_SKIP() << "needs sm_90a";
    for (int64_t rows : {1, 8, 9, 33, 130, 200, 300, 520}) {
      const TestInput in(device, rows, k, storage);
      for (bool weights : {false, true}) {
        SCOPED_TRACE(testing::Message() << "n " << n << " k " << k << " rows " << rows << " weights " << weights);
        ASSERT_NO_FATAL_FAILURE(check_tiles(device, w, in, rows, weights));
      }
    }
  }
}

TEST(LinearCudaSummaries, SayWhatBf16OutputsAre) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  check_storage(device, kBF16);
}

TEST(LinearCudaSummaries, SayWhatFp8OutputsAre) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  if (!linear_takes_fp8(DeviceKind::kCuda, device.stream().gpu())) GTEST_SKIP() << "needs sm_90a";
  check_storage(device, kF8);
}

// The flags are read when the kernel runs.
TEST(LinearCudaSummaries, RecordedGraphsFollowTheFlags) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  constexpr int64_t kRows = 20, kOutputs = 200, kColumns = 264;
  const LinearWeight w = make_weight(device, kOutputs, kColumns, kBF16);
  if (!linear_summarises(device.stream(), w, kBF16)) GTEST_SKIP() << "needs sm_90a";
  const TestInput in(device, kRows, kColumns, kBF16);
  const DeviceTensor stored(device, kRows * kOutputs * 4), y(device, kRows * kOutputs * 4), flags(device, kRows);
  const TensorView to = y.view(kF32, {kRows, kOutputs});
  Arena none{Buffer()};
  linear(device.stream(), w, in.all(), stored.view(kF32, {kRows, kOutputs}), {}, none);
  auto* const on_device = flags.view(DType::kU8, {kRows}).as<uint8_t>();
  const auto graph = device.record([&] {
    linear(device.stream(), w, in.all(), to, {.summaries = {on_device, true}}, none);
  });
  std::mt19937 random(3);
  for (int round = 0; round < 4; ++round) {
    std::vector<uint8_t> whole(kRows);
    for (uint8_t& flag : whole) flag = random() % 2;
    device.upload(on_device, whole.data(), whole.size());
    const std::vector<char> poison(kRows * kOutputs * 4, static_cast<char>(0xff));
    device.upload(to.data, poison.data(), poison.size());
    graph->launch();
    ASSERT_NO_FATAL_FAILURE(check_rows(y.read<float>(), stored.read<float>(), whole, kOutputs, true));
  }
}

TEST(LinearCudaSummariesPlan, NeedsTilesAndOneSlice) {
  LinearWeight w;
  w.n = 151936;
  w.k = 4096;
  const bool tiles =
      linear_cuda_kernel({.compute_capability = 90}, w, kBF16) == LinearKernel::kTiles;  // built for sm_90a
  EXPECT_EQ(linear_cuda_summarises({.compute_capability = 90}, w, kBF16), tiles);
  EXPECT_FALSE(linear_cuda_summarises({.compute_capability = 80}, w, kBF16));
  EXPECT_FALSE(linear_cuda_summarises({.compute_capability = 90}, w, kF32));
  w.n = 151934;
  EXPECT_FALSE(linear_cuda_summarises({.compute_capability = 90}, w, kBF16)) << "rows of y must begin on 16 bytes";
  w.n = 4096;
  EXPECT_FALSE(linear_cuda_summarises({.compute_capability = 90}, w, kBF16)) << "k is cut";
  w.n = 151936;
  w.portable = true;
  EXPECT_FALSE(linear_cuda_summarises({.compute_capability = 90}, w, kBF16));
  const auto cpu = make_cpu_device(1);
  ASSERT_TRUE(cpu.ok());
  EXPECT_FALSE(linear_summarises((*cpu)->stream(), w, kBF16));
}

// An output head gets the same tiles whether it summarises or not.
TEST(LinearCudaSummariesPlan, HasTheTilesOfAHead) {
  LinearWeight w;
  w.n = 151936;
  w.k = 4096;
  for (DType storage : {kBF16, kF8}) {
    w.format.code = storage;
    for (int64_t rows = 1; rows <= 1024; ++rows) {
      const LinearCudaPlan plan = LinearCudaPlan::make_summarising(w, rows);
      ASSERT_EQ(plan.tile, LinearCudaPlan::make(w.n, w.k, w.layout, rows, storage).tile) << rows;
      ASSERT_GE(plan.row_tiles * plan.tile.rows, rows);
    }
  }
}

}  // namespace
}  // namespace volley::ops
