// The round's view of a drafting algorithm. Only the proposer knows what it proposes, from which rows, how many tokens,
// whole blocks or token by token, and how sure it is. A proposer owns its weights and options. Its per-request state
// lives in the draft layers of the shared pages, so no state outlives a request's slot. It can do without whatever else
// it keeps for a slot (mtp). A round may have two, which both learn of every row: one of them drafts in a step.
#pragma once

#include <memory>
#include <span>

#include "decode/logit_chunks.h"
#include "decode/pass.h"
#include "device/arena.h"
#include "model/pass.h"
#include "ops/choice/choice.h"
#include "ops/step/step.h"

namespace volley::decode {

// A request for one step's drafts. Pointers are device memory, counts are host bounds. Segments with a block_index say
// whose blocks they are and how many tokens each wants. A block's context is valid up to the slot's last token. The
// block may write K and V there and at the `length` positions that follow.
struct DraftPass {
  ops::Step step;
  int32_t length = 0;  // tokens to propose for each block, at most Proposer::proposals(); no block wants more
  // Chunks of the wanted tokens, whose segments are blocks and whose logits fit the scratch memory. A chunk has whole
  // blocks, so a proposer may choose tokens all at once or from left to right.
  std::span<const LogitChunk> chunks;
  int32_t drafts = 0;         // wanted tokens of all blocks
  TokenId* tokens = nullptr;  // [drafts] out: proposals; a block's begin at its draft_begin
  // [drafts] out, from 0 to 1: a guess at the chance that the target chooses this token if it chose all before it
  // (budget/calibration.h corrects it)
  float* confidence = nullptr;
  PageTables page_tables;     // for the drafter's layers
  int32_t max_positions = 0;  // longest possible sequence
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  // The most tokens that a pass proposes for a block.
  virtual int32_t proposals() const = 0;
  // Target layers whose outputs commit() wants, in the order of their columns.
  virtual std::span<const int32_t> feature_layers() const { return {}; }

  // Whether what commit() enqueues may be recorded once for many steps.
  virtual bool recordable() const { return true; }

  // Bytes of its weights on the device.
  virtual int64_t packed_bytes() const { return 0; }
  // Bytes that it keeps for the slots on the device, beside pages.
  virtual int64_t slot_bytes() const { return 0; }

  // Drafts the blocks. Any choice gives the same text. The sampling rule, with each slot's own parameters and noise,
  // gets most tokens accepted.
  virtual void draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) = 0;
  // Learns features of the target's rows: [rows][columns], in the target's activation dtype. Rejected rows may stand
  // behind those that joined their sequence; what they write is overwritten before it is read. The visibility of `rows`
  // is unset; page tables are those of the drafter's layers. Not called without feature layers.
  virtual void commit(Stream& stream, const ops::Rows& rows, TensorView features, Arena& scratch) {}
};

// A proposer, and its layers among those of the KV memory.
struct Drafter {
  std::unique_ptr<Proposer> proposer;
  size_t first_layer = 0, layers = 0;
};

}  // namespace volley::decode
