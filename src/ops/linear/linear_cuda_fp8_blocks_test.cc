// Protects, on a GPU of compute capability 9.0: FP8 weights with scales of blocks as they are packed, value for value;
// products with rows that have scales in groups, exactly where sums are small whole numbers and within what matrix unit
// and fp32 sums lose elsewhere, for every tile, layout and end; that a row's bits depend on nothing but the row and the
// weights. Plans and refusals are checked anywhere.
#include <gmock/gmock.h>

#include <random>

#include "ops/linear/linear_fp8_for_test.h"
#include "ops/quantise/quantise_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

using testing::HasSubstr;
using Case = Fp8Case;

constexpr DType kF8 = DType::kF8E4M3, kF32 = DType::kF32, kBF16 = DType::kBF16;
constexpr double kRoundBF16 = 0x1p-8;
constexpr int64_t kBlock = 128;  // of a checkpoint, both ways

int64_t blocks_of(int64_t n) {
  return (n + kBlock - 1) / kBlock;
}

// Two matrices that one product takes, each with blocks of its own that begin with its first row.
struct BlockWeights {
  int64_t n, k, first;  // rows of the first
  LinearLayout layout;
  std::vector<uint8_t> codes;  // [n, k]
  std::vector<float> scales;   // [blocks of the first, then of the second][blocks of k]

  // whole: whole numbers from -2 to 2, and powers of two as scales.
  BlockWeights(const Case& c, uint32_t seed, bool whole = false)
      : n(c.n), k(c.k), first(c.kind == EndKind::kSwiGlu ? n / 2 : n / 96 * 32), layout(layout_of(c.kind)) {
    std::mt19937 random(seed);
    constexpr uint8_t kWhole[] = {0x00, 0x38, 0xb8, 0x40, 0xc0};  // 0, 1, -1, 2, -2
    for (int64_t i = 0; i < n * k; ++i) {
      // Otherwise magnitudes from 2^-6 to 60.
      codes.push_back(whole ? kWhole[random() % 5] : static_cast<uint8_t>(random() % 2 * 128 + 8 + random() % 96));
    }
    for (int64_t i = 0; i < (blocks_of(first) + blocks_of(n - first)) * blocks_of(k); ++i) {
      const auto exponent = static_cast<int>(random() % 5) - (whole ? 2 : 12);
      scales.push_back(std::ldexp(whole ? 1.0f : 1 + static_cast<float>(random() % 1000) / 1000, exponent));
    }
  }
  int64_t block_row(int64_t row) const {
    return row < first ? row / kBlock : blocks_of(first) + (row - first) / kBlock;
  }
  float scale(int64_t row, int64_t block) const { return scales[block_row(row) * blocks_of(k) + block]; }
  std::vector<float> values_of(int64_t row) const {  // of the codes
    std::vector<float> values;
    for (int64_t i = 0; i < k; ++i) values.push_back(to_float(Float8E4M3{codes[row * k + i]}));
    return values;
  }
  std::vector<WeightRows> parts() const {
    const auto from = [this](int64_t begin, int64_t rows) {
      WeightRows part;
      part.rows = rows;
      part.codes = [this, begin](int64_t row, const CodedRow& out) {
        std::copy_n(&codes[(begin + row) * k], k, out.codes.begin());
        for (size_t g = 0; g < out.scales.size(); ++g) out.scales[g] = scale(begin + row, static_cast<int64_t>(g));
      };
      return part;
    };
    return {from(0, first), from(first, n - first)};
  }
  LinearWeight pack(Device& device) const {
    return std::move(pack_linear(device, parts(), k, kFp8Blocks, layout)).value();
  }
};

// Rows of x as codes on the device.
class GroupedInput {
 public:
  GroupedInput(Device& device, const std::vector<float>& x, int64_t k)
      : k_(k),
        rows_(static_cast<int64_t>(x.size()) / k),
        codes_(device, x.size()),
        scales_(device, static_cast<size_t>(blocks_of(k) * stride()) * sizeof(float)) {
    const DeviceTensor values(device, x);
    quantise_rows(device.stream(), values.view(kF32, {rows_, k}), view());
    device.synchronize();
  }
  Input view() const { return {codes_.view(kF8, {rows_, k_}), scales_.view(kF32, {blocks_of(k_), stride()})}; }

 private:
  int64_t stride() const { return (rows_ + 3) / 4 * 4; }

  int64_t k_, rows_;
  DeviceTensor codes_, scales_;
};

