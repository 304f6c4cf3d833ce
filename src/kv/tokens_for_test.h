// Prompts of tests of the cache.
#pragma once

#include <volley/sampling.h>

#include <vector>

namespace volley::kv {

using Tokens = std::vector<TokenId>;

inline Tokens counting(TokenId first, int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

}  // namespace volley::kv
