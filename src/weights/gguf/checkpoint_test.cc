// Protects: a GGUF file has the names, shapes, order of rows and values of the checkpoint it was made from; and codes
// in memory have the values of its blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/temp_folder_for_test.h"
#include "gguf/bytes_for_test.h"
#include "weights/coded.h"
#include "weights/fixtures_for_test.h"
#include "weights/named.h"

namespace volley::weights {
namespace {

using testing::HasSubstr;

std::vector<float> floats(const SourceTensor& tensor) {
  std::vector<float> values;
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  for (int64_t i = 0; i < count; ++i) {
    if (tensor.dtype == DType::kF32) values.push_back(reinterpret_cast<const float*>(tensor.data)[i]);
    if (tensor.dtype == DType::kF16) values.push_back(to_float(reinterpret_cast<const Float16*>(tensor.data)[i]));
    if (tensor.dtype == DType::kBF16) values.push_back(to_float(reinterpret_cast<const BFloat16*>(tensor.data)[i]));
  }
  return values;
}

std::shared_ptr<const Checkpoint> open(const std::string& path, FileAccess access = FileAccess::kMap) {
  auto files = open_checkpoint(path, access);
  EXPECT_TRUE(files.ok()) << files.error().message;
  return with_names(std::move(*files), {});
}

TEST(GgufCheckpoint, HoldsWhatItsFolderHolds) {
  for (const char* name : {"llama_tied", "llama_bias", "qwen2_tied", "plain", "moe_single"}) {
    const auto folder = open(std::string("tests/data/targets/") + name);
    for (const FileAccess access : {FileAccess::kMap, FileAccess::kRead}) {
      const auto file = open(std::string("tests/data/gguf/") + name + ".gguf", access);
      std::vector<std::string> names = folder->names(), own = file->names();
      std::ranges::sort(names);
      std::ranges::sort(own);
      EXPECT_EQ(own, names) << name;
      EXPECT_EQ(file->main_dtype(), folder->main_dtype()) << name;
      EXPECT_EQ(file->quantisation(), "");
      for (const std::string& tensor : names) {
        const std::vector<int64_t> shape = folder->info(tensor)->shape;
        const auto a = file->get(tensor, shape), b = folder->get(tensor, shape);
        ASSERT_TRUE(a.ok()) << a.error().message;
        EXPECT_EQ(floats(*a), floats(*b)) << name << " " << tensor;
        if (shape.size() != 2 || shape[0] < 4) continue;
        const std::vector<int64_t> rows = {2, shape[1]};
        EXPECT_EQ(floats(*file->get_part(tensor, shape, shape[1], rows)),
                  floats(*folder->get_part(tensor, shape, shape[1], rows)));
      }
    }
  }
}

TEST(GgufCheckpoint, PartsHoldWhatTheWholeHolds) {
  const auto parts = open("tests/data/gguf/qwen2_tied-00001-of-00002.gguf"),
             whole = open("tests/data/gguf/qwen2_tied.gguf");
  EXPECT_EQ(parts->names(), whole->names());
  for (const std::string& tensor : whole->names()) {
    const std::vector<int64_t> shape = whole->info(tensor)->shape;
    EXPECT_EQ(floats(*parts->get(tensor, shape)), floats(*whole->get(tensor, shape)));
  }
}

// How a matrix is stored, by the format's number of its type.
struct Stored {
  uint32_t type;
  uint64_t values, block_bytes;
  std::vector<uint64_t> halves;  // where in a block an fp16 lies
  DType code;
  int32_t group;
  bool minimums;
};
const Stored kQ4_0 = {2, 32, 18, {0}, DType::kI4, 32, false}, kQ4_1 = {3, 32, 20, {0, 2}, DType::kI4, 32, true},
             kQ5_0 = {6, 32, 22, {0}, DType::kI6, 32, false}, kQ5_1 = {7, 32, 24, {0, 2}, DType::kI6, 32, true},
             kQ8_0 = {8, 32, 34, {0}, DType::kI8, 32, false}, kQ4_K = {12, 256, 144, {0, 2}, DType::kI4, 32, true},
             kQ5_K = {13, 256, 176, {0, 2}, DType::kI6, 32, true}, kQ6_K = {14, 256, 210, {208}, DType::kI6, 16, false},
             kMXFP4 = {39, 32, 17, {}, DType::kF4E2M1, 32, false};

// A model whose q and k are [32, 256] and [16, 256]: 2 heads and 1 of 16 rows. Bytes differ, and scales are near 1.
class GgufMatrix : public testing::Test {
 protected:
  std::shared_ptr<const Checkpoint> open_model(const Stored& q, const Stored& k) {
    gguf::Bytes model = gguf::tiny_model("llama");
    const auto size_of = [](const Stored& stored, uint64_t rows) {
      return rows * 256 / stored.values * stored.block_bytes;
    };
    model.tensor("blk.0.attn_k.weight", {256, 16}, k.type, size_of(k, 16));
    model.tensor("blk.0.attn_q.weight", {256, 32}, q.type, size_of(q, 32));
    std::string bytes = model.str();
    const auto fill = [&](const Stored& stored, size_t begin, size_t size) {
      for (size_t i = 0; i < size; ++i) {
        const size_t block = i / stored.block_bytes, at = i % stored.block_bytes;
        const bool high = std::ranges::count(stored.halves, at - 1) > 0;  // the upper byte of an fp16
        bytes[begin + i] =
            high ? 0x3c : static_cast<char>(at == 0 && stored.halves.empty() ? block % 128 : i * 7 + block);
      }
    };
    const size_t q_at = bytes.size() - size_of(q, 32), k_at = q_at - (size_of(k, 16) + 31) / 32 * 32;
    fill(q, q_at, size_of(q, 32));  // of a size that is a multiple of 32
    fill(k, k_at, size_of(k, 16));
    folder_.write("m.gguf", bytes);
    return open(folder_.path() + "/m.gguf");
  }

