#include "ops/vision/vision.h"

#include "ops/vision/vision_kernels.h"

namespace volley::ops {
namespace {

bool is_float(const TensorView& x) {
  return x.dtype == DType::kBF16 || x.dtype == DType::kF32;
}

void check_rows(const PatchGrid& grid, int64_t first, const TensorView& rows) {
  VOLLEY_CHECK(grid.merge > 0 && grid.height > 0 && grid.width > 0);
  VOLLEY_CHECK(grid.height % grid.merge == 0 && grid.width % grid.merge == 0);
  VOLLEY_CHECK(rows.rank == 2 && first >= 0 && first + rows.dim(0) <= grid.patches());
}

void check_vector(const TensorView& vector, int64_t n) {
  VOLLEY_CHECK(vector.dtype == DType::kF32 && vector.count() == n);
}

}  // namespace

void take_patches(Stream& stream, TensorView pixels, const PatchGrid& grid, const PatchValues& values, int64_t first,
                  TensorView y) {
  check_rows(grid, first, y);
  const int64_t size = values.size;
  VOLLEY_CHECK(pixels.dtype == DType::kU8 && pixels.count() == grid.patches() * size * size * 3);
  VOLLEY_CHECK(is_float(y) && y.dim(1) == 3 * values.frames * size * size);
  if (y.count() > 0) kernels_on<VisionKernels>(stream).take_patches(stream, pixels, grid, values, first, y);
}

void add_places(Stream& stream, TensorView bias, TensorView table, int32_t side, const PatchGrid& grid, int64_t first,
                TensorView x) {
  check_vector(bias, x.dim(1));
  check_rows(grid, first, x);
  VOLLEY_CHECK(side > 0 && table.dtype == DType::kF32 && table.count() == int64_t{side} * side * x.dim(1));
  VOLLEY_CHECK(x.dtype == DType::kF32);
  if (x.count() > 0) kernels_on<VisionKernels>(stream).add_places(stream, bias, table, side, grid, first, x);
}

void layer_norm(Stream& stream, TensorView x, TensorView weight, TensorView bias, float eps, TensorView y) {
  layer_norm(stream, x, weight, bias, eps, y, {});
}

void layer_norm(Stream& stream, TensorView x, TensorView weight, TensorView bias, float eps, TensorView y,
                const BiasesAround& around) {
  VOLLEY_CHECK(x.rank == 2 && y.rank == 2 && x.dtype == DType::kF32 && is_float(y));
  VOLLEY_CHECK(stream.dry() || x.data != y.data);
  VOLLEY_CHECK(x.dim(0) == y.dim(0) && x.dim(1) == y.dim(1));
  check_vector(weight, x.dim(1));
  check_vector(bias, x.dim(1));
  VOLLEY_CHECK((around.before.data == nullptr) == (around.after.data == nullptr));
  if (around.before.data != nullptr) {
    check_vector(around.before, x.dim(1));
    check_vector(around.after, x.dim(1));
  }
  if (x.count() > 0) kernels_on<VisionKernels>(stream).layer_norm(stream, x, weight, bias, eps, y, around);
}

void gelu(Stream& stream, TensorView x, TensorView bias, bool by_tanh) {
  VOLLEY_CHECK(x.rank == 2 && is_float(x));
  check_vector(bias, x.dim(1));
  if (x.count() > 0) kernels_on<VisionKernels>(stream).gelu(stream, x, bias, by_tanh);
}

void narrow_heads(Stream& stream, TensorView wide, int32_t heads, TensorView narrow) {
  VOLLEY_CHECK(is_float(wide) && narrow.dtype == wide.dtype && narrow.dim(0) == wide.dim(0));
  VOLLEY_CHECK(narrow.dim(1) % (2 * heads) == 0 && wide.dim(1) % (2 * heads) == 0 && narrow.dim(1) <= wide.dim(1));
  if (narrow.count() > 0) kernels_on<VisionKernels>(stream).narrow_heads(stream, wide, heads, narrow);
}

}  // namespace volley::ops
