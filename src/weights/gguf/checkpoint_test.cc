// Protects: a GGUF file has the names, shapes, order of rows and values of the checkpoint it was made from; and codes
// in memory have the values of its blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/temp_folder_for_test.h"
#include "gguf/bytes_for_test.h"
#include "weights/coded.h"
#include "weights/fixtures_for_test.h"
#include "weights/gguf/blocks.h"
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

// What converters change is undone: norms exactly up to what a sum with 1 rounds, A_log up to a logarithm.
void expect_alike(const Checkpoint& file, const Checkpoint& folder, const std::string& tensor) {
  const std::vector<int64_t> shape = file.info(tensor)->shape;
  const auto a = file.get(tensor, shape), b = folder.get(tensor, shape);
  ASSERT_TRUE(a.ok() && b.ok()) << (a.ok() ? b.error().message : a.error().message);
  const bool changed =
      tensor.ends_with("norm.weight") || tensor.find("_norm_") != std::string::npos || tensor.ends_with(".A_log");
  constexpr float kRounding = 1e-6f;
  if (changed) {
    EXPECT_THAT(floats(*a), testing::Pointwise(testing::FloatNear(kRounding), floats(*b))) << tensor;
  } else {
    EXPECT_EQ(floats(*a), floats(*b)) << tensor;
  }
}

TEST(GgufCheckpoint, WhatConvertersChangeIsUndone) {
  const struct {
    const char* name;
    std::vector<std::string> others;  // tensors that this file holds in another way, or of another folder
    size_t count;
    NameRules rules = {};
  } cases[] = {
      {"gemma_windows", {"q_norm"}, 54},
      {"hybrid_wide", {}, 42},
      {"hybrid_tied", {"mtp."}, 70},
      {"hybrid_experts",
       {},
       145,
       {.prefixes = {"model.language_model.", ""},
        .stacks = {{"mlp.experts.", "gate_up_proj", {"gate_proj.weight", "up_proj.weight"}, 7},
                   {"mlp.experts.", "down_proj", {"down_proj.weight"}, 7}}}},
      {"next_experts", {"in_proj_"}, 133},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const auto file = open(std::string("tests/data/gguf/") + c.name + ".gguf");
    auto files = open_checkpoint(std::string("tests/data/targets/") + c.name);
    ASSERT_TRUE(files.ok());
    const auto folder = with_names(std::move(*files), c.rules);
    EXPECT_EQ(file->names().size(), c.count);
    for (const std::string& tensor : file->names()) {
      const auto is_in = [&](const std::string& part) { return tensor.find(part) != std::string::npos; };
      if (std::ranges::none_of(c.others, is_in)) expect_alike(*file, *folder, tensor);
    }
  }
  const auto file = open("tests/data/gguf/hybrid_tied.gguf"), head = open("tests/data/mtp/hybrid_tied");
  EXPECT_EQ(head->names().size(), 15u);
  for (const std::string& tensor : head->names()) expect_alike(*file, *head, tensor);
}

// Rows of q, k, v and z, and of beta and alpha, which Hugging Face's file orders by key head: 2 of 16 and 32 for two
// value heads.
TEST(GgufCheckpoint, ProjectionsOfQwen3NextAreApart) {
  const auto file = open("tests/data/gguf/next_experts.gguf"), folder = open("tests/data/targets/next_experts");
  const std::string layer = "layers.0.linear_attn.";
  constexpr int64_t kHidden = 48;
  const auto read = [&](const Checkpoint& files, const std::string& name, int64_t rows) {
    const std::vector<int64_t> shape = {rows, kHidden};
    const auto tensor = files.get(layer + name + ".weight", shape);
    EXPECT_TRUE(tensor.ok()) << tensor.error().message;
    return floats(*tensor);
  };
  const auto by_head = [&](const std::vector<float>& all, int64_t stride,
                           std::vector<std::pair<int64_t, int64_t>> runs) {
    std::vector<float> rows;
    for (const auto& [first, count] : runs) {
      for (int64_t head = 0; head < 2; ++head) {
        const auto begin = all.begin() + (head * stride + first) * kHidden;
        rows.insert(rows.end(), begin, begin + count * kHidden);
      }
    }
    return rows;
  };
  const std::vector<float> qkvz = read(*folder, "in_proj_qkvz", 320), ba = read(*folder, "in_proj_ba", 8);
  EXPECT_EQ(read(*file, "in_proj_qkv", 192), by_head(qkvz, 160, {{0, 16}, {16, 16}, {32, 64}}));
  EXPECT_EQ(read(*file, "in_proj_z", 128), by_head(qkvz, 160, {{96, 64}}));
  EXPECT_EQ(read(*file, "in_proj_b", 4), by_head(ba, 4, {{0, 2}}));
  EXPECT_EQ(read(*file, "in_proj_a", 4), by_head(ba, 4, {{2, 2}}));
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
    EXPECT_FALSE((*q)->halves);
    check_values(*file, kQ, shape_);
    check_values(*file, kK, k_shape_);
  }
  EXPECT_TRUE((**open_model(kQ4_1, kQ5_1)->code_format(kQ, shape_)).halves);
  const auto file = open_model(kQ4_0, kQ8_0);
  EXPECT_EQ((**file->code_format(kQ, shape_)).name, "Q4_0");
  EXPECT_EQ((**file->code_format(kK, k_shape_)).name, "Q8_0");
  EXPECT_EQ(file->quantisation(), "Q4_0");
  EXPECT_EQ(file->main_dtype(), DType::kBF16);
}

