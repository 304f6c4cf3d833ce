// Drafts from recorded answers: right tokens, wrong at chosen places. They simulate a drafter of a given quality, to
// test any target's verification with partial acceptance, and to measure it.
#pragma once

#include "ops/step/step.h"

namespace volley::ops {

// Answers by their requests' seeds; each seed identifies one request. Arrays are device memory.
struct ReplayTable {
  const uint64_t* seeds = nullptr;  // [answers], ascending
  const int32_t* begins = nullptr;  // [answers + 1]: tokens of answer i are tokens[begins[i] .. begins[i + 1])
  const TokenId* tokens = nullptr;
  int32_t answers = 0;
  int32_t vocab = 0;
  float accuracy = 1;  // how many of the proposals are right, on average
  uint32_t salt = 0;   // selects the places that are wrong
};

// For every block of the step its wanted drafts: tokens[draft_begin + i] is the answer's token at the place of draft i,
// or another one, and confidence a number that is higher, by and large, where the proposal is right. Which places are
// wrong depends on salt, seed and place alone. Past an answer's end, or without an answer, proposals are arbitrary.
// confidence may be null.
void replay_drafts(Stream& stream, const Step& step, const ReplayTable& table, TokenId* tokens, float* confidence);

}  // namespace volley::ops
