// y = x W^T for packed weights: the one way a weight matrix enters a computation, so that formats (bf16, fp32, FP8)
// serve target and drafter alike. A caller need not know how a weight is stored: it passes rows and an End for the
// sums.
//
// Batch invariance: y[m, n] is a sum over k in one fixed order that depends on the weight's shape and format alone,
// never on the number of rows, the row's place among them, its neighbours or the number of threads.
#pragma once

#include <volley/result.h>

#include <functional>
#include <span>
#include <string>

#include "device/arena.h"
#include "device/device.h"
#include "device/tensor.h"
#include "ops/linear/cuda/sent_sums.h"
#include "ops/linear/row_summaries.h"
#include "ops/quantise/quantise.h"

namespace volley::ops {

// A row as codes of some WeightFormat, to be filled by the code that knows how a checkpoint packs them.
struct CodedRow {
  // [k]: bits of e4m3, e2m1 or int8; of int6 the value + 32; of int4 the value + 8, or with zero points + that of its
  // group, or with minimums from 0 to 15.
  std::span<uint8_t> codes;
  std::span<float> scales;         // one for each group
  std::span<uint8_t> zeros = {};   // likewise, up to 16; empty for a format without zero points
  std::span<float> minimums = {};  // likewise; empty for a format without minimums
};

// Rows of a matrix as a checkpoint holds them: [rows, k], bf16, fp16 or fp32; or in another form, which `values` or
// `codes` reads row by row, from any thread.
struct WeightRows {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t rows = 0;
  // Elements from a row to the next (0: k), and from a column to the next. Strided rows may be a part of a larger
  // matrix.
  int64_t row_stride = 0, column_stride = 1;
  std::function<void(int64_t row, float* values)> values = {};         // to be packed as a plain type
  std::function<void(int64_t row, const CodedRow& coded)> codes = {};  // for formats that pack it unchanged

  int64_t row_step(int64_t k) const { return row_stride == 0 ? k : row_stride; }
  // Whether they lie row by row without gaps.
  bool is_dense(int64_t k) const { return row_step(k) == k && column_stride == 1; }
};

// How the values of a weight matrix are stored. Codes stand for code * scale; group_n outputs (of kGateUp: of the
// gates, and of the ups) and group_k columns (0: all) share an fp32 scale. With zero points a code is relative to its
// group's, an integer from 0 to 16. With minimums it stands for code * scale + that of its group, in fp32.
struct WeightFormat {
  constexpr WeightFormat() = default;
  constexpr WeightFormat(DType code, int16_t group_n = 1, int16_t group_k = 0, bool zeros = false,
                         bool minimums = false,
                         bool halves = false)  // NOLINT: values without scales are their type
      : code(code), group_n(group_n), group_k(group_k), zeros(zeros), minimums(minimums), halves(halves) {}
  bool operator==(const WeightFormat&) const = default;

  bool is_codes() const { return code == DType::kF8E4M3 || code == DType::kI8 || code == DType::kI6 || is_nibbles(); }
  // Whether two codes share a byte.
  bool is_nibbles() const { return code == DType::kI4 || code == DType::kF4E2M1; }
  int code_bits() const { return is_nibbles() ? 4 : code == DType::kI6 ? 6 : 8; }  // REQUIRES: is_codes()
  // Whether input rows become codes, too, before they are multiplied. Other codes with scales along k are widened
  // instead.
  bool multiplies_codes() const { return is_codes() && (group_k == 0 || in_blocks()); }
  // Whether neighbouring outputs share scales of columns; and rows have scales in groups.
  bool in_blocks() const { return group_n > 1 && group_k > 0; }

