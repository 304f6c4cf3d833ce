// A request's own rules on its output tokens, without grammars.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <vector>

namespace volley::engine {

// Says which tokens a request allows at a position of its output, from allowed tokens, bad words and a thinking budget.
// Constant once made; any thread.
class TokenRules {
 public:
  // The part of an output's state that the rules need.
  struct Place {
    std::vector<TokenId> last;  // the last tokens, one less than the longest bad word
    int32_t thoughts = 0;       // thinking tokens so far
    bool thinking = false;
  };

  // REQUIRES: the request passed check_request().
  TokenRules(const GenerateRequest& request, int32_t vocab);
  static bool has_any(const GenerateRequest& request);

  Place start() const;
  void advance(Place& place, TokenId token) const;
  // Clears the bits of forbidden tokens at `place`; token v is bit v % 32 of word v / 32.
  void restrict(const Place& place, uint32_t* words, int32_t mask_words) const;

 private:
  std::vector<uint32_t> allowed_;  // as a mask; empty: all
  std::vector<std::vector<TokenId>> bad_words_;
  size_t longest_ = 0;
  std::optional<ThinkingBudget> thinking_;
};

// Detects token by token that an output repeats itself. A pattern of p tokens stands c times in a row exactly where the
// last p * (c - 1) tokens equal those p before them, so each token only updates a counter for each size. One thread.
class RepetitionDetector {
 public:
  // REQUIRES: 1 <= min_size <= max_size, min_count >= 2.
  explicit RepetitionDetector(const RepetitionDetection& rule);

  // Takes the next output token. True: the output now ends in repetitions.
  bool push(TokenId token);

 private:
  const RepetitionDetection rule_;
  std::vector<TokenId> recent_;  // ring of the last max_size tokens
  int64_t tokens_ = 0;
  std::vector<int64_t> equal_;  // [size - min_size]: latest tokens in a row that equal the one `size` before them
};

}  // namespace volley::engine
