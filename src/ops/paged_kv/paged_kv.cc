#include "ops/paged_kv/paged_kv.h"

#include "ops/paged_kv/paged_kv_kernels.h"

namespace volley::ops {

int64_t kv_layer_bytes(int32_t page_size, int32_t kv_heads, int32_t head_dim, DType dtype, bool v_in_k) {
  return int64_t{v_in_k ? 1 : 2} * kv_heads * page_size * head_dim * static_cast<int64_t>(dtype_size(dtype));
}

namespace {

void check_layers(const KvLayer& kv, int32_t layers) {
  VOLLEY_CHECK(kv.base != nullptr);
  VOLLEY_CHECK(kv.dtype == DType::kBF16 || kv.dtype == DType::kF32 || kv.dtype == DType::kF8E4M3);
  VOLLEY_CHECK(kv.k_scale > 0 && kv.v_scale > 0);
  VOLLEY_CHECK(kv.page_size > 0 && kv.page_size % kKvTile == 0);
  VOLLEY_CHECK(kv.head_dim > 0 && kv.head_dim % 16 == 0 && kv.head_dim <= kMaxHeadDim && kv.v_in_k == 0);
  VOLLEY_CHECK_GE(kv.kv_heads, 1);
  VOLLEY_CHECK_GE(kv.page_stride, layers * kv_layer_bytes(kv.page_size, kv.kv_heads, kv.head_dim, kv.dtype));
}

void check_tensors(const Rows& rows, const RowView& view, const QkvWrite& args) {
  const KvLayer& kv = args.kv;
  VOLLEY_CHECK(args.qkv.dtype == DType::kF32 && args.qkv.rank == 2);
  VOLLEY_CHECK_EQ(args.qkv.dim(0), rows.rows);
  VOLLEY_CHECK(args.layers == 1 || (args.layers > 1 && args.heads == 0));
  VOLLEY_CHECK_GE(args.qkv.dim(1), int64_t{args.source_heads()} * args.source_dim());
  VOLLEY_CHECK(args.narrow_dim == 0 || (args.narrow_dim <= kv.head_dim && args.narrow_dim % 2 == 0 && !args.v_norm &&
                                        args.q_norm.data == nullptr && args.k_norm.data == nullptr));
  VOLLEY_CHECK(rows.rope_positions.dtype == DType::kI32 && rows.rope_positions.count() >= rows.rows);
  VOLLEY_CHECK(rows.cache_positions.dtype == DType::kI32 && rows.cache_positions.count() >= rows.rows);
  VOLLEY_CHECK(view.page_table.dtype == DType::kI32 && view.page_table.rank == 2);
  for (const TensorView* table : {&args.rope.cos, &args.rope.sin}) {
    VOLLEY_CHECK(table->dtype == DType::kF32 && table->rank == 2 && table->dim(1) == kv.head_dim / 2);
  }
  VOLLEY_CHECK_EQ(args.rope.cos.dim(0), args.rope.sin.dim(0));
  const auto check_vector = [](const TensorView& vector, int64_t count) {
    VOLLEY_CHECK(vector.data == nullptr || (vector.dtype == DType::kF32 && vector.count() == count));
  };
  check_vector(args.bias, int64_t{args.source_heads()} * args.source_dim());
  check_vector(args.q_norm, kv.head_dim);
  check_vector(args.k_norm, int64_t{args.layers} * kv.head_dim);
  if (args.heads == 0) return;
  VOLLEY_CHECK(args.q_out.dtype == DType::kBF16 || args.q_out.dtype == DType::kF32);
  VOLLEY_CHECK(args.q_out.data != nullptr && args.q_out.count() == int64_t{rows.rows} * args.heads * kv.head_dim);
}

}  // namespace

void write_qkv(Stream& stream, const Rows& rows, const RowView& view, const QkvWrite& args) {
  check_layers(args.kv, args.layers);
  check_tensors(rows, view, args);
  kernels_on<PagedKvKernels>(stream).write_qkv(stream, rows, view, args);
}

}  // namespace volley::ops
