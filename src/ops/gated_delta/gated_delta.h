// The gated delta rule (Yang et al. 2024, arXiv:2412.06464) with its short convolution, gates and output norm: all of a
// recurrent layer between its projections.
//
// A row brings q | k | v | z and, for each v head, b and a. A depthwise causal convolution over the last `taps` rows
// and SiLU make q, k and v; q and k of a head are divided by sqrt(sum of squares + 1e-6), q by sqrt(k_dim) besides. v
// head h goes with k head h / (v_heads / k_heads) and keeps a state S: [k_dim, v_dim] fp32, which a row changes and
// reads:
//   beta = sigmoid(b), decay = exp(-exp(a_log) * softplus(a + dt_bias)),
//   S <- decay S,  S <- S + k (beta (v - S^T k))^T,  o = S^T q,  out = RMSNorm(o) * norm * silu(z).
//
// A slot keeps, for its sequence, the state at one position, the taps - 1 projected rows before that position, and a
// tape: the rows after it that may yet be discarded. Accepting drafted rows copies nothing: the position of the
// sequence's next row tells how many rows of the tape were accepted. These are replayed into the state, and the new
// rows continue from there. A segment's first row always belongs to the sequence, so it goes into the state at once,
// and so do all but the last tape_rows rows of a longer segment. The last rows are computed on a copy of the state and
// left on the tape. A segment that begins at position 0 begins anew, whatever the slot held.
//
// Batch invariance: a row takes the same steps in fp32, one row after the other, whether it is decoded, verified,
// replayed or part of a prompt. Outputs and states do not depend on how rows fall into calls, nor on other slots or
// threads. The paper's chunked form is not used: its bits differ, so a prompt that contains an earlier request's answer
// could use neither the pages nor the state that the answer left.
#pragma once

#include <volley/result.h>

#include <cstdint>

#include "device/arena.h"
#include "ops/rows.h"

namespace volley::ops {

struct DeltaShape {
  int32_t k_heads = 0, v_heads = 0;  // k_heads divides v_heads
  int32_t k_dim = 0, v_dim = 0;      // widths of a head: multiples of 16, at most 256
  int32_t taps = 0;                  // taps of the convolution: 1 to 8

  int64_t k_width() const { return int64_t{k_heads} * k_dim; }
  int64_t v_width() const { return int64_t{v_heads} * v_dim; }
  int64_t channels() const { return 2 * k_width() + v_width(); }  // channels of the convolution: q, k and v
};

// kUnimplemented or kInvalidArgument for a shape that there are no kernels for, naming the number.
Status check_delta_shape(const DeltaShape& shape);

// The memory that one layer keeps for sequences: one piece a slot, owned by the caller, and zeroed before its first
// use. It may be copied as bytes between calls.
struct DeltaState {
  std::byte* base = nullptr;  // slot 0's memory, aligned to 64 bytes
  int32_t slots = 0;
  int32_t tape_rows = 0;       // at least the drafted rows that a segment can have; may be 0
  DType dtype = DType::kBF16;  // type of the kept projected rows: kBF16 or kF32
};
// Bytes of one slot.
int64_t delta_state_bytes(const DeltaShape& shape, int32_t tape_rows, DType dtype);

struct GatedDelta {
  DeltaShape shape;
  TensorView projected;       // [rows, channels() + v_width()]: q, k, v, z; the state's dtype
  TensorView gates;           // [rows, 2 * v_heads] fp32: b, then a
  TensorView conv;            // [channels() * taps] fp32: the taps of a channel side by side, the row's own last
  TensorView a_log, dt_bias;  // [v_heads] fp32
  TensorView norm;            // [v_dim] fp32
  float eps = 0;              // the norm's epsilon
  DeltaState state;
  TensorView out;  // [rows, v_width()], the state's dtype; rows of no segment become 0
};

// A segment of `rows` names the slot whose state its rows use, and its first cache position; views are ignored.
// REQUIRES: that position is 0, or lies on the tape that the slot's last call left or right after it; a slot in at most
// one segment. A slot without a segment, or with one of no rows, stays as it is.
//
// CUDA reads segments and positions on the device, and stops with a trap if they violate this. It ignores segments with
// slots from state.slots on (a scrap slot); rows with such a slot belong to no segment.
void gated_delta(Stream& stream, const Rows& rows, const GatedDelta& args, Arena& scratch);

}  // namespace volley::ops
