// The sampling rule: from logits to one token a row, by Gumbel-max with Philox4x32-10 noise (docs/architecture.md,
// "One sampling rule"). Target and drafter use it with the same parameters and noise; that is what makes verification
// by equality lossless at any temperature.
//
//   choice(t) = argmax_v (processed[v] + g(seed, t, v)),   g = -log(-log u),
//   u in (0, 1) from Philox4x32-10, key = seed, counter = (v / 4, t, choice index, 0), lane v mod 4;
//   ties to the lowest id.
//   processed: penalties, then logit bias and masks, then / temperature, min-p, top-k, top-p.
// At temperature 0: no noise, no division, no filters. Temperatures in (0, 1e-6) act as 1e-6.
#pragma once

#include <volley/sampling.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/arena.h"
#include "device/device.h"
#include "ops/linear/row_summaries.h"

namespace volley::ops {

// The largest vocabulary: sums of token weights are exact up to here.
inline constexpr int32_t kMaxVocab = 1 << 19;

// The most that one request may have of each. The engine refuses more when a request is submitted.
inline constexpr int32_t kMaxEndIds = 128;
inline constexpr int32_t kMaxLogitBias = 1024;
inline constexpr int32_t kMaxLogprobs = 20;

// The rule's input from the request in a slot. Validated by the engine.
struct SlotSampling {
  SamplingParams params;
  uint64_t seed = 0;             // params.seed, or what the engine drew
  int32_t prompt_length = 0;     // outputs start at this sequence index
  int32_t min_tokens = 0;        // while fewer outputs exist, end_ids are masked
  std::vector<TokenId> end_ids;  // end-of-sequence (unless ignored) and stop ids
};

// Output tokens that were committed: tokens[i * stride .. + counts[i]) of slot slots[i]. The arrays lie in the memory
// of the stream's device; `n` is known to the host, and an entry may have no tokens.
struct CommittedTokens {
  const int32_t* slots = nullptr;
  const int32_t* counts = nullptr;
  const TokenId* tokens = nullptr;
  int32_t n = 0;
  int32_t stride = 0;
};

// Token counts and parameters of every slot, in the memory of one device. A slot that is cleared keeps nothing.
// Threads: one, the engine's. On CUDA changes are ordered on the device's stream, after its earlier work, and no
// function here waits for the stream. Recorded graphs see the changes, because the addresses in them stay the same.
class SamplerState {
 public:
  // kResourceExhausted when there is no memory. The device must outlive the state.
  static Result<std::unique_ptr<SamplerState>> create(Device& device, int32_t slots, int32_t vocab);
  virtual ~SamplerState() = default;

  // Starts a slot. `prompt` matters to the repetition penalty, `output` (a resumed request's) to all penalties.
  // kResourceExhausted when there is no memory for the token counts that penalties need; the slot is then clear. (On
  // CUDA a slot's counts, 4 bytes a token of the vocabulary, are allocated for its first request with a penalty, and
  // kept.)
  virtual Status start(int32_t slot, SlotSampling sampling, std::span<const TokenId> prompt,
                       std::span<const TokenId> output) = 0;
  // Committed output tokens: from the host, or from the stream's device.
  virtual void append(int32_t slot, std::span<const TokenId> tokens) = 0;
  virtual void append_committed(Stream& stream, const CommittedTokens& committed) = 0;
  virtual void clear(int32_t slot) = 0;

  virtual DeviceKind kind() const = 0;
};

// The choices of one block: rows [row_begin, row_begin + rows) of the logits choose the tokens at sequence indices
// first_index, first_index + 1, … No two segments share a row. Segments without rows are skipped.
struct ChoiceSegment {
  int32_t slot = 0;
  int32_t row_begin = 0;
  int32_t rows = 0;
  int32_t first_index = 0;
  // Tokens that precede row i inside the block beyond the committed ones, for penalties and min_tokens:
  // not null: prefix[0 .. i) (a verify block's drafted tokens); null: the tokens chosen for rows 0 .. i - 1 (drafting).
  const TokenId* prefix = nullptr;
  // Grammar masks: [rows][mask_words] bits, token v is bit v % 32 of word v / 32, 1 = allowed; null: all allowed.
  // Tokens that the words do not reach are not allowed.
  const uint32_t* mask = nullptr;
  int32_t mask_words = 0;
};

// Log-softmax of a row's raw logits: the chosen token, and the highest ones, ties to the lower id. Tokens at -inf are
// not listed.
struct RowLogprobs {
  int32_t count = 0;
  TokenLogprob chosen;
  TokenLogprob top[kMaxLogprobs];  // [count], highest first
};

PositionLogprobs to_position_logprobs(const RowLogprobs& row);

// Memory of the stream's device, [rows of logits] each. Entries of rows that no segment covers stay unchanged.
struct ChoiceOutput {
  TokenId* tokens = nullptr;
  float* probability = nullptr;  // or null: softmax probability of the choice after processing (the drafter's
                                 // confidence), to a ten-thousandth or so: it orders and counts, no text depends on it
  RowLogprobs* logprobs = nullptr;  // or null; filled for slots that asked (params.logprobs >= 0)
  uint8_t* finite = nullptr;        // or null: 0 where no token can be chosen: the logits hold NaN or +inf (before
                              // or after processing), or every token is masked. The choice and its probability are then
                              // 0, and logprobs has no top. -inf is a masked token.
};

// logits: [rows, vocab] fp32, read only; on the CPU also fewer columns, of the first tokens: the others cannot be
// chosen. A row's choice depends only on its logits, its slot's parameters and counts, its index and its prefix, not on
// the batch or the device. CPU and CUDA give the same tokens and logprobs, except that the logarithms of logprobs may
// differ in the last bit; probabilities are close.
//
// The segments, and what they point to, lie in the memory of the stream's device; on CUDA only their number is known to
// the host, so that a recorded graph uses the segments present when it runs.
void choose(Stream& stream, TensorView logits, std::span<const ChoiceSegment> segments, const SamplerState& state,
            const ChoiceOutput& out, Arena& scratch);

// The same in two parts, for a product that can avoid writing logits: plan_choices() comes before the product and lists
// the rows of logits that are needed whole; for the others, choose() reads a summary.
struct ChoiceTask {
  int64_t rows = 0;  // rows of logits
  std::span<const ChoiceSegment> segments;
  const SamplerState* state = nullptr;
  ChoiceOutput out;
};

namespace choice {

struct PlainRow;
struct RowItem;
struct Finding;

// The plan on CUDA, in scratch.
struct DevicePlan {
  PlainRow* plain = nullptr;
  uint32_t* arrivals = nullptr;
  RowItem* items = nullptr;
  int32_t* item_count = nullptr;
  Finding* findings = nullptr;
};

}  // namespace choice

struct ChoicePlan {
  ChoiceTask task;
  RowSummaries summaries;  // for linear(), which makes the logits
  choice::DevicePlan device;
};

// summarises: whether linear() can (linear_summarises()); if not, the plan needs all rows whole. Rows of greedy
// requests are summarised if their logits are not changed and no logprobs are wanted. The choices, `finite` and
// logprobs are the same, to the bit; probabilities are as close as said above. The plan is valid until its scratch
// memory is released. Between the two calls neither the segments nor their slots' sampling may change.
ChoicePlan plan_choices(Stream& stream, const ChoiceTask& task, bool summarises, Arena& scratch);

// logits: [task.rows, vocab] as linear() left them with plan.summaries.
void choose(Stream& stream, const ChoicePlan& plan, TensorView logits, Arena& scratch);

}  // namespace volley::ops
