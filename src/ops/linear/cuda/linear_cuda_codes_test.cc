// Protects: codes of 4, 6 and 8 bits as they are packed, code for code, on any machine; and on a GPU, that a product
// with codes is that with the bf16 weights that they stand for, bit for bit, by every kernel and every tile.
#include <gtest/gtest.h>

#include <bit>

#include "ops/device_for_test.h"
#include "ops/linear/cuda/linear_cuda_codes.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
constexpr WeightFormat kFormats[] = {kInt4Weights,
                                     kMxfp4Weights,
                                     kNvfp4Weights,
                                     WeightFormat(DType::kI4, 1, 16),
                                     WeightFormat(DType::kI4, 1, 128),
                                     WeightFormat(DType::kI4, 1, 32, true),
                                     WeightFormat(DType::kI4, 1, 64, true),
                                     WeightFormat(DType::kI4, 1, 128, true),
                                     kInt4Minimums,
                                     WeightFormat(DType::kI4, 1, 64, false, true),
                                     kInt8Weights,
                                     kInt6Weights,
                                     kInt6Minimums,
                                     WeightFormat(DType::kI6, 1, 16, false, true),
                                     kInt8Minimums};

// Scales as in checkpoints: fp32, bf16 or fp16 numbers, powers of two.
enum class Scales { kF32, kBF16, kF16 };

float scale_of(const WeightFormat& format, Scales scales, float value) {
  if (format == kMxfp4Weights) {
    const uint32_t exponents = scales == Scales::kF32 ? 12 : 9;  // up to 8, or all below 2
    return std::ldexp(1.0f, static_cast<int>(std::bit_cast<uint32_t>(value) % exponents) - 8);
  }
  const float scale = value * 0.01f;
  if (scales == Scales::kBF16) return to_float(to_bfloat16(scale));
  const bool few_bits = scales == Scales::kF16 || format.zeros || format.minimums;
  if (few_bits) return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xffffe000);
  return scale;
}

// A matrix of codes of all kinds, and the values that they stand for.
struct Codes {
  WeightFormat format;
  int64_t n, k, groups;
  std::vector<uint8_t> codes, zeros;
  std::vector<float> scales, minimums;

  Codes(const WeightFormat& format, Scales scale_type, int64_t n, int64_t k)
      : format(format), n(n), k(k), groups((k + format.group_k - 1) / format.group_k) {
    for (float v : normal_values(n * k, 1))
      codes.push_back(std::bit_cast<uint32_t>(v) >> 9 & ((1 << format.code_bits()) - 1));
    for (float v : normal_values(n * groups, 2)) {
      scales.push_back(scale_of(format, scale_type, v));
      zeros.push_back(format.zeros ? std::bit_cast<uint32_t>(v) % 17 : format.minimums ? 0 : 8);
      minimums.push_back(format.minimums ? v * -0.03f : 0);
    }
  }
  float value(int64_t row, int64_t i) const {
    const uint8_t code = codes[row * k + i];
    const int64_t group = row * groups + i / format.group_k;
    if (format.code == DType::kF4E2M1) return kFloat4E2M1[code & 7] * (code < 8 ? scales[group] : -scales[group]);
    const int zero = format.code == DType::kI6 ? 32 : format.code == DType::kI8 ? 0 : zeros[group];
    const int integer = format.code == DType::kI8 ? static_cast<int8_t>(code) : code - zero;
    const float product = static_cast<float>(integer) * scales[group];
    return format.minimums ? product + minimums[group] : product;
  }
  WeightRows rows(int64_t first, int64_t count) const {
    WeightRows part;
    part.rows = count;
    part.codes = [this, first](int64_t row, const CodedRow& out) {
      row += first;
      std::copy_n(&codes[row * k], k, out.codes.begin());
      std::copy_n(&scales[row * groups], groups, out.scales.begin());
      if (!out.zeros.empty()) std::copy_n(&zeros[row * groups], groups, out.zeros.begin());
      if (!out.minimums.empty()) std::copy_n(&minimums[row * groups], groups, out.minimums.begin());
    };
    return part;
  }
  std::vector<WeightRows> parts(LinearLayout layout) const {
    const int64_t first = layout == LinearLayout::kGateUp ? n / 2 : n / 3;
    return {rows(0, first), rows(first, n - first)};
  }
};

