#include "ops/embedding/embedding.h"

#include "ops/embedding/embedding_kernels.h"

namespace volley::ops {

void embed(Stream& stream, TensorView table, TensorView ids, TensorView y, float scale) {
  VOLLEY_CHECK(table.rank == 2 && ids.rank == 1 && y.rank == 2);
  VOLLEY_CHECK(table.dtype == DType::kBF16 || table.dtype == DType::kF16 || table.dtype == DType::kF32);
  VOLLEY_CHECK(ids.dtype == DType::kI32 && y.dtype == DType::kF32);
  VOLLEY_CHECK_EQ(y.shape[0], ids.shape[0]);
  VOLLEY_CHECK_EQ(y.shape[1], table.shape[1]);
  if (y.shape[0] == 0) return;
  kernels_on<EmbeddingKernels>(stream).embed(stream, table, ids, y, scale);
}

void embed(Stream& stream, int64_t vocab, const ReadRow& read_row, TensorView ids, TensorView y, float scale) {
  VOLLEY_CHECK(ids.rank == 1 && y.rank == 2);
  VOLLEY_CHECK(ids.dtype == DType::kI32 && y.dtype == DType::kF32);
  VOLLEY_CHECK_EQ(y.shape[0], ids.shape[0]);
  const auto kernel = kernels_on<EmbeddingKernels>(stream).embed_read;
  VOLLEY_CHECK(kernel != nullptr);
  if (y.shape[0] > 0) kernel(stream, vocab, read_row, ids, y, scale);
}

void embed(Stream& stream, const CodeTable& table, TensorView ids, TensorView y, float scale) {
  VOLLEY_CHECK(table.codes.rank == 2 && table.scales.rank == 2 && ids.rank == 1 && y.rank == 2);
  VOLLEY_CHECK(table.codes.dtype == DType::kI8 && table.scales.dtype == DType::kF32);
  VOLLEY_CHECK(ids.dtype == DType::kI32 && y.dtype == DType::kF32);
  VOLLEY_CHECK_EQ(y.shape[0], ids.shape[0]);
  VOLLEY_CHECK_EQ(y.shape[1], table.codes.shape[1]);
  VOLLEY_CHECK_EQ(table.scales.shape[0], table.codes.shape[0]);
  VOLLEY_CHECK_EQ(table.codes.shape[1] % table.scales.shape[1], 0);
  VOLLEY_CHECK(table.minimums.data == nullptr || table.minimums.shape == table.scales.shape);
  const auto kernel = kernels_on<EmbeddingKernels>(stream).embed_codes;
  VOLLEY_CHECK(kernel != nullptr);
  if (y.shape[0] > 0) kernel(stream, table, ids, y, scale);
}

void capture_feature(Stream& stream, TensorView x, int64_t column, TensorView features) {
  VOLLEY_CHECK(x.rank == 2 && features.rank == 2);
  VOLLEY_CHECK(x.dtype == DType::kF32);
  VOLLEY_CHECK(features.dtype == DType::kF32 || features.dtype == DType::kBF16);
  VOLLEY_CHECK_EQ(features.shape[0], x.shape[0]);
  VOLLEY_CHECK_GE(column, 0);
  VOLLEY_CHECK_LE(column + x.shape[1], features.shape[1]);
  if (x.shape[0] == 0) return;
  kernels_on<EmbeddingKernels>(stream).capture_feature(stream, x, column, features);
}

void zero(Stream& stream, TensorView x) {
  VOLLEY_CHECK(x.rank == 2 && x.dtype == DType::kF32);
  if (x.shape[0] > 0) kernels_on<EmbeddingKernels>(stream).zero(stream, x);
}

void add(Stream& stream, TensorView y, TensorView x) {
  VOLLEY_CHECK(x.rank == 2 && x.dtype == DType::kF32 && y.dtype == DType::kF32 && y.shape == x.shape);
  if (x.shape[0] > 0) kernels_on<EmbeddingKernels>(stream).add(stream, y, x);
}

}  // namespace volley::ops
