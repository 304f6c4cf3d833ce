// What the round needs of a drafting algorithm, and the only thing that knows one. A proposer owns its weights and
// options; its per-request state lives in the draft layers of the shared pages, so nothing of a request outlives its
// slot.
#pragma once

#include <span>

#include "device/arena.h"
#include "model/kv_memory.h"
#include "ops/choice/choice.h"
#include "spec/row_builder.h"

namespace volley::spec {

// A slot that wants drafts. The drafter's context is valid for [0, start).
struct DraftRequest {
  int32_t slot = 0;
  int32_t start = 0;  // sequence index of last_token
  TokenId last_token = 0;
  int32_t count = 0;            // tokens wanted, 1 … block_size - 1
  TokenId* tokens = nullptr;    // [count] out: proposals for start + 1, start + 2, …
  float* confidence = nullptr;  // [count] out, or null: the drafter's probability of each proposal
};

// Rows of the target's pass that became part of their sequences.
struct CommitRows {
  std::span<const RowRun> runs;
  TensorView features;  // [rows of the runs, flattened][columns], in the target's activation dtype
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  // Tokens of a block, its first (known) token included.
  virtual int32_t block_size() const = 0;
  // Target layers whose outputs commit() wants, in the order of their columns.
  virtual std::span<const int32_t> feature_layers() const = 0;

  // Chooses with the sampling rule, each slot's own parameters and noise.
  virtual void draft(Stream& stream, std::span<const DraftRequest> requests, const ops::SamplerState& sampler,
                     TensorView page_table, Arena& scratch) = 0;
  // Learns accepted features; afterwards the context of each run's slot is valid to the run's end.
  virtual void commit(Stream& stream, const CommitRows& rows, TensorView page_table, Arena& scratch) = 0;

  virtual int64_t scratch_bytes(int64_t max_slots, int64_t max_commit_rows, int64_t max_positions) const = 0;
};

}  // namespace volley::spec
