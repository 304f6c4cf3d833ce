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

namespace volley::ops {

// The largest vocabulary: sums of token weights are exact up to here.
inline constexpr int32_t kMaxVocab = 1 << 19;

// What the rule needs to know of the request in a slot. Validated by the engine.
struct SlotSampling {
  SamplingParams params;
  uint64_t seed = 0;             // params.seed, or what the engine drew
  int32_t prompt_length = 0;     // outputs start at this sequence index
  int32_t min_tokens = 0;        // while fewer outputs exist, end_ids are masked
  std::vector<TokenId> end_ids;  // end-of-sequence (unless ignored) and stop ids
};

// Token counts and parameters of every slot. Threads: one, the engine's. A slot that is cleared keeps nothing.
class SamplerState {
 public:
  SamplerState(int32_t slots, int32_t vocab);
  ~SamplerState();

  // Starts a slot. `prompt` matters to the repetition penalty, `output` (a resumed request's) to all penalties.
  void start(int32_t slot, SlotSampling sampling, std::span<const TokenId> prompt, std::span<const TokenId> output);
  // Committed output tokens.
  void append(int32_t slot, std::span<const TokenId> tokens);
  void clear(int32_t slot);

  struct Slot;
  const Slot& slot(int32_t slot) const;

 private:
  std::vector<std::unique_ptr<Slot>> slots_;
  int32_t vocab_;
};

// The choices of one block: rows [row_begin, row_begin + rows) of the logits choose the tokens at sequence indices
// first_index, first_index + 1, …
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

struct ChoiceOutput {
  TokenId* tokens = nullptr;     // [rows of logits]
  float* probability = nullptr;  // [rows of logits] or null: softmax probability of the choice after processing (the
                                 // drafter's confidence)
  PositionLogprobs* logprobs = nullptr;  // [rows of logits] or null; filled for slots that asked (params.logprobs >= 0)
  uint8_t* finite = nullptr;  // [rows of logits] or null: 0 where there is nothing to choose from: the logits hold NaN
                              // or +inf (before or after processing), or every token is masked. The choice and its
                              // probability are then 0, and logprobs.top is empty. -inf is a masked token.
};

// logits: [rows, vocab] fp32, read only. A row's choice depends on its logits, its slot's parameters and counts, its
// index and its prefix, and on nothing else.
void choose(Stream& stream, TensorView logits, std::span<const ChoiceSegment> segments, const SamplerState& state,
            const ChoiceOutput& out, Arena& scratch);

// Bound of what choose() takes from `scratch`, for the stream's number of threads.
int64_t choose_scratch_bytes(int64_t max_rows, int64_t vocab, int threads);

}  // namespace volley::ops
