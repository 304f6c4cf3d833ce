// What a drafter needs that proposes token by token, each from a hidden state and a token: rows for one token a block,
// and the hidden state before each row. Threads: the stream's.
#pragma once

#include "ops/step/step.h"

namespace volley::ops {

// Hidden states of the last rows of each slot, by position: entry slot * depth + position % depth.
struct HiddenCarry {
  TensorView hidden;     // [slots * depth, h], bf16 or fp32
  TensorView positions;  // [slots * depth] int32: whose hidden state an entry holds; -1: none yet
  int32_t depth = 0;     // >= the rows of a step that may be rejected, and one
};

// Lays out the pass that chooses the j-th drafted token of each block: fills the arrays and segments of `rows`, but no
// page tables, and the choices. Block i has row i and choice i; the choice is empty if the block wants at most j
// tokens. The row's token is the slot's last one for j == 0 and previous[i] for later ones, at that token's position. A
// row sees the positions from 1 to its own: position 0 has no hidden state before it. previous: [blocks], device
// memory.
void fill_chain_rows(Stream& stream, const Step& step, int32_t j, const TokenId* previous, const Rows& rows,
                     const PassChoices& choices);

// Stores the choice of each block's j-th token among the step's drafts, for blocks that want more than j tokens. chosen
// and probability: [blocks]; tokens and confidence: [the step's drafts] out. All device memory.
void put_chain_drafts(Stream& stream, const Step& step, int32_t j, const TokenId* chosen, const float* probability,
                      TokenId* tokens, float* confidence);

// out[r] = the hidden state at the position before row r: that of row r - 1 if both rows are of one sequence, else the
// carried one, else zeros. hidden: [rows, h] of the carry's dtype; a null view: carried ones alone are used. out:
// [rows, h] fp32.
void take_previous(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry, TensorView out);

// Carries the hidden states of each sequence's last `depth` rows. hidden: [rows, h] of the carry's dtype.
void carry_last(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry);

}  // namespace volley::ops
