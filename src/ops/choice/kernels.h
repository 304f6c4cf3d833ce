// The vector kernels of the sampling rule: Highway code, compiled for several instruction sets, the best one chosen at
// run time. Each works on the tokens [begin, end) of one row, so that a row can be cut into slices.
//
// Every result has the same bits on every instruction set, and however a row is cut: maxima and argmaxima are exact;
// exponentials and logarithms use only operations that IEEE 754 rounds in one way (no fused multiply-add, which some
// sets lack); and weights are whole numbers, so that their sums are exact in any order.
#pragma once

#include <cstdint>
#include <limits>

#include "ops/choice/choice.h"

namespace volley::ops::choice {

// Bounds of the Gumbel noise, over all 2^32 random words (see gumbel()). They are rounded outwards.
inline constexpr float kGumbelMin = -3.131f;
inline constexpr float kGumbelMax = 22.875f;

// A token this far below the highest cannot win: at best it gets kGumbelMax, and the highest at least kGumbelMin. Its
// weight is 0 as well. The filters therefore never look further down. (Processed logits beyond 2^26 are so coarse that
// rounding could still make such a token tie; it then counts as lost.)
inline constexpr float kWindow = 26.5f;
static_assert(kWindow > kGumbelMax - kGumbelMin);

// The weight of a token is round(2^34 * exp(z - peak)), a whole number. A sum over 2^19 tokens stays below 2^53, where
// double arithmetic on whole numbers is exact.
inline constexpr float kWeightOne = 17179869184.0f;
static_assert(kMaxVocab <= 1 << 19);

// The tokens that filters keep. Each filter keeps a beginning of the order (value descending, id ascending), so the
// last kept element describes it: values above `value`, and those equal to it up to `last_id`.
struct Cut {
  float value = -std::numeric_limits<float>::infinity();
  int32_t last_id = std::numeric_limits<int32_t>::max();
};

// A row after penalties, bias and masks. The processed logit is z[v] = values[v] / divisor.
struct Row {
  const float* values = nullptr;  // [vocab]
  float divisor = 1.0f;           // the temperature; 1 at temperature 0
  float peak = 0.0f;              // max z, finite
  Cut cut;
};

struct Scan {
  float max = -std::numeric_limits<float>::infinity();
  bool usable = true;  // no NaN and no +inf; otherwise max means nothing
};
Scan scan(const float* values, int32_t begin, int32_t end);

// The first token with values[v] >= threshold, or `end`.
int32_t find_at_least(const float* values, int32_t begin, int32_t end, float threshold);

// The sum of the weights of the kept tokens.
double kept_weight(const Row& row, int32_t begin, int32_t end);

struct Candidate {
  float value;
  int32_t id;
  float weight;
};

// Writes the kept tokens at most `window` below the peak to out[0 ..], ids ascending. Returns how many.
int32_t gather(const Row& row, int32_t begin, int32_t end, float window, Candidate* out);

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).
struct PhiloxKey {
  uint32_t key[2] = {};
  uint32_t counter[3] = {};  // words 1 to 3; word 0 counts blocks
};

struct Scored {
  float score = -std::numeric_limits<float>::infinity();
  int32_t id = std::numeric_limits<int32_t>::max();
};

// The highest z[v] + g(v) over the kept tokens, ties to the lowest id. begin % 4 == 0. `floor`: a score known to be
// reached somewhere in the row. Tokens that cannot reach it may be skipped: rounding is monotone, so z + g as computed
// is never above z + kGumbelMax as computed, and a skipped token would have lost.
Scored best_noisy(const Row& row, int32_t begin, int32_t end, const PhiloxKey& noise, float floor);

// Blocks first, first + 1, … of four words each: words[4 * blocks].
void philox(const PhiloxKey& key, uint32_t first, int32_t blocks, uint32_t* words);

// noise[i] = -log(-log u), u = (words[i] + 0.5) / 2^32. Near 1, where large noise comes from, u is not rounded to
// float: the logarithm is taken of 1 - (1 - u), and 1 - u = (~word + 0.5) / 2^32 is small and precise there.
void gumbel(const uint32_t* words, int32_t n, float* noise);

}  // namespace volley::ops::choice
