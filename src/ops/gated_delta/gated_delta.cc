#include "ops/gated_delta/gated_delta.h"

#include <string>

#include "ops/gated_delta/gated_delta_kernels.h"
#include "ops/gated_delta/gated_delta_layout.h"

namespace volley::ops {
namespace {

constexpr int32_t kDimStep = 16, kMaxDim = 256, kMaxTaps = 8;

void check_vector(const TensorView& vector, int64_t count) {
  VOLLEY_CHECK(vector.data != nullptr && vector.dtype == DType::kF32);
  VOLLEY_CHECK_EQ(vector.count(), count);
}

void check_matrix(const TensorView& matrix, DType dtype, int64_t rows, int64_t columns) {
  VOLLEY_CHECK(matrix.dtype == dtype && matrix.rank == 2);
  VOLLEY_CHECK_EQ(matrix.dim(0), rows);
  VOLLEY_CHECK_EQ(matrix.dim(1), columns);
}

}  // namespace

Status check_delta_shape(const DeltaShape& shape) {
  if (shape.k_heads < 1 || shape.v_heads < 1 || shape.v_heads % shape.k_heads != 0) {
    return invalid_argument("Linear attention has " + std::to_string(shape.v_heads) + " value heads for " +
                            std::to_string(shape.k_heads) + " key heads, which must divide them.");
  }
  for (const int32_t dim : {shape.k_dim, shape.v_dim}) {
    if (dim > 0 && dim % kDimStep == 0 && dim <= kMaxDim) continue;
    return unimplemented("Linear attention with heads of " + std::to_string(dim) +
                         " is not built; built are multiples of " + std::to_string(kDimStep) + " up to " +
                         std::to_string(kMaxDim) + ".");
  }
  if (shape.taps >= 1 && shape.taps <= kMaxTaps) return {};
  return unimplemented("A convolution over " + std::to_string(shape.taps) + " rows is not built; built are 1 to " +
                       std::to_string(kMaxTaps) + ".");
}

int64_t delta_state_bytes(const DeltaShape& shape, int32_t tape_rows, DType dtype) {
  return DeltaLayout(shape, tape_rows, dtype).bytes;
}

void gated_delta(Stream& stream, const Rows& rows, const GatedDelta& args, Arena& scratch) {
  const DeltaShape& shape = args.shape;
  const DeltaState& state = args.state;
  VOLLEY_CHECK(check_delta_shape(shape).ok());
  VOLLEY_CHECK(state.base != nullptr && state.slots > 0 && state.tape_rows >= 0);
  VOLLEY_CHECK(state.dtype == DType::kBF16 || state.dtype == DType::kF32);
  check_matrix(args.projected, state.dtype, rows.rows, shape.channels() + shape.v_width());
  check_matrix(args.gates, DType::kF32, rows.rows, int64_t{2} * shape.v_heads);
  check_matrix(args.out, state.dtype, rows.rows, shape.v_width());
  check_vector(args.conv, shape.channels() * shape.taps);
  check_vector(args.a_log, shape.v_heads);
  check_vector(args.dt_bias, shape.v_heads);
  check_vector(args.norm, shape.v_dim);
  VOLLEY_CHECK(rows.cache_positions.dtype == DType::kI32 && rows.cache_positions.count() >= rows.rows);
  if (stream.kind() == DeviceKind::kCuda) {
    VOLLEY_CHECK(rows.slots.dtype == DType::kI32 && rows.slots.count() >= rows.rows);
  }
  kernels_on<GatedDeltaKernels>(stream).gated_delta(stream, rows, args, scratch);
}

}  // namespace volley::ops