// y of these rows of x; y starts as the same rows of `before` where it is added to.
struct Rows {
  int64_t begin = 0, count = 0;
};
std::vector<char> run(Device& device, const LinearWeight& w, const Case& c, const std::vector<float>& x, Rows rows,
                      const std::vector<float>& before = {}, const LinearCudaPlan* plan = nullptr,
                      TensorView bias = {}) {
  const int64_t outputs = c.outputs(), end_row = rows.begin + rows.count;
  const GroupedInput in(device, {&x[rows.begin * c.k], &x[end_row * c.k]}, c.k);
  const DeviceTensor out =
      c.kind == EndKind::kAdd
          ? DeviceTensor(device, std::vector<float>(&before[rows.begin * outputs], &before[end_row * outputs]))
          : DeviceTensor(device, static_cast<size_t>(rows.count * outputs) * dtype_size(c.y));
  const TensorView y = out.view(c.y, {rows.count, outputs});
  const End end = {c.kind, bias};
  if (plan != nullptr) {
    linear_tiles_cuda(device.stream(), w, in.view(), y, end, *plan);
  } else {
    Arena none{Buffer()};
    linear(device.stream(), w, in.view(), y, end, none);
  }
  return out.read<char>();
}

TEST(LinearCudaFp8Blocks, PacksTheCodesAndTheirScales) {
  FP8_DEVICE_OR_SKIP(device);
  for (const Case& c : {Case{456, 400, EndKind::kStore, kF32}, {456, 400, EndKind::kSwiGlu, kBF16}}) {
    const BlockWeights from(c, 2);
    const LinearWeight w = from.pack(device);
    EXPECT_EQ(static_cast<int64_t>(w.packed.bytes()),
              packed_bytes(DeviceKind::kCuda, c.n, c.k, kFp8Blocks, from.layout));
    const int64_t blocks = linear_cuda_k_blocks(c.k, kF8), panels = linear_cuda_panels(c.n, from.layout);
    std::vector<uint8_t> packed(w.packed.bytes());
    device.download(packed.data(), w.packed.data(), packed.size());
    std::vector<float> scales(panels * 2 * blocks);
    device.download(scales.data(), linear_cuda_scales(w), scales.size() * sizeof(float));
    for (int64_t row = 0; row < c.n; ++row) {
      const int64_t to = packed_row(row, c.n, from.layout), r = to % kPanelRows;
      for (int64_t i = 0; i < blocks * 128; ++i) {
        const int64_t block = to / kPanelRows * blocks + i / 128, piece = i % 128 / 16;
        const uint8_t code = packed[block * kBlockBytes + r * 128 + (piece ^ (r % 8)) * 16 + i % 16];
        ASSERT_EQ(code, i < c.k ? from.codes[row * c.k + i] : 0) << "row " << row << " column " << i;
        ASSERT_EQ(scales[to / 32 * blocks + i / 128], from.scale(row, i / 128)) << "row " << row << " column " << i;
      }
    }
  }
}

// Rows of whole numbers from -2 to 2 times a power of two for each group, which begins with 448 times it and has a zero
// in the weights there.
std::vector<float> whole_rows(int64_t rows, int64_t k) {
  std::mt19937 random(3);
  std::vector<float> values(rows * k);
  for (int64_t i = 0; i < rows * k; ++i) {
    const int exponent = static_cast<int>((i / k + i % k / kBlock) % 4) - 2;
    values[i] = std::ldexp(i % k % kBlock == 0 ? 448.0f : static_cast<float>(random() % 5) - 2, exponent);
  }
  return values;
}

// Every tile, one and two slices of k, and ends that no tile divides: each output is the number that it must be.
TEST(LinearCudaFp8Blocks, WholeNumbersAreExact) {
  FP8_DEVICE_OR_SKIP(device);
  for (const Case& c : {Case{200, 80, EndKind::kStore, kF32},
                        {1000, 528, EndKind::kStore, kF32},
                        {332, 2064, EndKind::kAdd, kF32},
                        {2000, 4352, EndKind::kStore, kF32},
                        {9000, 272, EndKind::kAdd, kF32}}) {
    const int64_t most = 300;
    BlockWeights from(c, 1, true);
    for (int64_t i = 0; i < c.n * c.k; ++i) {
      if (i % c.k % kBlock == 0) from.codes[i] = 0;
    }
    const std::vector<float> x = whole_rows(most, c.k), before(most * c.n, 0.25f);
    std::vector<float> want(most * c.n);
    for (int64_t output = 0; output < c.n; ++output) {
      std::vector<float> weights = from.values_of(output);
      for (int64_t i = 0; i < c.k; ++i) weights[i] *= from.scale(output, i / kBlock);
      for (int64_t row = 0; row < most; ++row) {
        float sum = 0;
        for (int64_t i = 0; i < c.k; ++i) sum += x[row * c.k + i] * weights[i];
        want[row * c.n + output] = c.kind == EndKind::kAdd ? before[0] + sum : sum;
      }
    }
    const LinearWeight w = from.pack(device);
    for (int64_t rows : {1, 9, 130, 300}) {
      for_tiles(c, kFp8Blocks, rows, [&](const LinearCudaPlan& plan) {
        const std::vector<float> y = decode(run(device, w, c, x, {0, rows}, before, &plan), kF32);
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(y[i], want[i]) << "row " << i / c.n << " output " << i % c.n;
        }
      });
    }
  }
}

