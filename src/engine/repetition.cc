#include "engine/repetition.h"

namespace volley::engine {

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
