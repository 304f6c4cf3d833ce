// What the round needs of a drafting algorithm, and the only thing that knows one. A proposer owns its weights and
// options; its per-request state lives in the draft layers of the shared pages, so nothing of a request outlives its
// slot.
#pragma once

#include <span>

#include "device/arena.h"
#include "model/pass.h"
#include "ops/choice/choice.h"
#include "ops/step/step.h"
#include "spec/logit_chunks.h"
#include "spec/pass.h"

namespace volley::spec {

// A request for drafts of one step. All pointers are device memory, all counts host bounds: the segments with a
// block_index say whose blocks they are and how many tokens of each are wanted. The drafter's context of each is valid
// up to the slot's last token.
struct DraftPass {
  ops::Step step;
  int32_t block_size =
      0;  // rows of a block in this pass: 1 + the tokens that it drafts, at most Proposer::block_size()
  std::span<const LogitChunk> chunks;  // of the drafted tokens; their segments are blocks
  int32_t drafts = 0;                  // drafted tokens in all
  TokenId* tokens = nullptr;           // [drafts] out: proposals, a block's from its draft_begin on
  float* confidence = nullptr;         // [drafts] out, or null: the drafter's probability of each proposal
  PageTables page_tables;              // of the drafter's layers
  int32_t max_positions = 0;           // of a sequence
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  // Tokens of a block, its first (known) token included.
  virtual int32_t block_size() const = 0;
  // Target layers whose outputs commit() wants, in the order of their columns.
  virtual std::span<const int32_t> feature_layers() const = 0;

  // Bytes of its weights on the device.
  virtual int64_t packed_bytes() const = 0;

  // Chooses with the sampling rule, each slot's own parameters and noise.
  virtual void draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) = 0;
  // Learns features of rows of the target's pass: [rows][columns], in the target's activation dtype. Rows that did not
  // become part of their sequence may be among them, behind those that did; what they leave is overwritten before it is
  // looked at. Token ids, and what rows see, say nothing here; page tables are those of the drafter's layers.
  virtual void commit(Stream& stream, const ops::Rows& rows, TensorView features, Arena& scratch) = 0;
};

}  // namespace volley::spec