// A row as the quantiser makes it.
struct GroupedRow {
  std::vector<QuantisedRow> groups;

  GroupedRow(const float* x, int64_t k) {
    for (int64_t i = 0; i < k; i += kBlock) groups.emplace_back(x + i, std::min(kBlock, k - i));
  }
};

Sum oracle(const BlockWeights& from, int64_t output, const GroupedRow& x) {
  const std::vector<float> weights = from.values_of(output);
  Sum sum;
  for (int64_t g = 0; g < blocks_of(from.k); ++g) {
    const QuantisedRow& group = x.groups[g];
    const Sum block =
        sum_of_codes(&weights[g * kBlock], group.values.data(), static_cast<int64_t>(group.values.size()));
    const double scale = double{from.scale(output, g)} * group.scale, term = block.value * scale;
    sum.value += term;
    // The product of the scales and the sum so far are rounded to fp32.
    sum.bound += block.bound * scale * 1.001 + 0x1p-23 * (std::fabs(term) + std::fabs(sum.value));
  }
  return sum;
}

// Values of every output, or of some thousand; and that errors are small where bounds are wide.
void check_values(Device& device, const Case& c, std::initializer_list<int64_t> batches) {
  const BlockWeights from(c, 11);
  const LinearWeight w = from.pack(device);
  const int64_t most = std::max(batches), outputs = c.outputs();
  std::vector<float> x = normal_values(most * c.k, 5);
  for (int64_t i = 0; i < most * c.k; ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(i / kBlock % 7) - 3);
  const std::vector<float> before = normal_values(most * outputs, 6);
  for (int64_t count : batches) {
    const std::vector<float> y = decode(run(device, w, c, x, {0, count}, before), c.y);
    for (float v : y) ASSERT_FALSE(std::isnan(v)) << "an output was not written";
    double errors = 0, squares = 0, worst = 0;
    for (int64_t i = 0; i < count * outputs; i += 1 + c.k * count * outputs / (int64_t{1} << 22)) {
      const int64_t output = i % outputs;
      const GroupedRow row(&x[i / outputs * c.k], c.k);
      Sum want = oracle(from, output, row);
      if (c.kind == EndKind::kSwiGlu) want = swiglu_of(want, oracle(from, outputs + output, row));
      if (c.kind == EndKind::kAdd) want.value += before[i];
      want.bound += std::fabs(want.value) * (c.y == kBF16 ? kRoundBF16 : 0x1p-22) + 0x1p-22;
      ASSERT_NEAR(y[i], want.value, want.bound) << "row " << i / outputs << " of " << count << " output " << output;
      errors += (y[i] - want.value) * (y[i] - want.value);
      squares += want.value * want.value;
      worst = std::max(worst, std::fabs(y[i] - want.value) / want.bound);
    }
    EXPECT_LT(std::sqrt(errors / squares), 2e-3 + (c.y == kBF16 ? kRoundBF16 / 2 : 0));
    std::printf("n %d k %d rows %d: error %.2e of the result, at most %.3f of the bound\n", static_cast<int>(c.n),
                static_cast<int>(c.k), static_cast<int>(count), std::sqrt(errors / squares), worst);
  }
}

TEST(LinearCudaFp8Blocks, MatchesOracle) {
  FP8_DEVICE_OR_SKIP(device);
  const auto rows = {int64_t{1}, int64_t{16}, int64_t{65}, int64_t{192}, int64_t{300}};
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {200, 80}, {1000, 528}, {1984, 4096}}) {
    check_values(device, {n, k, EndKind::kStore, kF32}, rows);
    check_values(device, {n, k, EndKind::kStore, kBF16}, rows);
    check_values(device, {n, k, EndKind::kAdd, kF32}, rows);
    check_values(device, {n, k, EndKind::kSwiGlu, kBF16}, rows);
  }
}

