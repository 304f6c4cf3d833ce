#include "engine/run/token_rules.h"

#include <algorithm>

namespace volley::engine {
namespace {

void clear(TokenId token, uint32_t* words, int32_t mask_words) {
  if (token / 32 < mask_words) words[token / 32] &= ~(1u << (token % 32));
}

// Whether `text` ends with all of `word` but its last token.
bool begins_at_end(const std::vector<TokenId>& word, const std::vector<TokenId>& text) {
  const size_t head = word.size() - 1;
  return head <= text.size() &&
         std::equal(word.begin(), word.end() - 1, text.end() - static_cast<std::ptrdiff_t>(head));
}

}  // namespace

TokenRules::TokenRules(const GenerateRequest& request, int32_t vocab)
    : bad_words_(request.bad_words), thinking_(request.thinking) {
  for (const auto& word : bad_words_) longest_ = std::max(longest_, word.size());
  if (request.allowed_tokens.empty()) return;
  allowed_.resize((static_cast<size_t>(vocab) + 31) / 32);
  for (const TokenId token : request.allowed_tokens) allowed_[token / 32] |= 1u << (token % 32);
}

bool TokenRules::has_any(const GenerateRequest& request) {
  return !request.allowed_tokens.empty() || !request.bad_words.empty() || request.thinking;
}

TokenRules::Place TokenRules::start() const {
  Place place;
  place.thinking = thinking_ && thinking_->begun;
  return place;
}

void TokenRules::advance(Place& place, TokenId token) const {
  if (longest_ > 1) {
    if (place.last.size() + 1 == longest_) place.last.erase(place.last.begin());
    place.last.push_back(token);
  }
  if (!thinking_) return;
  if (token == thinking_->begin) {
    place.thinking = true;
  } else if (token == thinking_->end) {
    place.thinking = false;
  } else if (place.thinking) {
    ++place.thoughts;
  }
}

void TokenRules::restrict(const Place& place, uint32_t* words, int32_t mask_words) const {
  if (!allowed_.empty()) {
    for (int32_t i = 0; i < mask_words; ++i) words[i] &= i < std::ssize(allowed_) ? allowed_[i] : 0;
  }
  for (const auto& word : bad_words_) {
    if (begins_at_end(word, place.last)) clear(word.back(), words, mask_words);
  }
  if (!thinking_ || !place.thinking || place.thoughts < thinking_->tokens) return;
  const TokenId end = thinking_->end;
  const uint32_t bit = end / 32 < mask_words ? words[end / 32] & (1u << (end % 32)) : 0;
  std::fill(words, words + mask_words, 0);
  if (bit != 0) words[end / 32] = bit;
}

RepetitionDetector::RepetitionDetector(const RepetitionDetection& rule)
    : rule_(rule), recent_(rule.max_size), equal_(rule.max_size - rule.min_size + 1) {}

bool RepetitionDetector::push(TokenId token) {
  bool repeats = false;
  for (int32_t size = rule_.min_size; size <= rule_.max_size && size <= tokens_; ++size) {
    int64_t& equal = equal_[size - rule_.min_size];
    equal = recent_[(tokens_ - size) % rule_.max_size] == token ? equal + 1 : 0;
    repeats = repeats || equal >= int64_t{size} * (rule_.min_count - 1);
  }
  recent_[tokens_++ % rule_.max_size] = token;
  return repeats;
}

}  // namespace volley::engine
