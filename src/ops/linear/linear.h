// y = x W^T for packed weights: the one way a weight matrix enters a computation, so that storage formats (bf16, fp32,
// FP8) serve target and drafter alike.
//
// Batch invariance: y[m, n] is a sum over k in one fixed order that depends on the weight's shape and storage alone,
// never on the number of rows, the row's place among them, the epilogue's neighbours or the number of threads.
#pragma once

#include <volley/result.h>

#include <span>

#include "device/arena.h"
#include "device/device.h"
#include "device/tensor.h"
#include "ops/linear/row_summaries.h"
#include "ops/quantise/quantise.h"

namespace volley::ops {

// Rows of a matrix as a checkpoint holds them: [rows, k], row-major, bf16, fp16 or fp32.
struct WeightRows {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t rows = 0;
};

enum class LinearLayout {
  kPlain,   // outputs in the order of the parts' rows
  kGateUp,  // two parts of equal size, gate then up, stored so that one kernel pass ends with both of an output
};

// A weight matrix [n, k] packed for its device. Immutable; may be shared by threads.
struct LinearWeight {
  int64_t n = 0, k = 0;          // n counts all rows of all parts
  DType storage = DType::kBF16;  // kBF16, kF32 or kF8E4M3
  LinearLayout layout = LinearLayout::kPlain;
  Buffer packed;
  bool portable = false;  // CUDA: the kernel for GPUs without wgmma, on any GPU; the same bits
};

// Packs `parts` (each [rows, k], stacked) once. storage kBF16 rounds fp32 and fp16 sources to bf16; kF32 is exact.
// kF8E4M3 quantises each row as quantise_rows() does; only where linear_takes_fp8() says so, and for k a multiple of 16
// and a number of outputs that is a multiple of 4: kUnimplemented otherwise.
Result<LinearWeight> pack_linear(Device& device, std::span<const WeightRows> parts, int64_t k, DType storage,
                                 LinearLayout layout = LinearLayout::kPlain);

// Bytes that pack_linear() takes of the device for n rows in all.
int64_t packed_bytes(DeviceKind device, int64_t n, int64_t k, DType storage,
                     LinearLayout layout = LinearLayout::kPlain);

// Whether weights may be stored as kF8E4M3. gpu: not looked at on the CPU.
bool linear_takes_fp8(DeviceKind device, const GpuInfo& gpu);

enum class Epilogue {
  kStore,   // y[m, n] = sum
  kAdd,     // y[m, n] += sum          (the residual stream)
  kSwiGlu,  // y[m, j] = silu(gate[m, j]) * up[m, j], j < n / 2; REQUIRES layout kGateUp
};

// x: [rows, k], bf16 or fp32. bf16 x with bf16 weights: products of bf16, sums in fp32. Where either is fp32, products
// and sums are.
// FP8 weights take FP8 x and nothing else: products of codes, each sum times the weight row's scale, then times x's
// row's. The matrix unit keeps about 13 bits of such a sum behind its largest product, so its error is larger than that
// of fp32 sums, but small beside what quantising did. y: [rows, n] (kSwiGlu: [rows, n / 2]), bf16 or fp32 (kAdd: fp32).
// y must not overlap x. rows may be 0.
// summaries: which rows of y are summarised instead (row_summaries.h); REQUIRES kStore, fp32 y and linear_summarises().
void linear(Stream& stream, const LinearWeight& w, ScaledRows x, TensorView y, Epilogue epilogue,
            const RowSummaries& summaries = {});

// Rows as products with w take them: of x in `activation`, or as codes where w is stored as codes. Whoever makes x (a
// norm, say) writes it there in one go.
ScaledRows input_for(const LinearWeight& w, DType activation, int64_t rows, Arena& scratch);

// As linear(), from plain x: by way of codes where w is stored as codes.
void product(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue, Arena& scratch);

// Whether rows of products of w with x of that type can be summarised on the stream's device. On CUDA: on sm_90, where
// w is bf16 and x too, or both FP8, w is kPlain, not portable and not so small that its k is cut, and n is a multiple
// of 4.
bool linear_summarises(const Stream& stream, const LinearWeight& w, DType x);

}  // namespace volley::ops