// More blocks of k than lanes hold scales for: 97, in one slice and in two.
TEST(LinearCudaFp8Blocks, LongRowsMatchTheOracleToo) {
  FP8_DEVICE_OR_SKIP(device);
  for (int64_t n : {256, 9000}) check_values(device, {n, 97 * 128, EndKind::kStore, kF32}, {3, 40});
}

TEST(LinearCudaFp8Blocks, RowsAreIndependent) {
  FP8_DEVICE_OR_SKIP(device);
  for (const Case& c : {Case{6144, 4096, EndKind::kStore, kF32},
                        {4096, 4096, EndKind::kAdd, kF32},
                        {24576, 512, EndKind::kSwiGlu, kBF16},
                        {1000, 1040, EndKind::kStore, kF32}}) {
    const LinearWeight w = BlockWeights(c, 11).pack(device);
    const std::vector<float> before = normal_values(512 * c.outputs(), 6), x = normal_values(512 * c.k, 3);
    const size_t row_bytes = c.outputs() * dtype_size(c.y);
    for (int64_t row : {0, 7, 256, 511}) {
      const std::vector<char> want = run(device, w, c, x, {row, 1}, before);
      for (int64_t rows : {2, 13, 16, 32, 64, 96, 128, 192, 400, 512}) {
        const int64_t begin = std::max<int64_t>(0, std::min(row - rows / 3, 512 - rows));
        const std::vector<char> y = run(device, w, c, x, {begin, rows}, before);
        ASSERT_EQ(std::memcmp(&y[(row - begin) * row_bytes], want.data(), row_bytes), 0)
            << "row " << row << " in a batch of " << rows << " from " << begin << ", n " << c.n << " k " << c.k;
      }
    }
  }
}

// Also tiles that the plan does not choose for these rows; and a row of NaN stays alone.
void check_tiles(Device& device, int64_t rows, std::initializer_list<Case> cases) {
  for (const Case& c : cases) {
    const LinearWeight w = BlockWeights(c, 11).pack(device);
    const std::vector<float> before = normal_values(rows * c.outputs(), 6);
    std::vector<float> x = normal_values(rows * c.k, 3);
    const std::vector<char> clean = run(device, w, c, x, {0, rows}, before);
    x[3 * c.k + 5] = std::nanf("");
    const size_t row_bytes = c.outputs() * dtype_size(c.y);
    for_tiles(c, kFp8Blocks, rows, [&](const LinearCudaPlan& plan) {
      std::vector<char> y = run(device, w, c, x, {0, rows}, before, &plan);
      const auto third = y.begin() + static_cast<int64_t>(3 * row_bytes);
      for (float v : decode({third, third + static_cast<int64_t>(row_bytes)}, c.y)) ASSERT_TRUE(std::isnan(v));
      std::copy_n(&clean[3 * row_bytes], row_bytes, third);
      ASSERT_EQ(std::memcmp(y.data(), clean.data(), y.size()), 0);
    });
  }
}

TEST(LinearCudaFp8Blocks, TilesGiveTheSameBits) {
  FP8_DEVICE_OR_SKIP(device);
  check_tiles(device, 200,
              {{2000, 1040, EndKind::kStore, kF32},
               {2000, 2064, EndKind::kAdd, kF32},
               {2000, 2064, EndKind::kSwiGlu, kBF16},
               {24576, 256, EndKind::kSwiGlu, kBF16}});
}

// As little work as reaches every tile, with one and two slices of k: what compute-sanitizer gets through.
TEST(LinearCudaFp8Blocks, FewBlocksOfEveryTileGiveTheSameBits) {
  FP8_DEVICE_OR_SKIP(device);
  check_tiles(
      device, 130,
      {{200, 2064, EndKind::kAdd, kF32}, {200, 528, EndKind::kStore, kF32}, {400, 272, EndKind::kSwiGlu, kBF16}});
}

