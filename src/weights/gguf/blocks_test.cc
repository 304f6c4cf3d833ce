// Protects: blocks of every type are widened to gguf-py's values, bit for bit (tests/data/gguf/blocks.gguf), and codes
// that are multiplied without widening stand for the same values.
#include "weights/gguf/blocks.h"

#include <gtest/gtest.h>

#include <cstring>

#include "weights/tensor_file.h"

namespace volley::weights {
namespace {

constexpr int64_t kRows = 4, kColumns = 256;

TEST(GgufBlocks, ValuesAreThoseOfGgufPy) {
  const std::string path = "tests/data/gguf/blocks.gguf";
  const auto file = gguf::open_file(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto bytes = TensorFile::open(path, FileAccess::kMap);
  ASSERT_TRUE(bytes.ok());
  int types = 0;
  for (const gguf::Tensor& tensor : file->header().tensors()) {
    const gguf::Tensor* expected = file->tensor(tensor.name + ".values");
    if (expected == nullptr) continue;
    ++types;
    const gguf::TypeFacts facts = gguf::facts_of(tensor.type);
    EXPECT_EQ(facts.name, tensor.name);
    std::vector<float> values(kRows * kColumns);
    const auto stored = (*bytes)->read(tensor.begin, tensor.end),
               right = (*bytes)->read(expected->begin, expected->end);
    widen_blocks(tensor.type, stored->data, kRows * kColumns / facts.values, values.data());
    ASSERT_EQ(expected->end - expected->begin, values.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(values.data(), right->data, values.size() * sizeof(float)), 0) << tensor.name;
  }
  EXPECT_EQ(types, 12);
}

}  // namespace
}  // namespace volley::weights
