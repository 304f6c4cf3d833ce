// Protects, on a GPU of compute capability 9.0: FP8 weights with scales of blocks as they are packed, value for value;
// products with rows that have scales in groups, exactly where sums are small whole numbers and within what matrix unit
// and fp32 sums lose elsewhere, for every tile, layout and end; that a row's bits depend on nothing but the row and the
// weights. Plans and refusals are checked anywhere.
#include <gmock/gmock.h>

#include <random>

#include "ops/linear/cuda/linear_cuda_fp8_for_test.h"
#include "ops/quantise/quantise_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

using testing::HasSubstr;
using Case = Fp8Case;

constexpr DType kF8 = DType::kF8E4M3, kF32 = DType::kF32, kBF16 = DType::kBF16;
constexpr int64_t kBlock = 128;  // a checkpoint's block, both ways

int64_t blocks_of(int64_t n) {
  return (n + kBlock - 1) / kBlock;
}

// A row as the quantiser makes it.
struct GroupedRow {
  std::vector<QuantisedRow> groups;

  GroupedRow(const float* x, int64_t k) {
    for (int64_t i = 0; i < k; i += kBlock) groups.emplace_back(x + i, std::min(kBlock, k - i));
  }
};

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
  std::vector<float> values_of(int64_t row) const {  // values of the codes
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

  static constexpr WeightFormat kFormat = kFp8Blocks;
  using Row = GroupedRow;
  Sum oracle(int64_t output, const Row& x) const {
    const std::vector<float> weights = values_of(output);
    Sum sum;
    for (int64_t g = 0; g < blocks_of(k); ++g) {
      const QuantisedRow& group = x.groups[g];
      const Sum block =
          sum_of_codes(&weights[g * kBlock], group.values.data(), static_cast<int64_t>(group.values.size()));
      const double scales = double{scale(output, g)} * group.scale, term = block.value * scales;
      sum.value += term;
      // The product of the scales and the sum so far are rounded to fp32.
      sum.bound += block.bound * scales * 1.001 + 0x1p-23 * (std::fabs(term) + std::fabs(sum.value));
    }
    return sum;
  }
  static std::vector<float> inputs(int64_t rows, int64_t k) {
    std::vector<float> x = normal_values(rows * k, 5);
    for (int64_t i = 0; i < rows * k; ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(i / kBlock % 7) - 3);
    return x;
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(LinearCudaFp8Blocks, Fp8Products, BlockWeights);

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
  for (const Case& c : kExactCases) {
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
    expect_exact(device, c, from.pack(device), x, before, want);
  }
}

// More blocks of k than lanes hold scales for: 97, in one slice and in two.
TEST(LinearCudaFp8Blocks, LongRowsMatchTheOracleToo) {
  FP8_DEVICE_OR_SKIP(device);
  for (int64_t n : {256, 9000}) check_values<BlockWeights>(device, {n, 97 * 128, EndKind::kStore, kF32}, {3, 40});
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

// And no tile holds more sums than registers do.
TEST(LinearCudaFp8BlocksPlan, SplitDoesNotDependOnTheRows) {
  expect_split_kept(kFp8Blocks, {64, 4096, 6144, 24576}, [](const LinearCudaPlan& plan) {
    ASSERT_LE(plan.tile.rows, 128);
    ASSERT_FALSE(plan.tile.shared || plan.tile.by_rows);
  });
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