// The description of the layout, read as the matrix unit's lanes do.
void check_packed(const Codes& codes, LinearLayout layout) {
  auto device = *make_cpu_device(1);
  const LinearWeight w = std::move(pack_codes(*device, codes.parts(layout), codes.k, codes.format, layout)).value();
  ASSERT_EQ(static_cast<int64_t>(w.packed.bytes()), linear_codes_bytes(codes.n, codes.k, codes.format, layout));
  const bool least = codes.format.minimums;
  const int64_t blocks = (codes.k + 63) / 64, bits = codes.format.code_bits();
  const int64_t in_row = code_scales(codes.format), words = least ? 2 * in_row : in_row;
  const auto* packed = static_cast<const uint32_t*>(w.packed.data());
  int64_t seen = 0;
  for (int64_t row = 0; row < codes.n; ++row) {
    const int64_t at = packed_row(row, codes.n, layout);
    for (int64_t block = 0; block < blocks; ++block) {
      const uint32_t* half = packed + ((at / 64 * blocks + block) * 2 + at % 64 / 32) * (64 * bits + 32 * words);
      for (int64_t lane = 0; lane < 32; ++lane) {
        for (int64_t i = 0; i < 4; ++i) {
          if (lane / 4 + i % 2 * 8 != at % 16) continue;
          for (int64_t step = 0; step < 4; ++step) {
            for (int64_t e = 0; e < 2; ++e) {
              const int64_t column = block * 64 + step * 16 + i / 2 * 8 + lane % 4 * 2 + e;
              if (column >= codes.k) continue;
              const int64_t in_set = at % 32 / 16 * 32 + lane;
              uint32_t code = half[in_set * 4 + step] >> (4 * i + 16 * e) & 0xf;
              if (bits == 8) code |= (half[256 + in_set * 4 + step] >> (4 * i + 16 * e) & 0xf) << 4;
              if (bits == 6) code |= (half[256 + in_set * 2 + step / 2] >> (step % 2 * 8 + 2 * i + 16 * e) & 3) << 4;
              if (codes.format.code == DType::kI8) code ^= 0x80;
              ASSERT_EQ(code, codes.codes[row * codes.k + column]) << row << ", " << column;
              const int64_t group = column / codes.format.group_k;
              const int64_t in_block = column % 64 * in_row / 64;
              const uint32_t* scales = half + 64 * bits + (at % 32 / 16 * 8 + at % 8) * 2 * words + at % 16 / 8;
              uint32_t scale = scales[in_block * 2];
              if (least) {
                ASSERT_EQ(std::bit_cast<float>(scales[(in_row + in_block) * 2]),
                          codes.minimums[row * codes.groups + group]);
              }
              if (codes.format.zeros) {
                ASSERT_EQ(scale & 0xff, codes.zeros[row * codes.groups + group]);
                scale &= ~0xffu;
              }
              ASSERT_EQ(std::bit_cast<float>(scale), codes.scales[row * codes.groups + group]);
              ++seen;
            }
          }
        }
      }
    }
  }
  ASSERT_EQ(seen, codes.n * codes.k);
}

TEST(LinearCudaCodes, PackingKeepsEveryCode) {
  for (const WeightFormat& format : kFormats) {
    SCOPED_TRACE(format_name(format));
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{152, 264}, {64, 64}, {2, 1}, {130, 77}}) {
      for (LinearLayout layout : {LinearLayout::kPlain, LinearLayout::kGateUp}) {
        check_packed(Codes(format, Scales::kF32, n, k), layout);
      }
    }
  }
}

// Values that become codes leave an error of half a step, or the last code's distance from the largest.
TEST(LinearCudaCodes, QuantisesWhatIsPlain) {
  auto device = *make_cpu_device(1);
  const int64_t n = 64, k = 96;
  std::vector<float> values = normal_values(n * k, 3);
  values[5 * k + 40] = std::nanf("");
  const std::vector<WeightRows> parts = {{values.data(), kF32, n}};
  const LinearWeight w = std::move(pack_codes(*device, parts, k, kInt4Weights, LinearLayout::kPlain)).value();
  const auto* packed = static_cast<const uint32_t*>(w.packed.data());
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      const uint32_t* half = packed + (i / 64 * 2 + row / 32) * (256 + 64);
      const CodePlace place = code_place(static_cast<int>(row % 32), static_cast<int>(i % 64));
      const uint32_t bits = half[scale_place(static_cast<int>(row % 32), static_cast<int>(i % 64 / 32), 2, 4)];
      ASSERT_EQ(bits & 0xffff, 0u) << "a scale is no bf16 number";
      const float scale = std::bit_cast<float>(bits);
      if (row == 5 && i / 32 == 1) {
        ASSERT_TRUE(std::isnan(scale));
        continue;
      }
      const auto code = static_cast<int>(half[place.word] >> place.bit & 0xf) - 8;
      ASSERT_NEAR(static_cast<float>(code) * scale, values[row * k + i], 1.1f * std::fabs(scale)) << row << ", " << i;
    }
  }
}

