#include "serve/formats/reasoning_counter.h"

#include <algorithm>

#include "serve/formats/tool_call_scanner.h"

namespace volley::serve {
ReasoningCounter::ReasoningCounter(ReasoningStart start, ThinkTags tags)
    : tags_(tags),
      place_(start == ReasoningStart::kOff      ? Place::kDone
             : start == ReasoningStart::kClosed ? Place::kHead
                                                : Place::kThinking) {}

void ReasoningCounter::push(std::string_view token) {
  if (place_ == Place::kHead) {
    begin(token);
  } else if (place_ == Place::kThinking) {
    think(token);
  }
}

void ReasoningCounter::begin(std::string_view token) {
  text_ += token;
  text_.erase(0, static_cast<size_t>(std::ranges::find_if_not(text_, is_json_space) - text_.begin()));
  if (tags_.begin.starts_with(text_) && text_.size() < tags_.begin.size()) return;
  place_ = text_.starts_with(tags_.begin) ? Place::kThinking : Place::kDone;
  const std::string rest = done() ? "" : text_.substr(tags_.begin.size());
  text_.clear();
  if (!rest.empty()) think(rest);
}

// A token counts if it begins before the marker that ends the thoughts.
void ReasoningCounter::think(std::string_view token) {
  if (tokens_ == 0 && token == tags_.begin) return;  // some models write it although the prompt ends with it
  ++tokens_;
  starts_.push_back(text_.size());
  text_ += token;
  if (const size_t end = text_.find(tags_.end); end != std::string::npos) {
    tokens_ -= std::ranges::count_if(starts_, [end](size_t start) { return start >= end; });
    place_ = Place::kDone;
    return;
  }
  if (text_.size() < tags_.end.size()) return;
  const size_t past = text_.size() - (tags_.end.size() - 1);
  text_.erase(0, past);
  std::erase_if(starts_, [past](size_t start) { return start < past; });
  for (size_t& start : starts_) start -= past;
}

}  // namespace volley::serve