TEST(LinearCudaFp8Blocks, BiasIsAddedToTheSum) {
  FP8_DEVICE_OR_SKIP(device);
  const int64_t rows = 130;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{200, 528}, {200, 2064}, {2880, 4096}}) {
    const Case plain = {n, k, EndKind::kStore, kF32};
    const LinearWeight w = BlockWeights(plain, 11).pack(device);
    const std::vector<float> before = normal_values(rows * n, 6), bias = normal_values(n, 7);
    const DeviceTensor bias_device(device, bias);
    const TensorView bias_view = bias_device.view(kF32, {n});
    const std::vector<float> x = normal_values(rows * k, 3);
    const std::vector<float> sums = decode(run(device, w, plain, x, {0, rows}), kF32);
    for (EndKind kind : {EndKind::kStore, EndKind::kAdd}) {
      const Case c = {n, k, kind, kF32};
      std::vector<float> want = sums;
      for (int64_t i = 0; i < rows * n; ++i) {
        want[i] += bias[i % n];
        if (kind == EndKind::kAdd) want[i] += before[i];
      }
      ASSERT_EQ(decode(run(device, w, c, x, {0, rows}, before, nullptr, bias_view), kF32), want);
      LinearCudaPlan plan = LinearCudaPlan::make_biased(w, rows);
      for (const LinearTile& tile : LinearCudaPlan::bias_tiles()) {
        plan.tile = tile;
        plan.row_tiles = (rows + tile.rows - 1) / tile.rows;
        ASSERT_EQ(decode(run(device, w, c, x, {0, rows}, before, &plan, bias_view), kF32), want) << tile.rows;
      }
    }
  }
}

// Plain rows become codes on the way, as the quantiser makes them.
TEST(LinearCudaFp8Blocks, PlainRowsAreQuantisedFirst) {
  FP8_DEVICE_OR_SKIP(device);
  const Case c = {200, 528, EndKind::kStore, kF32};
  const int64_t rows = 19, room = arena_bytes(rows * c.k) + arena_bytes(5 * 20 * 4);
  const std::vector<float> values = normal_values(rows * c.k, 3);
  const LinearWeight w = BlockWeights(c, 11).pack(device);
  const DeviceTensor plain(device, values), y(device, rows * c.n * 4);
  Arena scratch(std::move(device.allocate(room)).value());
  linear(device.stream(), w, plain.view(kF32, {rows, c.k}), y.view(kF32, {rows, c.n}), {}, scratch);
  EXPECT_EQ(y.read<char>(), run(device, w, c, values, {0, rows}));
  EXPECT_EQ(scratch.mark(), 0u);
}

TEST(LinearCudaFp8Blocks, ArePackedOfCodesAlone) {
  FP8_DEVICE_OR_SKIP(device);
  const std::vector<float> values(64 * 128);
  const std::vector<WeightRows> parts = {{values.data(), kF32, 64}};
  const auto packed = pack_linear(device, parts, 128, kFp8Blocks);
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, ErrorCode::kUnimplemented);
  EXPECT_THAT(packed.error().message, HasSubstr("float8_e4m3/32x128"));
}

TEST(LinearCudaFp8BlocksPlan, PackedBytesHoldBlocksAndScales) {
  EXPECT_EQ(linear_cuda_packed_bytes(128, 208, kFp8Blocks, LinearLayout::kPlain), 2 * 2 * 8192 + 4 * 2 * 4);
  EXPECT_EQ(linear_cuda_packed_bytes(66, 64, kFp8Blocks, LinearLayout::kGateUp), 2 * 8192 + 4 * 4);
}

// The split is part of the arithmetic and does not move with the rows; and no tile holds more sums than registers do.
TEST(LinearCudaFp8BlocksPlan, SplitDoesNotDependOnTheRows) {
  for (int64_t n : {64, 4096, 6144, 24576}) {
    const int split = LinearCudaPlan::make(n, 4096, LinearLayout::kPlain, 1, kFp8Blocks).split;
    for (int64_t rows = 1; rows <= 600; ++rows) {
      const LinearCudaPlan plan = LinearCudaPlan::make(n, 4096, LinearLayout::kPlain, rows, kFp8Blocks);
      ASSERT_EQ(plan.split, split);
      ASSERT_GE(plan.tile.rows * plan.row_tiles, rows);
      ASSERT_LE(plan.tile.rows, 128);
      ASSERT_FALSE(plan.tile.shared || plan.tile.by_rows);
    }
  }
}

TEST(LinearCudaFp8BlocksPlan, AreNotSummarised) {
  LinearWeight w;
  w.n = 151936;
  w.k = 4096;
  w.format = kFp8Blocks;
  EXPECT_EQ(linear_cuda_kernel({.compute_capability = 90}, w, kF8), LinearKernel::kTiles);
  EXPECT_FALSE(linear_cuda_summarises({.compute_capability = 90}, w, kF8));
}

TEST(LinearCudaFp8BlocksPlan, AreNoFormatOfTheCpu) {
  auto device = std::move(make_cpu_device(1)).value();
  const BlockWeights from({64, 128, EndKind::kStore, kF32}, 1);
  EXPECT_EQ(pack_linear(*device, from.parts(), 128, kFp8Blocks).error().code, ErrorCode::kUnimplemented);
}

}  // namespace
}  // namespace volley::ops
