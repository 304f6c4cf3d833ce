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
  uint64_t block_bytes;  // bytes of 32 values
};
constexpr Stored kQ4_0 = {2, 18}, kQ8_0 = {8, 34}, kMXFP4 = {39, 17};

// A model whose q and k are [32, 64] and [16, 64]: 2 heads and 1 of 16 rows. Bytes differ, and scales are small.
class GgufMatrix : public testing::Test {
 protected:
  std::shared_ptr<const Checkpoint> open_model(const Stored& q, const Stored& k) {
    gguf::Bytes model = gguf::tiny_model("llama");
    model.tensor("blk.0.attn_k.weight", {64, 16}, k.type, 32 * k.block_bytes);
    model.tensor("blk.0.attn_q.weight", {64, 32}, q.type, 64 * q.block_bytes);
    std::string bytes = model.str();
    const size_t size = 64 * q.block_bytes, begin = bytes.size() - size;  // which is a multiple of 32
    for (size_t i = 0; i < size; ++i) {
      const size_t in_block = i % q.block_bytes;
      const bool high = in_block == 1 && q.type != kMXFP4.type;  // the upper byte of an fp16 near 1
      bytes[begin + i] = high ? 0x3c : static_cast<char>(in_block == 0 ? i / q.block_bytes : i * 7);
    }
    folder_.write("m.gguf", bytes);
    return open(folder_.path() + "/m.gguf");
  }

  static constexpr const char *kQ = "layers.0.self_attn.q_proj.weight", *kK = "layers.0.self_attn.k_proj.weight";
  const std::vector<int64_t> shape_ = {32, 64}, k_shape_ = {16, 64};
  TempFolder folder_;
};

TEST_F(GgufMatrix, CodesHaveTheValuesOfTheirBlocks) {
  for (const Stored& stored : {kQ4_0, kMXFP4}) {
    const auto file = open_model(stored, stored);
    const auto format = file->code_format(kQ, shape_);
    ASSERT_TRUE(format.ok() && *format);
    EXPECT_EQ((*format)->code, stored.type == kQ4_0.type ? DType::kI4 : DType::kF4E2M1);
    EXPECT_EQ((*format)->group, 32);
    const auto coded = file->coded(kQ, shape_);
    ASSERT_TRUE(coded.ok());
    const std::vector<float> whole = floats(*file->get(kQ, shape_));
    for (int64_t row = 0; row < 32; ++row) {
      std::vector<float> values(64), part(20), codes(64);
      (*coded)->widen({row, 0, 64}, values.data());
      EXPECT_TRUE(std::equal(values.begin(), values.end(), whole.begin() + row * 64)) << row;
      (*coded)->widen({row, 29, 20}, part.data());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 29)) << row;
      (*coded)->CodedMatrix::widen({row, 0, 64}, codes.data());
      EXPECT_EQ(codes, values) << row;
    }
  }
}

TEST_F(GgufMatrix, TypesThatOneProductTakesAreWidened) {
  const auto file = open_model(kQ4_0, kQ8_0);
  const auto q = file->code_format(kQ, shape_), k = file->code_format(kK, k_shape_);
  ASSERT_TRUE(q.ok() && *q && k.ok() && *k);
  EXPECT_TRUE((*q)->agrees_with(**k));
  EXPECT_EQ((*q)->code, DType::kF32);
  EXPECT_EQ((*q)->name, "Q4_0");
  EXPECT_EQ((*k)->name, "Q8_0");
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
