// Finds out, token by token, that an output has come to repeat itself.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <vector>

namespace volley::engine {

// A pattern of p tokens stands c times in a row exactly where the last p * (c - 1) tokens equal those p before them, so
// a counter for each size is all that a token costs. One thread.
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
