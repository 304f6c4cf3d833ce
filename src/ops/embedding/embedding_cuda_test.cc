// Protects, on a GPU: that embeddings and features arrive unchanged but for the conversion, and touch nothing else.
#include <random>

#include "ops/device_for_test.h"
#include "ops/embedding/embedding.h"

namespace volley::ops {
namespace {

void check_rows(Device& device, int64_t h) {
  const int64_t vocab = 50;
  std::vector<BFloat16> table(vocab * h);
  for (size_t i = 0; i < table.size(); ++i) table[i] = to_bfloat16(static_cast<float>(i) * 0.37f - 900.0f);
  const std::vector<int32_t> ids = {49, 0, 7, 7, 23};
  const auto rows = static_cast<int64_t>(ids.size());
  const DeviceTensor t(device, table), i(device, ids), y(device, rows * h * 4);
  embed(device.stream(), t.view(DType::kBF16, {vocab, h}), i.view(DType::kI32, {rows}), y.view(DType::kF32, {rows, h}));
  const std::vector<float> got = y.read<float>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < h; ++c) ASSERT_EQ(got[r * h + c], to_float(table[ids[r] * h + c])) << h;
  }
}

TEST(EmbeddingCuda, CopiesRowsAsFloats) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const int64_t h : {1283, 1284, 4096}) check_rows(device, h);
}

TEST(EmbeddingCuda, WidensCodes) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int64_t vocab = 50, h = 1280, group = 32, groups = h / group;
  std::vector<int8_t> codes(vocab * h);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int8_t>(i * 37 % 256);
  std::vector<float> scales(vocab * groups), minimums(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = 0.25f + static_cast<float>(i % 7);
    minimums[i] = -0.3f * static_cast<float>(i % 11);
  }
  const std::vector<int32_t> ids = {49, 0, 7, 7, 23};
  const auto rows = static_cast<int64_t>(ids.size());
  const DeviceTensor c(device, codes), s(device, scales), m(device, minimums), i(device, ids);
  for (const bool with_minimums : {false, true}) {
    CodeTable table = {c.view(DType::kI8, {vocab, h}), s.view(DType::kF32, {vocab, groups}), {}};
    if (with_minimums) table.minimums = m.view(DType::kF32, {vocab, groups});
    const DeviceTensor y(device, rows * h * sizeof(float));
    embed(device.stream(), table, i.view(DType::kI32, {rows}), y.view(DType::kF32, {rows, h}), 3);
    const std::vector<float> got = y.read<float>();
    for (int64_t at = 0; at < rows * h; ++at) {
      const int64_t element = ids[at / h] * h + at % h, g = element / group;
      const float product = static_cast<float>(codes[element]) * scales[g];
      ASSERT_EQ(got[at], 3 * (with_minimums ? product + minimums[g] : product)) << at;
    }
  }
}

TEST(EmbeddingCuda, FeaturesFillTheirColumnsOnly) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int64_t rows = 9, h = 70, width = 200, column = 65;
  std::vector<float> x(rows * h);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 1.01f - 300.0f;
  const DeviceTensor from(device, x);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const DeviceTensor features(device, rows * width * dtype_size(dtype));
    capture_feature(device.stream(), from.view(DType::kF32, {rows, h}), column, features.view(dtype, {rows, width}));
    const std::vector<char> bytes = features.read<char>();
    for (int64_t i = 0; i < rows * width; ++i) {
      const int64_t r = i / width, c = i % width - column;
      const bool written = c >= 0 && c < h;
      if (dtype == DType::kF32) {
        uint32_t got;
        std::memcpy(&got, &bytes[i * 4], 4);
        ASSERT_EQ(got, written ? std::bit_cast<uint32_t>(x[r * h + c]) : 0xffffffffu) << i;
      } else {
        uint16_t got;
        std::memcpy(&got, &bytes[i * 2], 2);
        ASSERT_EQ(got, written ? to_bfloat16(x[r * h + c]).bits : 0xffffu) << i;
      }
    }
  }
}

TEST(EmbeddingCuda, AddsRows) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const int64_t h : {5, 1284, 4096}) {
    const int64_t rows = 7;
    std::vector<float> x(rows * h), y(rows * h);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 777) / 8;
      y[i] = static_cast<float>(i % 1000) / 16;
    }
    const DeviceTensor from(device, y), to(device, x);
    add(device.stream(), from.view(DType::kF32, {rows, h}), to.view(DType::kF32, {rows, h}));
    const std::vector<float> got = to.read<float>();
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], x[i] + y[i]) << i;
  }
}

// More rows than a grid is high.
TEST(EmbeddingCuda, TakesManyRows) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int64_t rows = 65'537, h = 8, vocab = 50;
  const auto value = [](int64_t row, int64_t column) { return static_cast<float>(row * h + column); };
  std::vector<int32_t> ids(rows);
  for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(r * 31 % vocab);
  std::vector<float> table(vocab * h);
  for (int64_t i = 0; i < vocab * h; ++i) table[i] = value(i / h, i % h);
  std::vector<BFloat16> narrow(table.size());
  for (size_t i = 0; i < table.size(); ++i) narrow[i] = to_bfloat16(table[i]);  // up to 399: not all exact
  const DeviceTensor order(device, ids), wide_table(device, table), narrow_table(device, narrow);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const DeviceTensor& from = dtype == DType::kF32 ? wide_table : narrow_table;
    const DeviceTensor y(device, rows * h * sizeof(float));
    embed(device.stream(), from.view(dtype, {vocab, h}), order.view(DType::kI32, {rows}),
          y.view(DType::kF32, {rows, h}));
    const std::vector<float> got = y.read<float>();
    for (int64_t i = 0; i < rows * h; ++i) {
      const int64_t at = ids[i / h] * h + i % h;
      ASSERT_EQ(got[i], dtype == DType::kF32 ? table[at] : to_float(narrow[at])) << i;
    }
    const DeviceTensor features(device, rows * 2 * h * sizeof(float));
    capture_feature(device.stream(), y.view(DType::kF32, {rows, h}), h, features.view(DType::kF32, {rows, 2 * h}));
    const std::vector<float> captured = features.read<float>();
    for (int64_t i = 0; i < rows * h; ++i) ASSERT_EQ(captured[(i / h * 2 + 1) * h + i % h], got[i]) << i;
  }
}

}  // namespace
}  // namespace volley::ops
