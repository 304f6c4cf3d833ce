// What the answers of one measurement amount to. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/serving/dataset.h"
#include "apps/bench/serving/load.h"

namespace volley::apps {

struct Distribution {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0;  // percentiles are linear between the two nearest ranks
};
Distribution distribution(std::vector<double> values);  // zeros for no values

struct ServingSummary {
  int64_t requests = 0, errors = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // of answers without an error
  double wall_s = 0;
  double output_tok_s = 0, requests_s = 0;  // of answers without an error, over wall_s
  Distribution ttft_ms;                     // to the first text
  Distribution tpot_ms;                     // from the first text to the last, by the tokens after the first
  Distribution itl_ms;                      // between pieces of text: with speculation a piece holds several tokens
  Distribution e2e_ms;                      // to the end of the response
  // Tokens a verify step, the bonus token included; empty: the endpoint tells nothing about drafts. `exact`: from its
  // count of steps; else from accepted tokens, assuming that each step ended with a bonus token. The last one of an
  // answer may not, so this counts at most one step an answer too few.
  std::optional<double> acceptance_length;
  bool acceptance_exact = false;
  std::optional<int64_t> drafted_tokens;  // accepted or not; empty: the endpoint tells nothing
  int64_t judged = 0, right = 0;          // answers with an expected result, and those that gave it
  std::vector<std::string> error_texts;   // the first few different ones
};

ServingSummary summarize(const LoadResult& result, const Dataset& dataset);

// How many requests both measurements answered, and how many of these have the same text.
struct SameText {
  int64_t same = 0, compared = 0;
};
SameText compare_texts(const LoadResult& a, const LoadResult& b);

}  // namespace volley::apps
