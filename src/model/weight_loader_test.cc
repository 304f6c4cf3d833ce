// Protects: the storage type of a matrix, given its type in the checkpoint.
#include "model/weight_loader.h"

#include <gtest/gtest.h>

#include <vector>

namespace volley::model {
namespace {

constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32;

ops::WeightFormat storage(const Numerics& numerics, std::vector<DType> parts) {
  return matrix_storage(numerics, parts);
}

TEST(MatrixStorage, InFloat32HoldsEachMatrixExactly) {
  for (const DType most : {kBF16, kF16, kF32}) {  // the checkpoint's main dtype decides nothing
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

TEST(MatrixStorage, OfAQuantisedModelIsAsItsMatricesBear) {
  using Codes = Param::Codes;
  for (const ops::WeightFormat& format : {ops::kFp8Rows, ops::kFp8Weights, ops::kInt4Weights}) {
    for (const DType activation : {kBF16, kF32}) {
      const Numerics numerics{.activation = activation, .storage = format};
      EXPECT_EQ(storage(numerics, {kBF16}), format);
      EXPECT_EQ(storage(numerics, {kF32, kBF16}), format);
      const std::vector<DType> parts = {kBF16};
      EXPECT_EQ(matrix_storage(numerics, parts, Codes::kNone), kBF16);
      const ops::WeightFormat head = format.multiplies_codes() ? ops::WeightFormat(kBF16) : ops::kFp8Weights;
      EXPECT_EQ(matrix_storage(numerics, parts, Codes::kBytes), head);
    }
  }
}

// A matrix of codes stays so where the device can multiply them.
TEST(CodedStorage, IsAsTheDeviceMultiplies) {
  const Numerics numerics;
  const Param param{"w", Param::Kind::kMatrix, 512, {{"w.weight", 64}}};
  const auto stored = [&](DeviceKind device, const weights::CodeFormat& coded) {
    return coded_storage(coded, param, numerics, device);
  };
  weights::CodeFormat coded;
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    coded = {.code = DType::kI4, .group = 64, .zeros = true};
    EXPECT_EQ(stored(device, coded), ops::WeightFormat(DType::kI4, 1, 64, true));
    coded.group = 0;
    EXPECT_EQ(stored(device, coded), ops::WeightFormat(DType::kI4, 1, 128, true));
    coded.scattered = true;
    EXPECT_EQ(stored(device, coded), kBF16);
    EXPECT_EQ(stored(device, {.code = DType::kF4E2M1, .group = 32}), ops::kMxfp4Weights);
    EXPECT_EQ(stored(device, {.code = DType::kF4E2M1, .group = 16}), ops::kNvfp4Weights);
  }
  coded = {.code = DType::kF8E4M3, .group = 128};
  EXPECT_EQ(stored(DeviceKind::kCpu, coded), ops::kFp8Weights);
  EXPECT_EQ(stored(DeviceKind::kCuda, coded), kBF16);
  coded = {.code = DType::kI4, .group = 32, .minimums = true};
  EXPECT_EQ(stored(DeviceKind::kCpu, coded), ops::kInt4Minimums);
  EXPECT_EQ(stored(DeviceKind::kCuda, coded), ops::kInt4Minimums);
  coded.halves = true;
  EXPECT_EQ(stored(DeviceKind::kCpu, coded), ops::WeightFormat(DType::kI4, 1, 32, false, true, true));
  EXPECT_EQ(stored(DeviceKind::kCuda, coded), ops::kInt4Minimums);
  coded = {.code = DType::kI6, .group = 16};
  EXPECT_EQ(stored(DeviceKind::kCpu, coded), ops::kInt6Weights);
  EXPECT_EQ(stored(DeviceKind::kCuda, coded), ops::kInt6Weights);
  coded.code = DType::kI8;  // CUDA has no kernel for such groups
  EXPECT_EQ(stored(DeviceKind::kCpu, coded), ops::WeightFormat(DType::kI8, 1, 16));
  EXPECT_EQ(stored(DeviceKind::kCuda, coded), kBF16);
}

// Experts in e4m3 stay codes, whatever the type of the input rows.
TEST(CodedStorage, OfExpertsIsBytesOnCudaToo) {
  Param down{"down", Param::Kind::kExperts, 512, {{"w.weight", 64}}};
  const auto stored = [&](const weights::CodeFormat& coded, DType activation, bool fp8_products) {
    const Numerics numerics{.activation = activation, .fp8_products = fp8_products};
    return coded_storage(coded, down, numerics, DeviceKind::kCuda);
  };
  for (const DType activation : {kBF16, kF32}) {
    for (const bool products : {false, true}) {
      weights::CodeFormat coded = {.code = DType::kF8E4M3, .group = 128, .block_rows = 128};
      EXPECT_EQ(stored(coded, activation, products), ops::kFp8Weights);
      coded = {.code = DType::kF8E4M3};  // a scale for each row, or one in all
      EXPECT_EQ(stored(coded, activation, products), ops::kFp8Weights);
      coded.group = 32;  // no kernel
      EXPECT_EQ(stored(coded, activation, products), activation);
    }
  }
  // A rank's columns that end inside a block.
  const weights::CodeFormat blocks = {.code = DType::kF8E4M3, .group = 128, .block_rows = 128};
  down.columns = 192;
  down.first_column = 192;
  down.parts[0].stored = {64, 768};
  EXPECT_EQ(stored(blocks, kBF16, true), ops::WeightFormat(DType::kF8E4M3, 1, 64));
  down.columns = down.first_column = 96;
  EXPECT_EQ(stored(blocks, kBF16, true), kBF16);
  // Columns that begin inside a block: its scale would not be that of the kernel's group.
  down.columns = 128;
  down.first_column = 48;
  EXPECT_EQ(stored(blocks, kBF16, true), kBF16);
}

// Where outputs that share scales in the kernels' blocks do so in the checkpoint, too.
TEST(CodedStorage, OfBlocksStaysWhereBlocksAreNotCut) {
  Numerics numerics;
  numerics.fp8_products = true;
  const weights::CodeFormat blocks = {.code = DType::kF8E4M3, .group = 128, .block_rows = 128};
  const auto stored = [&](const weights::CodeFormat& coded, const Param& param) {
    return coded_storage(coded, param, numerics, DeviceKind::kCuda);
  };
  using Kind = Param::Kind;
  const Param qkv{"qkv", Kind::kMatrix, 512, {{"q", 256}, {"k", 96}, {"v", 64}}};
  EXPECT_EQ(stored(blocks, qkv), ops::kFp8Blocks);
  EXPECT_EQ(stored({.code = DType::kF8E4M3, .group = 256, .block_rows = 32}, qkv), ops::kFp8Blocks);
  EXPECT_EQ(stored({.code = DType::kF8E4M3, .group = 64, .block_rows = 128}, qkv), kBF16);
  EXPECT_EQ(stored({.code = DType::kF8E4M3, .group = 128, .block_rows = 48}, qkv), kBF16);
  EXPECT_EQ(stored({.code = DType::kF8E4M3, .group = 128}, qkv), kBF16);  // a scale for each row
  EXPECT_EQ(stored({.code = DType::kF8E4M3}, qkv), ops::kFp8Rows);
  // A router's product takes no input rows of codes.
  Param router{"router", Kind::kMatrix, 512, {{"gate", 128}}};
  router.codes = Param::Codes::kNone;
  EXPECT_EQ(stored(blocks, router), kBF16);
  EXPECT_EQ(stored({.code = DType::kF8E4M3}, router), kBF16);
  // A part may begin among outputs that share another part's block; gates and ups are packed by themselves.
  EXPECT_EQ(stored(blocks, {"qkv", Kind::kMatrix, 512, {{"q", 80}, {"k", 80}}}), kBF16);
  EXPECT_EQ(stored(blocks, {"gate_up", Kind::kGateUp, 512, {{"gate", 80}, {"up", 80}}}), ops::kFp8Blocks);
  // Rows in another order, within a block and across blocks; and rows that begin inside a block.
  Param q{"q", Kind::kMatrix, 512, {{"q", 64}}};
  q.parts[0].ranges = {{16, 16}, {0, 16}, {64, 32}};
  EXPECT_EQ(stored(blocks, q), ops::kFp8Blocks);
  q.parts[0].ranges = {{0, 16}, {128, 16}, {64, 32}};
  EXPECT_EQ(stored(blocks, q), kBF16);
  q.parts[0].ranges = {{112, 64}};
  EXPECT_EQ(stored(blocks, q), kBF16);
  // Columns of a rank; sizes without a kernel; experts; arithmetic in float32; other GPUs.
  Param down{"down", Kind::kMatrix, 256, {{"down", 64}}};
  down.parts[0].stored = {64, 512};
  down.first_column = 256;
  EXPECT_EQ(stored(blocks, down), ops::kFp8Blocks);
  down.first_column = 64;
  EXPECT_EQ(stored(blocks, down), kBF16);
  EXPECT_EQ(stored(blocks, {"w", Kind::kMatrix, 24, {{"w", 64}}}), kBF16);
  EXPECT_EQ(stored(blocks, {"w", Kind::kGateUp, 128, {{"gate", 66}, {"up", 66}}}), kBF16);
  EXPECT_EQ(stored(blocks, {"w", Kind::kExperts, 128, {{"w", 64}}}), ops::kFp8Weights);
  numerics.activation = kF32;
  EXPECT_EQ(stored(blocks, qkv), kF32);
  numerics = {};
  EXPECT_EQ(stored(blocks, qkv), kBF16);
}

}  // namespace
}  // namespace volley::model
