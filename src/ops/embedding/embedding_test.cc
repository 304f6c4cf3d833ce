// Protects: the values of rows copied between dtypes, what lies beside them, and the refusal of ids outside the table.
#include "ops/embedding/embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace volley::ops {
namespace {

// Row r, column i of a table is a number that every dtype holds exactly.
float entry(int64_t r, int64_t i) {
  return static_cast<float>(r % 16) + static_cast<float>(i % 8) / 8;
}

// entry() in each storage. fp16: 1.xxx * 2^e, as entry() is 0 or at least 1/8.
Float16 as_f16(float v) {
  if (v == 0) return {0};
  int e = 0;
  const float f = std::frexp(v, &e);
  return {static_cast<uint16_t>((e + 14) << 10 | static_cast<int>(f * 2048 - 1024))};
}
template <typename T>
T stored(float v);
template <>
float stored(float v) {
  return v;
}
template <>
BFloat16 stored(float v) {
  return to_bfloat16(v);
}
template <>
Float16 stored(float v) {
  return as_f16(v);
}

template <typename T>
class EmbedTest : public testing::Test {};
using TableTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(EmbedTest, TableTypes);

TYPED_TEST(EmbedTest, CopiesRowsExactly) {
  const int64_t vocab = 50, h = 201;
  std::vector<TypeParam> table(vocab * h);
  for (int64_t r = 0; r < vocab; ++r) {
    for (int64_t i = 0; i < h; ++i) table[r * h + i] = stored<TypeParam>(entry(r, i));
  }
  for (int threads : {1, 3}) {
    auto device = *make_cpu_device(threads);
    for (int64_t rows : {0, 1, 7, 700}) {  // 700 rows are several tasks
      std::vector<int32_t> ids(rows);
      for (int64_t m = 0; m < rows; ++m) ids[m] = static_cast<int32_t>((m * 31 + 49) % vocab);
      std::vector<float> y(rows * h, -1.0f);
      embed(device->stream(), {table.data(), kDTypeOf<TypeParam>, {vocab, h}}, {ids.data(), DType::kI32, {rows}},
            {y.data(), DType::kF32, {rows, h}});
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t i = 0; i < h; ++i) ASSERT_EQ(y[m * h + i], entry(ids[m], i)) << "row " << m << " column " << i;
      }
    }
  }
}

// The embeddings of some families are multiplied by a number.
TEST(Embed, MultipliesByItsScale) {
  auto device = *make_cpu_device(1);
  std::vector<BFloat16> table = {to_bfloat16(0.5f), to_bfloat16(-3.0f), to_bfloat16(1.25f), to_bfloat16(7.0f)};
  std::vector<int32_t> ids = {1, 0};
  std::vector<float> y(4);
  embed(device->stream(), {table.data(), DType::kBF16, {2, 2}}, {ids.data(), DType::kI32, {2}},
        {y.data(), DType::kF32, {2, 2}}, 12.5f);
  EXPECT_EQ(y, (std::vector<float>{15.625f, 87.5f, 6.25f, -37.5f}));
  const ReadRow read_row = [&](int64_t row, float* values) {
    for (int64_t i = 0; i < 2; ++i) values[i] = to_float(table[row * 2 + i]);
  };
  std::vector<float> read(4);
  embed(device->stream(), 2, read_row, {ids.data(), DType::kI32, {2}}, {read.data(), DType::kF32, {2, 2}}, 12.5f);
  EXPECT_EQ(read, y);
  zero(device->stream(), {y.data(), DType::kF32, {2, 2}});
  EXPECT_EQ(y, std::vector<float>(4));
}

TEST(AddRows, AddsEveryElementOnce) {
  auto device = *make_cpu_device(3);
  for (const int64_t rows : {0, 1, 700}) {
    const int64_t h = 129;
    std::vector<float> x(rows * h), y(rows * h), want(rows * h);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = entry(static_cast<int64_t>(i) / h, static_cast<int64_t>(i) % h);
      y[i] = static_cast<float>(i % 1000) / 16;
      want[i] = x[i] + y[i];  // exact
    }
    add(device->stream(), {y.data(), DType::kF32, {rows, h}}, {x.data(), DType::kF32, {rows, h}});
    EXPECT_EQ(x, want);
  }
}

TEST(EmbedDeathTest, RefusesIdsOutsideTheTable) {
  auto device = *make_cpu_device(1);
  std::vector<float> table(4 * 2), y(2);
  for (int32_t id : {-1, 4}) {
    const TensorView ids(&id, DType::kI32, {1});
    EXPECT_DEATH(embed(device->stream(), {table.data(), DType::kF32, {4, 2}}, ids, {y.data(), DType::kF32, {1, 2}}),
                 "CHECK failed");
    EXPECT_DEATH(embed(device->stream(), 4, [](int64_t, float*) {}, ids, {y.data(), DType::kF32, {1, 2}}),
                 "CHECK failed");
  }
}

TEST(CaptureFeature, WritesItsColumnsAndNoOthers) {
  const int64_t h = 65, width = 3 * h;
  for (int64_t rows : {0, 1, 5, 900}) {
    std::vector<float> x(rows * h);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
    auto device = *make_cpu_device(2);
    std::vector<float> exact(rows * width, 7.0f);
    std::vector<BFloat16> rounded(rows * width, to_bfloat16(7.0f));
    const TensorView from(x.data(), DType::kF32, {rows, h});
    capture_feature(device->stream(), from, h, {exact.data(), DType::kF32, {rows, width}});
    capture_feature(device->stream(), from, h, {rounded.data(), DType::kBF16, {rows, width}});
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t c = 0; c < width; ++c) {
        const float want = c >= h && c < 2 * h ? x[m * h + c - h] : 7.0f;
        ASSERT_EQ(exact[m * width + c], want);
        ASSERT_EQ(rounded[m * width + c].bits, to_bfloat16(want).bits);
      }
    }
  }
}

TEST(CaptureFeatureDeathTest, RefusesColumnsThatDoNotFit) {
  auto device = *make_cpu_device(1);
  std::vector<float> x(4), features(6);
  EXPECT_DEATH(
      capture_feature(device->stream(), {x.data(), DType::kF32, {1, 4}}, 3, {features.data(), DType::kF32, {1, 6}}),
      "CHECK failed");
}

}  // namespace
}  // namespace volley::ops