  DType code = DType::kBF16;  // kBF16, kF32, kF8E4M3, kF4E2M1, kI8, kI6, or kI4: -8 … 7, with minimums 0 … 15
  int16_t group_n = 1, group_k = 0;
  bool zeros = false;     // kI4 alone
  bool minimums = false;  // kI8, kI6 and kI4, without zeros
  bool halves = false;    // with minimums: they and the scales are values of fp16, as which the CPU keeps them
};

// e4m3 with a scale for each output, for rows that are quantised to e4m3, too. CUDA only, where linear_takes_fp8().
inline constexpr WeightFormat kFp8Rows = {DType::kF8E4M3, 1, 0};
// The same with scales of blocks, for rows with a scale for each kScaleGroup columns; for codes of a checkpoint. Its
// larger blocks are treated as several of these.
inline constexpr WeightFormat kFp8Blocks = {DType::kF8E4M3, 32, kScaleGroup};
// Codes for weights only, in groups of 16, 32, 64 or 128 columns. On CUDA e4m3 only for experts.
inline constexpr WeightFormat kFp8Weights = {DType::kF8E4M3, 1, 128};
inline constexpr WeightFormat kInt4Weights = {DType::kI4, 1, 32};
// The same of a checkpoint alone, such as blocks of GGUF files. On CUDA kI8 without and kI4 with minimums in groups of
// 32 and more.
inline constexpr WeightFormat kInt8Weights = {DType::kI8, 1, 32}, kInt6Weights = {DType::kI6, 1, 16};
inline constexpr WeightFormat kInt4Minimums = {DType::kI4, 1, 32, false, true};
inline constexpr WeightFormat kInt6Minimums = {DType::kI6, 1, 32, false, true};
inline constexpr WeightFormat kInt8Minimums = {DType::kI8, 1, 32, false, true};
// Groups with a power of two as their scale (OCP microscaling formats), and NVIDIA's format, whose scales have two
// levels.
inline constexpr WeightFormat kMxfp4Weights = {DType::kF4E2M1, 1, 32};
inline constexpr WeightFormat kNvfp4Weights = {DType::kF4E2M1, 1, 16};

enum class LinearLayout {
  kPlain,   // outputs in the order of the parts' rows
  kGateUp,  // two parts of equal size, gate then up, stored so that one kernel pass ends with both of an output
};

// A weight matrix [n, k] packed for its device. Immutable; may be shared by threads.
struct LinearWeight {
  int64_t n = 0, k = 0;  // n counts all rows of all parts
  WeightFormat format;
  LinearLayout layout = LinearLayout::kPlain;
  Buffer packed;
  bool portable = false;  // CUDA: the kernel for GPUs without wgmma, on any GPU; the same bits
  // CUDA, for parts of a matrix that need the bits of other parts: k is split as for so many outputs (0: n), and the
  // kernel is the one that takes any shape.
  int64_t split_as = 0;
  bool plain = false;

