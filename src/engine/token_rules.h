// Which tokens a request's own lists leave at a position of its output: allowed tokens, bad words, a bounded time to
// think. Grammars are elsewhere. Constant once made; any thread.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <vector>

namespace volley::engine {

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

}  // namespace volley::engine
