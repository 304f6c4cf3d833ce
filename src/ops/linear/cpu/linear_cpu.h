// Shared by the parts of the CPU's linear operation: the packed layout, the plan of a call, and the kernels' interface.
// Private to this folder.
//
// Packed layout: panels of 16 outputs, zero-padded. A bf16 panel is [ceil(k / 2)][16][2], so that one 64-byte line
// holds 16 outputs of two neighbouring k, which is what vdpbf16ps multiplies; an fp32 panel is [k][16]. kGateUp
// alternates panels: 16 gates, the 16 ups of the same outputs, and so on. A panel of codes is a run of groups of
// format.group_k columns, the last one padded with zeros: 16 fp32 scales, as many zero points or minimums (fp32, too;
// with format.halves both are fp16) where the format has them, then the codes, 64 bytes after 64. Their words belong to
// the 16 outputs; code i of a word's lower (upper) half is that of the even (odd) column of pair i. Codes of 6 bits lie
// in three lines for 16 columns: their lower 4 bits in two, as those of 4 bits do, then the upper two of all eight
// pairs likewise.
//
// Order of a sum: k ascending, into one fp32 accumulator per output (of codes: per output and group, and one more for
// the sum of groups times scales; of codes that are widened with their scale, one per output). Where k is cut into
// blocks, the accumulator is stored and loaded again unchanged, so that the cut shows in no bit.
#pragma once

#include <cstdint>
#include <vector>

#include "device/tensor.h"
#include "ops/linear/linear.h"

namespace volley::ops {

inline constexpr int64_t kPanelWidth = 16;
inline constexpr int64_t kLineBytes = 64;
inline constexpr int64_t kTileRows = 16;  // rows that go through a panel together
// Size of the packed x of one block of k. It is also how far ahead 16 rows prefetch; 4 KB and 16 KB were slower from
// memory.
inline constexpr int64_t kTileBytes = 8 << 10;
inline constexpr int64_t kSumBytes = 16 << 10;  // bytes of the accumulators of one group of panels

// One block of k of one tile of rows, against some panels.
struct TileProduct {
  const void* x;        // packed rows: uint32 [ceil(k / 2)][rows] pairs of bf16, or float [k rounded up to even][rows]
  int64_t rows;         // 1 … kTileRows
  int64_t k;            // columns of this block; even, except in the last block
  int64_t group;        // for codes: columns of a group
  bool halves;          // for codes with minimums: these and the scales are fp16
  const char* weights;  // the first panel's line of this block's first k
  int64_t panel_bytes;  // from one panel to the next
  int64_t panels;
  const char* next;               // where the product after this one starts reading, to prefetch; may lie past the end
  float* sums;                    // [panels][rows][16]
  bool first;                     // start from zero instead of from `sums`
  const float* x_sums = nullptr;  // [groups][rows]: the sums of x over each group, for pairs times codes with minimums
};

using TileMultiply = void (*)(const TileProduct&);

// The end of finished sums [panels][rows][16].
struct TileOutput {
  const float* sums;
  int64_t rows;
  int64_t panels;
  EndKind kind;
  const float* bias;     // bias of these panels' first output; or null
  const float* up_bias;  // bias of the same output's up; then `bias` is the gate's
  SwiGluClamp clamp;
  DType dtype;      // type of y
  void* y;          // the first row's first output of these panels
  int64_t stride;   // elements from one row of y to the next
  int64_t columns;  // outputs that y has from there on; more than 16 for whole panels
};

// Kernels. The portable ones run on the best instruction set that Highway finds.
void multiply_tile_bf16(const TileProduct& product);  // float x, bf16 weights
void multiply_tile_f32(const TileProduct& product);   // float x, fp32 weights
// float x, codes in groups. format: how the codes are stored.
TileMultiply multiply_codes(const WeightFormat& format);
void write_tile(const TileOutput& output);
// AVX-512 BF16 only, see cpu_has_avx512_bf16(): pairs of bf16, bf16 weights.
void multiply_tile_avx512bf16(const TileProduct& product);
// The same with codes in groups. REQUIRES: cpu_has_avx512_vbmi(), pairs up to a multiple of kCodePad columns.
TileMultiply multiply_codes_avx512bf16(const WeightFormat& format);
// Makes TileProduct::x_sums, for all panels.
void sum_groups_avx512bf16(const uint32_t* tile, int64_t rows, int64_t k, int64_t group, float* sums);
// Packs x[rows, k] (row_stride elements apart) as `TileProduct::x` wants it, k odd padded with zero.
void pack_tile_avx512bf16(const BFloat16* x, int64_t row_stride, int64_t rows, int64_t k, uint32_t* tile);

// Products of rows of x with one packed matrix, and where they go. Rows are numbers i of a list: row i of x is
// x_rows[i] / x_divisor, and row i of y is y_rows[i]; both are i itself where the list is null.
struct PanelProduct {
  const char* weights = nullptr;  // the first panel
  int64_t k = 0;
  int64_t panels = 0;
  int64_t panel_bytes = 0;
  int64_t unit = 1;        // panels that must stay together: 2 for gate and up
  int64_t step = 1;        // columns of k that lie together: a block of k starts at a multiple
  int64_t step_bytes = 0;  // bytes of such a step in a panel
  int64_t group = 0;       // for codes: columns of a group
  bool halves = false;     // as TileProduct's
  int64_t pad = 2;         // the rows of a tile are filled up with zeros to a multiple of so many k
  bool pairs = false;      // vdpbf16ps
  bool sums_x = false;     // the kernel reads TileProduct::x_sums
  TileMultiply multiply = nullptr;
  TensorView x, y;
  int64_t x_stride = 0, y_stride = 0;  // elements from one row to the next
  EndKind kind = EndKind::kStore;
  const float* bias = nullptr;  // bias of outputs: gates and then ups where there are both; or null
  SwiGluClamp clamp;
  const int32_t* x_rows = nullptr;
  int64_t x_divisor = 1;
  const int32_t* y_rows = nullptr;

