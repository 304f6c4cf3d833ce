// Protects: what a matrix is stored as, given what the checkpoint has it in.
#include "model/weight_loader.h"

#include <gtest/gtest.h>

#include <vector>

namespace volley::model {
namespace {

constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32, kF8 = DType::kF8E4M3;

DType storage(const Numerics& numerics, std::vector<DType> parts) {
  return matrix_storage(numerics, parts);
}

TEST(MatrixStorage, InFloat32HoldsEachMatrixExactly) {
  for (const DType most : {kBF16, kF16, kF32}) {  // what most of the checkpoint is in decides nothing
    const Numerics numerics = resolve_numerics(ComputeType::kFloat32, most);
    EXPECT_EQ(storage(numerics, {kBF16}), kBF16);
    EXPECT_EQ(storage(numerics, {kF32}), kF32);
    EXPECT_EQ(storage(numerics, {kF16}), kF32);
    EXPECT_EQ(storage(numerics, {kBF16, kBF16, kBF16}), kBF16);
    EXPECT_EQ(storage(numerics, {kBF16, kF32, kBF16}), kF32);
    EXPECT_EQ(storage(numerics, {kBF16, kF16}), kF32);
  }
}

TEST(MatrixStorage, InBfloat16RoundsEverything) {
  for (const DType most : {kBF16, kF16, kF32}) {
    const Numerics numerics = resolve_numerics(ComputeType::kBFloat16, most);
    for (const DType part : {kBF16, kF16, kF32}) EXPECT_EQ(storage(numerics, {part, kBF16}), kBF16);
  }
}

TEST(MatrixStorage, OfAQuantisedDrafterIsOneType) {
  const Numerics numerics{.activation = kBF16, .storage = kF8};
  EXPECT_EQ(storage(numerics, {kBF16}), kF8);
  EXPECT_EQ(storage(numerics, {kF32, kBF16}), kF8);
}

}  // namespace
}  // namespace volley::model
