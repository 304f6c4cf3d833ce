#include "ops/norm/norm.h"

#include "ops/norm/norm_kernels.h"

namespace volley::ops {

void check_rms_norm(const Stream& stream, TensorView x, TensorView weight, TensorView row_index, const Input& rows,
                    const FeatureBlock& copy) {
  const TensorView y = rows.values;
  VOLLEY_CHECK(x.rank == 2 && y.rank == 2);
  VOLLEY_CHECK_GE(x.shape[1], 1);
  VOLLEY_CHECK(x.dtype == DType::kF32 && weight.dtype == DType::kF32);
  VOLLEY_CHECK(weight.rank == 1 && weight.shape[0] == x.shape[1]);
  VOLLEY_CHECK_EQ(y.shape[1], x.shape[1]);
  if (y.dtype == DType::kF8E4M3) {
    VOLLEY_CHECK(stream.kind() == DeviceKind::kCuda);
    VOLLEY_CHECK(rows.has_scales());
    VOLLEY_CHECK_EQ(y.shape[1] % kQuantisedColumns, 0);
  } else {
    VOLLEY_CHECK(y.dtype == DType::kF32 || y.dtype == DType::kBF16);
  }
  if (row_index.data == nullptr) {
    VOLLEY_CHECK_EQ(y.shape[0], x.shape[0]);
  } else {
    VOLLEY_CHECK(row_index.rank == 1 && row_index.dtype == DType::kI32);
    VOLLEY_CHECK_EQ(row_index.shape[0], y.shape[0]);
    VOLLEY_CHECK_MSG(y.data != x.data, "rms_norm: a gather cannot be done in place");
  }
  const TensorView& features = copy.features;
  if (features.data != nullptr) {
    VOLLEY_CHECK(row_index.data == nullptr);
    VOLLEY_CHECK(features.rank == 2 && (features.dtype == DType::kF32 || features.dtype == DType::kBF16));
    VOLLEY_CHECK_EQ(features.shape[0], x.shape[0]);
    VOLLEY_CHECK_EQ(features.shape[1] % x.shape[1], 0);
    VOLLEY_CHECK(copy.index >= 0 && (copy.index + 1) * x.shape[1] <= features.shape[1]);
  }
}

void rms_norm(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, const Input& rows,
              const FeatureBlock& copy) {
  check_rms_norm(stream, x, weight, row_index, rows, copy);
  if (rows.values.shape[0] == 0) return;
  kernels_on<NormKernels>(stream).rms_norm(stream, x, weight, eps, row_index, rows, copy);
}

namespace {

void add(Stream& stream, const AddedNorm& args, TensorView x, bool norms) {
  const TensorView &y = args.y, &weight = args.end_weight, &factor = args.factor;
  VOLLEY_CHECK(x.rank == 2 && y.rank == 2 && x.dtype == DType::kF32 && y.dtype == DType::kF32);
  VOLLEY_CHECK(x.shape[0] == y.shape[0] && x.shape[1] == y.shape[1]);
  if (weight.data != nullptr) {
    VOLLEY_CHECK(weight.rank == 1 && weight.dtype == DType::kF32 && weight.shape[0] == x.shape[1]);
  }
  VOLLEY_CHECK(factor.data == nullptr || (factor.dtype == DType::kF32 && factor.count() == 1));
  if (norms) check_rms_norm(stream, x, args.weight, {}, args.h, args.copy);
  if (x.shape[0] == 0) return;
  kernels_on<NormKernels>(stream).add_normed(stream, args, x, norms);
}

}  // namespace

void add_normed(Stream& stream, TensorView y, TensorView weight, float eps, float scale, TensorView x,
                TensorView factor) {
  add(stream, {y, weight, eps, scale, factor}, x, false);
}

void add_normed_and_norm(Stream& stream, const AddedNorm& args, TensorView x) {
  add(stream, args, x, true);
}

}  // namespace volley::ops