  // n: rows of the packed matrix, all parts. x and y as in linear(), their rows without gaps.
  static PanelProduct make(const char* weights, int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout,
                           const TensorView& x, const TensorView& y, EndKind kind);
};

// Panels [panel, panel_end) for rows [row, row_end). A group of `group` panels is worked through for all rows before
// the next, so that it is read from memory once.
void run_panels(const PanelProduct& product, int64_t group, int64_t row, int64_t row_end, int64_t panel,
                int64_t panel_end);

// How a call is divided into tasks. Affects speed only.
struct LinearPlan {
  int64_t panel_tasks = 1;  // tasks along the outputs …
  int64_t row_tasks = 1;    // … times tasks along the rows
  int64_t group = 1;        // panels that a task works on before it goes back to their start with the next rows

  static LinearPlan make(int64_t rows, int64_t k, int64_t panels, int64_t panel_bytes, int64_t unit, int threads);
};

Result<LinearWeight> pack_linear_cpu(Device& device, std::span<const WeightRows> parts, int64_t k,
                                     const WeightFormat& format, LinearLayout layout);

// Packs `parts` to `packed`: linear_panels() panels of linear_panel_bytes(), zeroed before.
void pack_panels_cpu(ThreadPool& pool, std::span<const WeightRows> parts, int64_t k, const WeightFormat& format,
                     LinearLayout layout, char* packed);

// Codes of a panel's outputs, before they are packed.
class PanelCodes {
 public:
  PanelCodes(int64_t k, const WeightFormat& format);
  // Where the codes of output `lane` go.
  CodedRow row(int64_t lane);
  // Values of one of its groups, which become codes. REQUIRES: kF8E4M3, or kI4 without zero points and minimums.
  void quantise(int64_t lane, int64_t group, const float* values, int64_t count);
  // Writes all of the panel. Outputs that no codes were given for have the scale 0.
  void store(char* panel) const;

 private:
  WeightFormat format_;
  int64_t k_, groups_;
  std::vector<uint8_t> codes_, zeros_;  // [kPanelWidth][groups][group_k], and [kPanelWidth][groups] like the others
  std::vector<float> scales_, minimums_;
};

inline constexpr int64_t kLeastGroup = 16, kMostGroup = 128;  // columns of a group
inline constexpr int64_t kCodePad = 16;  // columns that are multiplied together: those of three lines of int6
// Bytes before the codes of one group of a panel: scales, and zero points or minimums.
inline int64_t linear_group_head_bytes(const WeightFormat& format) {
  return (format.zeros || format.minimums) && !format.halves ? 2 * kLineBytes : kLineBytes;
}
inline int64_t linear_group_bytes(const WeightFormat& format) {
  return linear_group_head_bytes(format) + kPanelWidth * format.group_k * format.code_bits() / 8;
}

// Panels of a packed weight, and bytes of one.
inline int64_t linear_panels(int64_t n, LinearLayout layout) {
  return layout == LinearLayout::kGateUp ? 2 * ((n / 2 + kPanelWidth - 1) / kPanelWidth)
                                         : (n + kPanelWidth - 1) / kPanelWidth;
}
inline int64_t linear_panel_bytes(int64_t k, const WeightFormat& format) {
  if (format.is_codes()) return (k + format.group_k - 1) / format.group_k * linear_group_bytes(format);
  return (format.code == DType::kBF16 ? (k + 1) / 2 : k) * kLineBytes;
}

}  // namespace volley::ops
