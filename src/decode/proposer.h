// What the round needs of a drafting algorithm, and the only thing that knows one: what it proposes, from which rows of
// how many, block at once or token by token, and how sure it is. A proposer owns its weights and options; its
// per-request state lives in the draft layers of the shared pages, so nothing of a request outlives its slot; what else
// it keeps of a slot (mtp) it can do without.
#pragma once

#include <span>

#include "decode/logit_chunks.h"
#include "decode/pass.h"
#include "device/arena.h"
#include "model/pass.h"
#include "ops/choice/choice.h"
#include "ops/step/step.h"

namespace volley::decode {

// A request for drafts of one step. All pointers are device memory, all counts host bounds: the segments with a
// block_index say whose blocks they are and how many tokens of each are wanted. The drafter's context of each is valid
// up to the slot's last token, and a block may write K and V there and at the `length` positions that follow.
struct DraftPass {
  ops::Step step;
  int32_t length = 0;  // tokens that the pass proposes for each block, at most Proposer::proposals(); none wants more
  // The wanted tokens, cut so that no chunk's logits are too many at a time; their segments are blocks. A chunk has
  // whole blocks, so a proposer may choose their tokens all at once or from left to right.
  std::span<const LogitChunk> chunks;
  int32_t drafts = 0;           // wanted tokens in all
  TokenId* tokens = nullptr;    // [drafts] out: proposals, a block's from its draft_begin on
  float* confidence = nullptr;  // [drafts] out: from 0 to 1, a guess at the chance that the target's choice is the same
                                // if all before it were; what it is worth by position is learned (budget/calibration.h)
  PageTables page_tables;       // of the drafter's layers
  int32_t max_positions = 0;    // of a sequence
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  // Tokens that a pass proposes for a block, at most.
  virtual int32_t proposals() const = 0;
  // Target layers whose outputs commit() wants, in the order of their columns.
  virtual std::span<const int32_t> feature_layers() const { return {}; }

  // Bytes of its weights on the device.
  virtual int64_t packed_bytes() const { return 0; }

  // Chooses as it likes: the text does not depend on it. Most is accepted with the sampling rule, each slot's own
  // parameters and noise.
  virtual void draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) = 0;
  // Learns features of rows of the target's pass: [rows][columns], in the target's activation dtype. Rows that did not
  // become part of their sequence may be among them, behind those that did; what they leave is overwritten before it is
  // looked at. What rows see says nothing here; page tables are those of the drafter's layers. Not called without
  // feature layers.
  virtual void commit(Stream& stream, const ops::Rows& rows, TensorView features, Arena& scratch) {}
};

}  // namespace volley::decode