TEST(LinearCudaCodes, RefusesScalesThatLeaveNoRoomForZeroPoints) {
  auto device = *make_cpu_device(1);
  const WeightFormat format(DType::kI4, 1, 32, true);
  Codes codes(format, Scales::kF16, 8, 64);
  codes.scales[3] = 0.1f;
  const auto packed = pack_codes(*device, codes.parts(LinearLayout::kPlain), 64, format, LinearLayout::kPlain);
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.error().message.find("bfloat16 or float16"), std::string::npos);
}

TEST(LinearCudaCodesPlan, KeepsTheSplitAndFitsTheRows) {
  LinearWeight w;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {4096, 4096}, {6144, 4096}, {4096, 12288}}) {
    w.n = n;
    w.k = k;
    for (bool biased : {false, true}) {
      for (int64_t rows = 1; rows <= 600; rows += 7) {
        const LinearCudaPlan plan = linear_codes_plan(w, rows, biased);
        ASSERT_EQ(plan.split, LinearCudaPlan::make(n, k, LinearLayout::kPlain, rows).split);
        ASSERT_GT(plan.tile.halves, 0) << rows;
        ASSERT_GE(plan.tile.rows * plan.row_tiles, rows);
        if (rows <= 128) {
          ASSERT_EQ(plan.row_tiles, 1);
        }
      }
    }
  }
}

struct Case {
  int64_t n, k, rows;
  EndKind kind;
  DType y;
  bool biased = false;

  LinearLayout layout() const { return kind == EndKind::kSwiGlu ? LinearLayout::kGateUp : LinearLayout::kPlain; }
  int64_t outputs() const { return kind == EndKind::kSwiGlu ? n / 2 : n; }
};

class Products {
 public:
  Products(Device& device, const Case& c, DType x)
      : device_(device),
        c_(c),
        x_type_(x),
        x_(device, encoded(normal_values(c.rows * c.k, 3), x)),
        bias_(device, normal_values(c.n, 4)),
        before_(normal_values(c.rows * c.n, 5)) {}

  // y of the first `rows` rows by what `multiply` puts on the stream.
  template <typename Multiply>
  std::vector<char> run(int64_t rows, const Multiply& multiply) const {
    const auto count = static_cast<size_t>(rows * c_.outputs());
    const DeviceTensor y =
        c_.kind == EndKind::kAdd
            ? DeviceTensor(device_, std::vector<float>(before_.begin(), before_.begin() + static_cast<int64_t>(count)))
            : DeviceTensor(device_, count * dtype_size(c_.y));
    End end = {c_.kind};
    if (c_.biased) end.bias = bias_.view(kF32, {c_.n});
    multiply(x_.view(x_type_, {c_.rows, c_.k}).rows(0, rows), y.view(c_.y, {rows, c_.outputs()}), end);
    return y.template read<char>();
  }
  std::vector<char> run(int64_t rows, const LinearWeight& w) const {
    Arena none{Buffer()};
    return run(rows, [&](TensorView x, TensorView y, const End& end) { linear(device_.stream(), w, x, y, end, none); });
  }

