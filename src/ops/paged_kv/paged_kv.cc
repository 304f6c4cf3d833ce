#include "ops/paged_kv/paged_kv.h"

#ifdef VOLLEY_CUDA
#include "ops/paged_kv/paged_kv_cuda.h"
#endif

namespace volley::ops {

// paged_kv_cpu.cc
void write_qkv_cpu(Stream& stream, const Rows& rows, const RowView& view, const QkvWrite& args);

int64_t kv_layer_bytes(int32_t page_size, int32_t kv_heads, int32_t head_dim, DType dtype) {
  return int64_t{2} * kv_heads * page_size * head_dim * static_cast<int64_t>(dtype_size(dtype));
}

namespace {

void check_layers(const KvLayer& kv, int32_t layers) {
  VOLLEY_CHECK(kv.base != nullptr);
  VOLLEY_CHECK(kv.dtype == DType::kBF16 || kv.dtype == DType::kF32);
  VOLLEY_CHECK(kv.page_size > 0 && kv.page_size % kKvTile == 0);
  VOLLEY_CHECK(kv.head_dim > 0 && kv.head_dim % 16 == 0 && kv.head_dim <= 256);
  VOLLEY_CHECK_GE(kv.kv_heads, 1);
  VOLLEY_CHECK_GE(kv.page_stride, layers * kv_layer_bytes(kv.page_size, kv.kv_heads, kv.head_dim, kv.dtype));
}

void check_tensors(const Rows& rows, const RowView& view, const QkvWrite& args) {
  const KvLayer& kv = args.kv;
  VOLLEY_CHECK(args.qkv.dtype == DType::kF32 && args.qkv.rank == 2);
  VOLLEY_CHECK_EQ(args.qkv.dim(0), rows.rows);
  VOLLEY_CHECK(args.layers == 1 || (args.layers > 1 && args.heads == 0));
  VOLLEY_CHECK_GE(args.qkv.dim(1), int64_t{args.all_heads()} * kv.head_dim);
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
  check_vector(args.bias, int64_t{args.all_heads()} * kv.head_dim);
  check_vector(args.q_norm, kv.head_dim);
  check_vector(args.k_norm, int64_t{args.layers} * kv.head_dim);
  if (args.heads == 0) return;
  VOLLEY_CHECK(args.q_out.dtype == DType::kBF16 || args.q_out.dtype == DType::kF32);
  VOLLEY_CHECK(args.q_out.data != nullptr && args.q_out.count() == int64_t{rows.rows} * args.heads * kv.head_dim);
}

// Positions are the engine's own numbers: wrong ones would write into another request's pages.
void check_segment(const Rows& rows, const RowView& view, const QkvWrite& args, const RowSegment& segment) {
  VOLLEY_CHECK(segment.row_begin >= 0 && segment.rows >= 0 && segment.row_begin + segment.rows <= rows.rows);
  VOLLEY_CHECK(segment.slot >= 0 && segment.slot < view.page_table.dim(0));
  if (segment.rows == 0) return;
  const int32_t* cache = rows.cache_positions.as<int32_t>() + segment.row_begin;
  const int32_t* rope = rows.rope_positions.as<int32_t>() + segment.row_begin;
  const int32_t* pages = view.page_table.as<int32_t>() + segment.slot * view.page_table.dim(1);
  VOLLEY_CHECK_GE(cache[0], 0);
  for (int32_t i = 0; i < segment.rows; ++i) {
    VOLLEY_CHECK_EQ(cache[i], cache[0] + i);
    VOLLEY_CHECK(rope[i] >= 0 && rope[i] < args.rope.cos.dim(0));
  }
  const int64_t last = cache[segment.rows - 1] / args.kv.page_size;
  VOLLEY_CHECK_LT(last, view.page_table.dim(1));
  for (int64_t i = cache[0] / args.kv.page_size; i <= last; ++i) VOLLEY_CHECK_GE(pages[i], 0);
}

}  // namespace

void write_qkv(Stream& stream, const Rows& rows, const RowView& view, const QkvWrite& args) {
  check_layers(args.kv, args.layers);
  check_tensors(rows, view, args);
#ifdef VOLLEY_CUDA
  if (stream.kind() == DeviceKind::kCuda) {
    VOLLEY_CHECK(rows.slots.dtype == DType::kI32 && rows.slots.count() >= rows.rows);
    return write_qkv_cuda(stream, rows, view, args);
  }
#endif
  VOLLEY_CHECK_MSG(stream.kind() == DeviceKind::kCpu, "write_qkv: this build has no CUDA kernels");
  for (int32_t i = 0; i < rows.n_segments; ++i) check_segment(rows, view, args, rows.segments[i]);
  write_qkv_cpu(stream, rows, view, args);
}

}  // namespace volley::ops