  // Widened blocks, and codes times scales as products take them, against get().
  void check_values(const Checkpoint& file, const char* name, const std::vector<int64_t>& shape) {
    const auto coded = file.coded(name, shape);
    ASSERT_TRUE(coded.ok());
    const std::vector<float> whole = floats(*file.get(name, shape));
    for (int64_t row = 0; row < shape[0]; ++row) {
      std::vector<float> values(256), part(20), codes(256), some(200);
      (*coded)->widen({row, 0, 256}, values.data());
      EXPECT_TRUE(std::equal(values.begin(), values.end(), whole.begin() + row * 256)) << row;
      (*coded)->widen({row, 29, 20}, part.data());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 29)) << row;
      if ((*coded)->format().code == DType::kF32) continue;
      (*coded)->CodedMatrix::widen({row, 0, 256}, codes.data());
      EXPECT_EQ(codes, values) << row;
      (*coded)->CodedMatrix::widen({row, 48, 200}, some.data());
      EXPECT_TRUE(std::equal(some.begin(), some.end(), values.begin() + 48)) << row;
    }
  }

  static constexpr const char *kQ = "layers.0.self_attn.q_proj.weight", *kK = "layers.0.self_attn.k_proj.weight";
  const std::vector<int64_t> shape_ = {32, 256}, k_shape_ = {16, 256};
  TempFolder folder_;
};

TEST_F(GgufMatrix, CodesHaveTheValuesOfTheirBlocks) {
  for (const Stored& stored : {kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kMXFP4}) {
    SCOPED_TRACE(stored.type);
    const auto file = open_model(stored, stored);
    const auto format = file->code_format(kQ, shape_);
    ASSERT_TRUE(format.ok() && *format);
    EXPECT_EQ((*format)->code, stored.code);
    EXPECT_EQ((*format)->group, stored.group);
    EXPECT_EQ((*format)->minimums, stored.minimums);
    check_values(*file, kQ, shape_);
  }
}

// The mixtures that llama-quantize makes have products of several types.
TEST_F(GgufMatrix, TypesThatOneProductTakesGetOneFormat) {
  const struct {
    Stored q, k;
    DType code;
    int32_t group;
    bool minimums;
  } cases[] = {{kQ4_K, kQ6_K, DType::kI6, 16, true},  {kQ8_0, kQ6_K, DType::kI8, 16, false},
               {kQ4_0, kQ4_1, DType::kI4, 32, true},  {kQ4_0, kQ8_0, DType::kI8, 32, false},
               {kQ5_1, kQ4_0, DType::kI6, 32, true},  {kQ8_0, kQ5_K, DType::kI8, 32, true},
               {kQ8_0, kMXFP4, DType::kF32, 0, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.q.type * 100 + c.k.type);
    const auto file = open_model(c.q, c.k);
    const auto q = file->code_format(kQ, shape_), k = file->code_format(kK, k_shape_);
    ASSERT_TRUE(q.ok() && *q && k.ok() && *k);
    EXPECT_TRUE((*q)->agrees_with(**k));
    EXPECT_EQ((*q)->code, c.code);
    EXPECT_EQ((*q)->group, c.group);
    EXPECT_EQ((*q)->minimums, c.minimums);
    check_values(*file, kQ, shape_);
    check_values(*file, kK, k_shape_);
  }
  const auto file = open_model(kQ4_0, kQ8_0);
  EXPECT_EQ((**file->code_format(kQ, shape_)).name, "Q4_0");
  EXPECT_EQ((**file->code_format(kK, k_shape_)).name, "Q8_0");
  EXPECT_EQ(file->quantisation(), "Q4_0");
  EXPECT_EQ(file->main_dtype(), DType::kBF16);
}

TEST(GgufCheckpoint, WhatCannotBeReadIsNamed) {
  const TempFolder folder;
  folder.write("m.gguf", gguf::tiny_model("qwen3").tensor("output.weight", {256, 1}, 10, 84).str());
  const auto file = open(folder.path() + "/m.gguf");
  const std::vector<int64_t> shape = {1, 256}, other = {2, 256};
  EXPECT_THAT(file->check("lm_head.weight", shape).error().message,
              HasSubstr("is stored as Q2_K, which is not built: fetch another quantisation"));
  EXPECT_THAT(file->check("norm.weight", other).error().message, HasSubstr("no tensor for \"model.norm.weight\""));
  EXPECT_THAT(file->check("embed_tokens.weight", other).error().message, HasSubstr("has shape [10, 32]"));
}

}  // namespace
}  // namespace volley::weights