// The columns of Qwen3.5's out_proj are ordered otherwise in the file: 2 value heads for each of 2 key heads.
TEST(GgufCheckpoint, BlocksStayWholeWhereColumnsAreReordered) {
  const struct {
    Stored stored;
    uint32_t head;
    bool is_coded;  // groups lie within a head
  } cases[] = {{kQ4_K, 64, true}, {kQ6_K, 64, true}, {kQ8_0, 64, true}, {kQ4_0, 16, false}, {kMXFP4, 64, true}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.stored.type);
    gguf::Bytes model = gguf::tiny_model("qwen35");
    model.number("qwen35.ssm.group_count", 2).number("qwen35.ssm.time_step_rank", 4);
    model.number("qwen35.ssm.inner_size", 4 * c.head).number("qwen35.ssm.state_size", 16);
    const uint64_t columns = 4 * c.head, rows = 3, size = rows * columns / c.stored.values * c.stored.block_bytes;
    model.tensor("blk.0.ssm_out.weight", {columns, rows}, c.stored.type, size);
    std::string bytes = model.str();
    const size_t begin = bytes.size() - (size + 31) / 32 * 32;
    for (size_t i = 0; i < size; ++i) {
      const size_t at = i % c.stored.block_bytes;
      bytes[begin + i] = std::ranges::count(c.stored.halves, at - 1) > 0 ? 0x3c : static_cast<char>(i * 7 % 120);
    }
    std::vector<float> stored(rows * columns);
    widen_blocks(static_cast<gguf::TensorType>(c.stored.type), reinterpret_cast<const std::byte*>(&bytes[begin]),
                 static_cast<int64_t>(rows * columns / c.stored.values), stored.data());
    const TempFolder folder;
    folder.write("m.gguf", bytes);
    const auto file = open(folder.path() + "/m.gguf");
    const char* name = "layers.0.linear_attn.out_proj.weight";
    const std::vector<int64_t> shape = {3, static_cast<int64_t>(columns)};
    const std::vector<float> values = floats(*file->get(name, shape));
    constexpr size_t kStoredHead[] = {0, 2, 1, 3};
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t row = i / columns, column = i % columns;
      EXPECT_EQ(values[i], stored[row * columns + kStoredHead[column / c.head] * c.head + column % c.head]) << i;
    }
    const auto coded = file->coded(name, shape);
    ASSERT_TRUE(coded.ok());
    EXPECT_EQ((*coded)->format().code != DType::kF32, c.is_coded);
    std::vector<float> widened(columns), codes(columns), part(40);
    (*coded)->widen({1, 0, shape[1]}, widened.data());
    EXPECT_TRUE(std::ranges::equal(widened, std::span(values).subspan(columns, columns)));
    (*coded)->widen({2, 20, 40}, part.data());
    EXPECT_TRUE(std::ranges::equal(part, std::span(values).subspan(2 * columns + 20, 40)));
    if (!c.is_coded) continue;
    (*coded)->CodedMatrix::widen({1, 0, shape[1]}, codes.data());
    EXPECT_EQ(codes, widened);
    (*coded)->CodedMatrix::widen({2, 20, 40}, part.data());
    EXPECT_TRUE(std::ranges::equal(part, std::span(values).subspan(2 * columns + 20, 40)));
  }
}

TEST(GgufCheckpoint, HeadsThatDoNotFitAreDamage) {
  const TempFolder folder;
  folder.write("m.gguf", gguf::tiny_model("qwen35")
                             .number("qwen35.ssm.group_count", 2)
                             .number("qwen35.ssm.time_step_rank", 4)
                             .tensor("blk.0.ssm_beta.weight", {32, 6}, 0, 768)
                             .str());
  const auto opened = open_checkpoint(folder.path() + "/m.gguf");
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().message, HasSubstr("\"blk.0.ssm_beta.weight\" has no rows or columns for the heads"));
}

// Halves of kv_b_proj of 2 heads: 3 rows of 4 for keys, turned, and 2 for values.
TEST(GgufCheckpoint, LatentsOfTwoTensorsAreOne) {
  const TempFolder folder;
  gguf::Bytes model = gguf::tiny_model("deepseek2");
  model.tensor("blk.0.attn_k_b.weight", {3, 4, 2}, 0, 96);
  gguf::Bytes alone = model;
  std::string bytes = model.tensor("blk.0.attn_v_b.weight", {4, 2, 2}, 0, 64).str();
  for (size_t i = 0; i < 40; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(&bytes[bytes.size() - 160 + i * 4], &value, 4);
  }
  folder.write("m.gguf", bytes);
  folder.write("half.gguf", alone.str());
  const auto file = open(folder.path() + "/m.gguf");
  const std::vector<int64_t> shape = {10, 4}, rows = {2, 4};
  const char* name = "layers.0.self_attn.kv_b_proj.weight";
  const auto got = file->get(name, shape);
  ASSERT_TRUE(got.ok()) << got.error().message;
  const std::vector<float> whole = floats(*got);
  EXPECT_THAT(whole, testing::ElementsAre(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, 24, 25, 26, 27, 28, 29, 30, 31, 12, 15,
                                          18, 21, 13, 16, 19, 22, 14, 17, 20, 23, 32, 33, 34, 35, 36, 37, 38, 39));
  EXPECT_EQ(floats(*file->get_part(name, shape, 26, rows)), std::vector(whole.begin() + 26, whole.begin() + 34));
  const auto half = open_checkpoint(folder.path() + "/half.gguf");
  ASSERT_FALSE(half.ok());
  EXPECT_THAT(half.error().message, HasSubstr("has no other half that fits"));
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