 private:
  static std::vector<char> encoded(const std::vector<float>& values, DType dtype) {
    std::vector<char> bytes(values.size() * dtype_size(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      const BFloat16 b = to_bfloat16(values[i]);
      dtype == kBF16 ? std::memcpy(&bytes[i * 2], &b, 2) : std::memcpy(&bytes[i * 4], &values[i], 4);
    }
    return bytes;
  }

  Device& device_;
  Case c_;
  DType x_type_;
  DeviceTensor x_, bias_;
  std::vector<float> before_;
};

LinearWeight widened(Device& device, const Codes& codes, LinearLayout layout, DType type) {
  std::vector<WeightRows> parts = codes.parts(layout);
  int64_t first = 0;
  for (WeightRows& part : parts) {
    part.codes = {};
    part.values = [&codes, first](int64_t row, float* values) {
      for (int64_t i = 0; i < codes.k; ++i) values[i] = codes.value(first + row, i);
    };
    first += part.rows;
  }
  return std::move(pack_linear(device, parts, codes.k, type, layout)).value();
}

void check_case(Device& device, const WeightFormat& format, Scales scales, const Case& c) {
  SCOPED_TRACE(testing::Message() << format_name(format) << " scales " << static_cast<int>(scales) << ", n " << c.n
                                  << " k " << c.k << " end " << static_cast<int>(c.kind));
  const Codes codes(format, scales, c.n, c.k);
  LinearWeight w = std::move(pack_linear(device, codes.parts(c.layout()), c.k, format, c.layout())).value();
  LinearWeight plain = widened(device, codes, c.layout(), kBF16);
  const Products products(device, c, kBF16);
  for (int64_t rows : {int64_t{1}, int64_t{5}, int64_t{16}, int64_t{33}, c.rows}) {
    if (rows > c.rows) continue;
    const std::vector<char> want = products.run(rows, plain);
    w.portable = false;
    ASSERT_EQ(products.run(rows, w), want) << rows << " rows";
    w.portable = true;
    ASSERT_EQ(products.run(rows, w), want) << rows << " rows, portable";
  }
  if (linear_cuda_kernel(device.stream().gpu(), plain, kBF16) != LinearKernel::kTiles) return;
  const std::vector<char> want = products.run(c.rows, plain);
  LinearCudaPlan plan = linear_codes_plan(w, c.rows, c.biased);
  for (const LinearTile& tile : linear_codes_tiles(c.layout(), plan.split, c.biased, !format.is_nibbles())) {
    plan.tile = tile;
    plan.row_tiles = (c.rows + tile.rows - 1) / tile.rows;
    const std::vector<char> got = products.run(c.rows, [&](TensorView x, TensorView y, const End& end) {
      linear_codes_tiles_cuda(device.stream(), w, x, y, end, plan);
    });
    ASSERT_EQ(got, want) << tile.halves << " x " << tile.rows << (tile.shared ? " shared" : "");
  }
}

TEST(LinearCudaCodes, GiveTheBitsOfTheWidenedWeights) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format : kFormats) {
    for (Scales scales : {Scales::kF32, Scales::kBF16, Scales::kF16}) {
      // One and two slices of k; ends that no tile divides.
      check_case(device, format, scales, {200, 1032, 130, EndKind::kAdd, kF32});
      check_case(device, format, scales, {200, 520, 130, EndKind::kStore, kBF16});
      check_case(device, format, scales, {400, 264, 130, EndKind::kSwiGlu, kBF16});
      check_case(device, format, scales, {400, 1096, 40, EndKind::kSwiGlu, kF32});
      check_case(device, format, scales, {200, 1032, 130, EndKind::kStore, kF32, true});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(LinearCudaCodes, GiveTheBitsInTheShapesOfModels) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format : {kInt4Weights, WeightFormat(DType::kI4, 1, 128, true)}) {
    check_case(device, format, Scales::kF16, {6144, 1024, 300, EndKind::kStore, kF32});
    check_case(device, format, Scales::kBF16, {4096, 2048, 300, EndKind::kAdd, kF32});
    check_case(device, format, Scales::kBF16, {24576, 512, 300, EndKind::kSwiGlu, kBF16});
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Rings that go around several times, chunks that are cut, and less of k than there are teams
// (linear_cuda_codes_teams.cuh).
TEST(LinearCudaCodes, GiveTheBitsOfLongAndShortSums) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format : {kInt4Weights, kMxfp4Weights, kNvfp4Weights, WeightFormat(DType::kI4, 1, 128, true),
                                     kInt4Minimums, kInt8Weights, kInt6Weights, kInt8Minimums}) {
    check_case(device, format, Scales::kBF16, {200, 12104, 130, EndKind::kAdd, kF32});
    check_case(device, format, Scales::kF16, {400, 9 * 64, 40, EndKind::kSwiGlu, kBF16});
    check_case(device, format, Scales::kBF16, {400, 72, 40, EndKind::kSwiGlu, kBF16});
    check_case(device, format, Scales::kBF16, {200, 64, 40, EndKind::kStore, kF32, true});
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Shapes and rows that the plain kernels take.
TEST(LinearCudaCodes, PlainKernelGivesTheSameBits) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format : kFormats) {
    SCOPED_TRACE(format_name(format));
    for (DType x : {kF32, kBF16}) {
      for (const Case& c : {Case{37, 129, 9, EndKind::kStore, kF32, true}, Case{37, 77, 9, EndKind::kAdd, kF32},
                            Case{74, 65, 9, EndKind::kSwiGlu, kBF16}}) {
        const Codes codes(format, Scales::kF32, c.n, c.k);
        const LinearWeight w = std::move(pack_linear(device, codes.parts(c.layout()), c.k, format, c.layout())).value();
        const LinearWeight plain = widened(device, codes, c.layout(), x);
        const Products products(device, c, x);
        ASSERT_EQ(products.run(c.rows, w), products.run(c.rows, plain)) << dtype_name(x);
      }
    }
  }
}

}  // namespace
}  // namespace volley::ops
