// What a request says of the tokens of its output. Grammars are elsewhere.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <vector>

namespace volley::engine {

// Which tokens a request's own lists leave at a position of its output: allowed tokens, bad words, a bounded time to
// think. Constant once made; any thread.
class TokenRules {
 public:
  // Where an output stands, as far as the rules look back.
  struct Place {
    std::vector<TokenId> last;  // the last tokens, at most one less than the longest bad word has
    int32_t thoughts = 0;       // tokens thought so far
    bool thinking = false;
  };

  // REQUIRES: the request passed check_request().
  TokenRules(const GenerateRequest& request, int32_t vocab);
  static bool has_any(const GenerateRequest& request);

  Place start() const;
  void advance(Place& place, TokenId token) const;
  // Clears the bits of tokens that must not be chosen at `place`; token v is bit v % 32 of word v / 32.
  void restrict(const Place& place, uint32_t* words, int32_t mask_words) const;

 private:
  std::vector<uint32_t> allowed_;  // as words; empty: all
  std::vector<std::vector<TokenId>> bad_words_;
  size_t longest_ = 0;
  std::optional<ThinkingBudget> thinking_;
};

// Finds out, token by token, that an output has come to repeat itself. A pattern of p tokens stands c times in a row
// exactly where the last p * (c - 1) tokens equal those p before them, so a counter for each size is all that a token
// costs. One thread.
class RepetitionDetector {
 public:
  // REQUIRES: 1 <= min_size <= max_size, min_count >= 2.
  explicit RepetitionDetector(const RepetitionDetection& rule);

  // Takes the next token of the output. True: the output now ends in repetitions.
  bool push(TokenId token);

 private:
  const RepetitionDetection rule_;
  std::vector<TokenId> recent_;  // ring of the last max_size tokens
  int64_t tokens_ = 0;
  std::vector<int64_t> equal_;  // [size - min_size]: how many tokens up to now equal the one `size` before them
};

}  // namespace volley::engine
