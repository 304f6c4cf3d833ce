#include "ops/rope_angles/rope_angles.h"

#include "ops/rope_angles/rope_angles_kernels.h"

namespace volley::ops {
namespace {

// A pass takes some thousand rows of 64 pairs at most, once: waking the pool would not pay.
void take_rope_angles_cpu(Stream& stream, const RopeTables& from, TensorView axes, TensorView positions,
                          const RopeTables& to) {
  if (stream.dry()) return;
  const int64_t pairs = to.cos.dim(1), limit = from.cos.dim(0);
  for (int64_t row = 0; row < to.cos.dim(0); ++row) {
    const int32_t* position = positions.as<int32_t>() + row * kRopeAxes;
    for (int32_t axis = 0; axis < kRopeAxes; ++axis) VOLLEY_CHECK(position[axis] >= 0 && position[axis] < limit);
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t at = int64_t{position[axes.as<int32_t>()[i]]} * pairs + i;
      to.cos.as<float>()[row * pairs + i] = from.cos.as<float>()[at];
      to.sin.as<float>()[row * pairs + i] = from.sin.as<float>()[at];
    }
  }
}

}  // namespace

const RopeAngleKernels RopeAngleKernels::kCpu = {take_rope_angles_cpu};

void take_rope_angles(Stream& stream, const RopeTables& from, TensorView axes, TensorView positions,
                      const RopeTables& to) {
  for (const RopeTables* tables : {&from, &to}) {
    VOLLEY_CHECK(tables->cos.dtype == DType::kF32 && tables->sin.dtype == DType::kF32);
    VOLLEY_CHECK(tables->cos.rank == 2 && tables->cos.shape == tables->sin.shape);
    VOLLEY_CHECK_EQ(tables->cos.dim(1), axes.count());
  }
  VOLLEY_CHECK(axes.dtype == DType::kI32 && positions.dtype == DType::kI32 && positions.rank == 2);
  VOLLEY_CHECK(positions.dim(0) == to.cos.dim(0) && positions.dim(1) == kRopeAxes);
  if (to.cos.dim(0) == 0) return;
  kernels_on<RopeAngleKernels>(stream).take(stream, from, axes, positions, to);
}

}  // namespace volley::ops