  // A copy without the packed bytes.
  LinearWeight unpacked() const { return {n, k, format, layout, Buffer(), portable, split_as, plain}; }
};

// "bfloat16", or of codes with their groups: "int4/32"; with zero points "uint4/32", with minimums "int4/32+min".
std::string format_name(const WeightFormat& format);
// Whether linear() and grouped_linear() have kernels for codes of that format, from a checkpoint or made at load.
bool multiplies_as_stored(DeviceKind device, const WeightFormat& format);
// Bytes that a value of a matrix takes, scales included.
double bytes_per_value(const WeightFormat& format);

// Packs `parts` (each [rows, k], stacked) once. kBF16 rounds fp32 and fp16 sources to bf16; kF32 is exact. kFp8Rows
// quantises each row as quantise_rows() does. kFp8Rows and kFp8Blocks need k to be a multiple of 16 and the outputs one
// of 4. kFp8Weights quantises each group. kInt4Weights takes the scale of a group that leaves the least squared error
// among some (on CUDA both round scales to bf16). A group with a NaN or an infinity becomes NaN. Parts with codes of
// their own are packed unchanged. kUnimplemented: the device has no kernels for the format.
Result<LinearWeight> pack_linear(Device& device, std::span<const WeightRows> parts, int64_t k, WeightFormat format,
                                 LinearLayout layout = LinearLayout::kPlain);

// Bytes that pack_linear() takes of the device for n rows in all.
int64_t packed_bytes(DeviceKind device, int64_t n, int64_t k, WeightFormat format,
                     LinearLayout layout = LinearLayout::kPlain);

// Whether weights may be stored as kFp8Rows and kFp8Blocks. The CPU ignores gpu.
bool linear_takes_fp8(DeviceKind device, const GpuInfo& gpu);

enum class EndKind {
  kStore,   // y[m, n] = sum + bias[n]
  kAdd,     // y[m, n] += sum + bias[n]     (the residual stream)
  kSwiGlu,  // y[m, j] = silu(gate[m, j]) * up[m, j], j < n / 2; REQUIRES layout kGateUp
  // As kSwiGlu with GELU, by tanh: y[m, j] = g sigmoid(2 sqrt(2 / pi) (g + 0.044715 g^3)) up[m, j].
  kGeGlu,
  // y[m, j] = g * sigmoid(alpha * g) * (u + 1) with g = min(gate[m, j], limit) and u = up[m, j] within -limit … limit.
  // As kSwiGlu; grouped_linear() alone.
  kClampedSwiGlu,
};

// Whether the products of gates and ups make one result.
constexpr bool has_gates(EndKind kind) {
  return kind != EndKind::kStore && kind != EndKind::kAdd;
}
// The number whose sigmoid multiplies the gate g, of kSwiGlu and kGeGlu: 0.5 (1 + tanh(t)) is sigmoid(2 t).
constexpr float kGeluLinear = 1.59576912f, kGeluCubic = 0.0713548163f;

// Constants of kClampedSwiGlu.
struct SwiGluClamp {
  float alpha = 1, limit = 0;
  bool operator==(const SwiGluClamp&) const = default;
};

// The end of a product: how finished sums are turned into outputs.
struct End {
  EndKind kind = EndKind::kStore;
  TensorView bias = {};         // [n] fp32; or a null view. REQUIRES: no gates, no summaries
  RowSummaries summaries = {};  // rows of y that are summarised instead. REQUIRES: kStore, fp32 y, linear_summarises()
  SwiGluClamp clamp = {};
  // The mailboxes that sums are sent to instead of y, or null. REQUIRES: kStore, fp32 y, no bias, no summaries,
  // linear_sends()
  SentSums sent = {};
  bool fewer = false;  // CPU: y may have fewer columns, which get the first outputs. REQUIRES: kStore
};

// x: [rows, k]. bf16 x with bf16 weights: products of bf16, sums in fp32. Where either is fp32, products and sums are.
// Weights that are codes with scales along k are widened, exactly; on the CPU each group's sum is multiplied by its
// scale and added, and so is the sum of the group's x times its minimum; but kI8, kI6 and codes with minimums that meet
// fp32 arithmetic (x in fp32, or a CPU without AVX-512 BF16) are widened to fp32 first: where code * scale is exact, as
// of GGUF's blocks, the product has the bits of kF32 weights with these values. On CUDA code times scale (plus minimum,
// in fp32) is rounded to bf16 for rows in bf16: the bits are those of such weights. kFp8Rows multiplies codes; plain x
// becomes codes first, in scratch memory that is given back. Each sum of products of codes is multiplied by the weight
// row's scale, then by x's row's. The matrix unit keeps about 13 bits of such a sum below its largest product, so its
// error is larger than that of fp32 sums, but small compared with the error of quantising. kFp8Blocks does so with the
// 128 columns of a block: their sum times the product of both scales is added in fp32. y: [rows, n] (with gates: [rows,
// n / 2]; or see End::fewer), bf16 or fp32 (kAdd: fp32). y must not overlap x. rows may be 0.
void linear(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end, Arena& scratch);

// Allocates rows as products with w take them: of `activation`, or codes if w multiplies codes. The op that makes the
// rows (a norm, say) writes them there directly.
Input input_for(const LinearWeight& w, DType activation, int64_t rows, Arena& scratch);

// Whether rows of products of w with rows of `activation` can be summarised on the stream's device. On CUDA: on sm_90,
// where both are bf16, or w is kFp8Rows; w is kPlain, not portable and not so small that its k is cut, and n is a
// multiple of 4.
bool linear_summarises(const Stream& stream, const LinearWeight& w, DType activation);

// Whether a product of w with so many rows of `activation` can send its sums. On CUDA: up to kMostSentRows, on sm_90,
// where both are bf16, or w is kFp8Rows or kFp8Blocks; w is kPlain and not portable, and n is a multiple of 4.
bool linear_sends(const Stream& stream, const LinearWeight& w, DType activation, int64_t rows);

}  // namespace volley::ops
