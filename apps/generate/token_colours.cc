#include "apps/generate/token_colours.h"

#include <algorithm>
#include <string_view>

namespace volley::apps {
namespace {

constexpr std::string_view kDrafted = "\x1b[32m", kChosen = "\x1b[1m", kReset = "\x1b[0m";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // the decoder's sign for half a character
constexpr size_t kWindow = 48, kKeep = 16;

size_t whole_bytes(std::string_view text) {
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text.size();
}

}  // namespace

std::string TokenColours::coloured(std::string_view text, Origin origin) {
  if (origin == Origin::kUnknown) return std::string(text);
  return std::string(origin == Origin::kDrafted ? kDrafted : kChosen).append(text).append(kReset);
}

std::string TokenColours::legend() {
  return coloured("drafted and accepted", Origin::kDrafted) + "  " + coloured("chosen by the target", Origin::kChosen);
}

void TokenColours::push(TokenId token, bool drafted) {
  window_.push_back(token);
  const size_t bytes = std::max(window_bytes_, whole_bytes(decode_(window_)));
  segments_.push_back({bytes - window_bytes_, drafted});
  window_bytes_ = bytes;
  if (window_.size() >= kWindow) {
    window_.erase(window_.begin(), window_.end() - kKeep);
    window_bytes_ = whole_bytes(decode_(window_));
  }
}

std::vector<TokenColours::Span> TokenColours::spans(const Event& event) {
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    push(event.tokens[i], static_cast<int32_t>(i) < event.accepted);
  }
  std::vector<Span> spans;
  std::string_view text = event.text;
  while (!text.empty() && !segments_.empty()) {
    const bool drafted = segments_.front().drafted;
    size_t bytes = 0;  // over neighbours of one look
    while (!segments_.empty() && segments_.front().drafted == drafted && bytes < text.size()) {
      Segment& segment = segments_.front();
      const size_t taken = std::min(segment.bytes, text.size() - bytes);
      bytes += taken;
      segment.bytes -= taken;
      if (segment.bytes == 0) segments_.pop_front();
    }
    if (bytes > 0) {
      spans.push_back({std::string(text.substr(0, bytes)), drafted ? Origin::kDrafted : Origin::kChosen});
    }
    text.remove_prefix(bytes);
  }
  if (!text.empty()) spans.push_back({std::string(text), Origin::kUnknown});
  return spans;
}

std::string TokenColours::paint(const Event& event) {
  std::string painted;
  for (const Span& span : spans(event)) painted += coloured(span.text, span.origin);
  return painted;
}

}  // namespace volley::apps
