#include "ops/latent/latent.h"

#include <string>

#include "ops/latent/latent_kernels.h"

namespace volley::ops {

namespace {

constexpr int32_t kLatentStep = 16;

bool is_activation(const TensorView& view) {
  return view.dtype == DType::kBF16 || view.dtype == DType::kF32;
}

}  // namespace

Status check_latent(const LatentShape& shape) {
  for (const int32_t width : {shape.width, shape.rope}) {
    if (width > 0 && width % kLatentStep == 0) continue;
    return unimplemented("Latent attention with a width of " + std::to_string(width) +
                         " is not built: latents and rotated keys are multiples of " + std::to_string(kLatentStep) +
                         ".");
  }
  if (shape.width > kMaxLatent || shape.key() > kMaxLatentKey) {
    return unimplemented("Latents of " + std::to_string(shape.width) + " with keys of " + std::to_string(shape.rope) +
                         " are not built: up to " + std::to_string(kMaxLatent) + ", and " +
                         std::to_string(kMaxLatentKey) + " together.");
  }
  if (shape.heads > kMaxExperts) {
    return unimplemented("Latent attention with " + std::to_string(shape.heads) + " heads is not built: up to " +
                         std::to_string(kMaxExperts) + ".");
  }
  if (shape.heads >= 1 && shape.nope >= 1 && shape.value >= 1) return {};
  return invalid_argument("Latent attention needs heads, with elements that are not rotated and an output.");
}

void head_linear(Stream& stream, const ExpertWeights& w, TensorView x, TensorView y) {
  VOLLEY_CHECK(x.rank == 3 && y.rank == 3 && is_activation(x) && is_activation(y));
  VOLLEY_CHECK(w.layout == LinearLayout::kPlain);
  VOLLEY_CHECK_EQ(x.dim(0), y.dim(0));
  VOLLEY_CHECK(x.dim(1) == w.experts && y.dim(1) == w.experts);
  VOLLEY_CHECK(x.dim(2) >= w.k && y.dim(2) >= w.n);
  if (x.dim(0) == 0) return;
  kernels_on<LatentKernels>(stream).head_linear(stream, w, x, y);
}

void write_latent(Stream& stream, const Rows& rows, const RowView& view, const LatentWrite& args) {
  const KvLayer& kv = args.kv;
  const int32_t width = kv.v_in_k, rope = kv.head_dim - width;
  VOLLEY_CHECK(kv.base != nullptr && kv.kv_heads == 1 && kv.k_scale > 0 && kv.k_scale == kv.v_scale);
  VOLLEY_CHECK(kv.page_size > 0 && kv.page_size % kKvTile == 0);
  VOLLEY_CHECK(check_latent({1, width, rope, 1, 1}).ok());
  VOLLEY_CHECK(args.growth.factor >= 0 && args.growth.every >= 1);
  VOLLEY_CHECK(args.row.dtype == DType::kF32 && args.row.rank == 2);
  VOLLEY_CHECK(args.row.dim(0) == rows.rows && args.row.dim(1) == kv.head_dim);
  VOLLEY_CHECK(args.norm.dtype == DType::kF32 && args.norm.count() == width);
  for (const TensorView* table : {&args.rope.cos, &args.rope.sin}) {
    VOLLEY_CHECK(table->dtype == DType::kF32 && table->rank == 2 && table->dim(1) == rope / 2);
  }
  VOLLEY_CHECK_EQ(args.rope.cos.dim(0), args.rope.sin.dim(0));
  VOLLEY_CHECK(args.q.rank == 3 && args.q_out.rank == 3 && is_activation(args.q));
  VOLLEY_CHECK(args.q_out.dtype == attention_dtype(kv.dtype) && args.q_out.dim(2) == kv.head_dim);
  VOLLEY_CHECK(args.q.dim(0) == rows.rows && args.q_out.dim(0) == rows.rows && args.q_out.dim(1) == args.q.dim(1));
  VOLLEY_CHECK_GE(args.q.dim(2), rope);
  for (const TensorView* positions : {&rows.rope_positions, &rows.cache_positions}) {
    VOLLEY_CHECK(positions->dtype == DType::kI32 && positions->count() >= rows.rows);
  }
  VOLLEY_CHECK(view.page_table.dtype == DType::kI32 && view.page_table.rank == 2);
  kernels_on<LatentKernels>(stream).write_latent(stream, rows, view, args);
}

}  // namespace volley::ops
