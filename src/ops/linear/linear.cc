#include "ops/linear/linear.h"

#include <string>

#include "ops/linear/linear_kernels.h"

namespace volley::ops {
namespace {

// Storage types that have kernels; formats of codes beside the plain ones.
bool is_built(DeviceKind device, const WeightFormat& format) {
  if (format == DType::kBF16 || format == DType::kF32) return true;
  if (format == kFp8Rows || format == kFp8Blocks) return device == DeviceKind::kCuda;
  return multiplies_as_stored(device, format);
}

Status check_format(DeviceKind device, const WeightFormat& format) {
  if (is_built(device, format)) return {};
  return unimplemented("Weights cannot be stored as " + format_name(format) +
                       " on this device: use bfloat16 or float32.");
}

}  // namespace

std::string format_name(const WeightFormat& format) {
  return (format.zeros ? "u" : "") + std::string(dtype_name(format.code)) +
         (format.in_blocks()   ? "/" + std::to_string(format.group_n) + "x"
          : format.group_k > 0 ? "/"
                               : "") +
         (format.group_k > 0 ? std::to_string(format.group_k) : "") + (format.minimums ? "+min" : "");
}

double bytes_per_value(const WeightFormat& format) {
  const double value = format.is_codes() ? format.code_bits() / 8.0 : static_cast<double>(dtype_size(format.code));
  const double group =
      static_cast<double>(sizeof(float)) * (!format.halves && (format.zeros || format.minimums) ? 2 : 1);
  return format.group_k > 0 ? value + group / (format.group_k * format.group_n) : value;
}

bool multiplies_as_stored(DeviceKind device, const WeightFormat& format) {
  if (!format.is_codes() || format.group_n != 1) return false;
  if (device != DeviceKind::kCpu) {
    if (format.code == DType::kF8E4M3) return false;
    // These have no kernel for groups of 16.
    const bool large = format.code == DType::kI4 ? format.minimums : format.code == DType::kI8 && !format.minimums;
    if (large && format.group_k < 32) return false;
  }
  if (format.zeros && (format.code != DType::kI4 || format.minimums)) return false;
  if (format.halves && !format.minimums) return false;
  if (format.minimums && (format.code == DType::kF8E4M3 || format.code == DType::kF4E2M1)) return false;
  const int group = format.group_k;
  return group == 16 || group == 32 || group == 64 || group == 128;
}

Status check_parts(std::span<const WeightRows> parts, const WeightFormat& format) {
  for (const WeightRows& part : parts) {
    VOLLEY_CHECK(!part.codes || format.is_codes());
    VOLLEY_CHECK(!part.values || !format.is_codes());
    if (part.codes || part.values) continue;
    if (part.dtype != DType::kBF16 && part.dtype != DType::kF16 && part.dtype != DType::kF32) {
      return invalid_argument(std::string("A weight matrix of type ") + dtype_name(part.dtype) +
                              " cannot be loaded: convert it to bfloat16, float16 or float32.");
    }
    const bool only_read = format.zeros || format.minimums || format.in_blocks() || format.code == DType::kF4E2M1 ||
                           format.code == DType::kI8 || format.code == DType::kI6;
    if (format.is_codes() && only_read) {
      return unimplemented("Weights cannot be quantised to " + format_name(format) +
                           " while they load: use a checkpoint that is.");
    }
  }
  return {};
}

Result<LinearWeight> pack_linear(Device& device, std::span<const WeightRows> parts, int64_t k, WeightFormat format,
                                 LinearLayout layout) {
  if (k < 1) return invalid_argument("A weight matrix needs at least one column, not " + std::to_string(k) + ".");
  VOLLEY_RETURN_IF_ERROR(check_format(device.kind(), format));
  VOLLEY_RETURN_IF_ERROR(check_parts(parts, format));
  for (const WeightRows& part : parts) VOLLEY_CHECK(part.rows >= 0);
  if (layout == LinearLayout::kGateUp && (parts.size() != 2 || parts[0].rows != parts[1].rows)) {
    return invalid_argument("Gate and up projections must be two matrices with the same number of rows.");
  }
  return kernels_on<LinearKernels>(device.kind()).pack_linear(device, parts, k, format, layout);
}

int64_t packed_bytes(DeviceKind device, int64_t n, int64_t k, WeightFormat format, LinearLayout layout) {
  return kernels_on<LinearKernels>(device).packed_bytes(n, k, format, layout);
}

bool linear_takes_fp8(DeviceKind device, const GpuInfo& gpu) {
  const auto takes_fp8 = kernels_on<LinearKernels>(device).takes_fp8;
  return takes_fp8 != nullptr && takes_fp8(gpu);
}

namespace {

bool fit(const LinearWeight& w, const Input& x) {
  if (w.format.multiplies_codes() || x.is_codes()) {
    return w.format.code == x.values.dtype && x.has_scales() && x.in_groups() == w.format.in_blocks();
  }
  return x.values.dtype == DType::kF32 || x.values.dtype == DType::kBF16;
}

void check_end(const Stream& stream, const LinearWeight& w, const Input& x, const TensorView& y, const End& end) {
  VOLLEY_CHECK(y.dtype == DType::kF32 || (y.dtype == DType::kBF16 && end.kind != EndKind::kAdd));
  VOLLEY_CHECK(end.kind != EndKind::kClampedSwiGlu);
  VOLLEY_CHECK(has_gates(end.kind) == (w.layout == LinearLayout::kGateUp));
  const bool summarises = end.summaries.whole != nullptr;
  VOLLEY_CHECK(!summarises ||
               (end.kind == EndKind::kStore && y.dtype == DType::kF32 && linear_summarises(stream, w, x.values.dtype)));
  const bool sends = end.sent.turns != nullptr;
  VOLLEY_CHECK(!sends || (end.kind == EndKind::kStore && y.dtype == DType::kF32 && !summarises &&
                          end.bias.data == nullptr && linear_sends(stream, w, x.values.dtype, y.shape[0])));
  if (end.bias.data == nullptr) return;
  VOLLEY_CHECK(!has_gates(end.kind) && !summarises);
  VOLLEY_CHECK(end.bias.dtype == DType::kF32 && end.bias.count() == w.n);
}

// x as w takes it.
void multiply(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end) {
  VOLLEY_CHECK(x.values.rank == 2 && y.rank == 2);
  VOLLEY_CHECK_EQ(x.values.shape[1], w.k);
  VOLLEY_CHECK_EQ(y.shape[0], x.rows());
  const bool fewer = end.fewer && end.kind == EndKind::kStore && stream.kind() == DeviceKind::kCpu && y.shape[1] < w.n;
  VOLLEY_CHECK(fewer || y.shape[1] == (has_gates(end.kind) ? w.n / 2 : w.n));
  VOLLEY_CHECK(fit(w, x));
  check_end(stream, w, x, y, end);
  if (y.shape[0] == 0 || w.n == 0) return;
  kernels_on<LinearKernels>(stream).linear(stream, w, x, y, end);
}

}  // namespace

bool linear_summarises(const Stream& stream, const LinearWeight& w, DType activation) {
  const auto summarises = kernels_on<LinearKernels>(stream).summarises;
  return summarises != nullptr && summarises(stream.gpu(), w, activation);
}

bool linear_sends(const Stream& stream, const LinearWeight& w, DType activation, int64_t rows) {
  const auto sends = kernels_on<LinearKernels>(stream).sends;
  return sends != nullptr && sends(stream.gpu(), w, activation, rows);
}

void linear(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end, Arena& scratch) {
  if (!w.format.multiplies_codes() || x.is_codes()) return multiply(stream, w, x, y, end);
  ArenaScope scope(scratch);
  const Input codes = take_rows(scratch, w.format.code, x.rows(), w.k, w.format.in_blocks());
  quantise_rows(stream, x.values, codes);
  multiply(stream, w, codes, y, end);
}

Input input_for(const LinearWeight& w, DType activation, int64_t rows, Arena& scratch) {
  return take_rows(scratch, w.format.multiplies_codes() ? w.format.code : activation, rows, w.k, w.format.in_blocks());
}

}  // namespace volley::ops
