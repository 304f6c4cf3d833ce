// Shows on a terminal which parts of a text were drafted and accepted, and which the target chose itself. Threads: one.
#pragma once

#include <volley/engine.h>

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace volley::apps {

class TokenColours {
 public:
  using Decode = std::function<std::string(std::span<const TokenId>)>;
  // `decode` must leave out special tokens, as the events' texts do.
  explicit TokenColours(Decode decode) : decode_(std::move(decode)) {}

  enum class Origin { kUnknown, kDrafted, kChosen };
  struct Span {
    std::string text;
    Origin origin = Origin::kUnknown;
  };
  // Splits the event's text into spans of one origin; its bytes stay unchanged.
  std::vector<Span> spans(const Event& event);
  // The same with colour codes; each event begins and ends uncoloured.
  std::string paint(const Event& event);

  static std::string coloured(std::string_view text, Origin origin);
  static std::string legend();  // one line that explains the colours

 private:
  struct Segment {
    size_t bytes;
    bool drafted;
  };
  void push(TokenId token, bool drafted);

  Decode decode_;
  std::vector<TokenId> window_;   // the last tokens: enough for the decoder to find where each one's text begins
  size_t window_bytes_ = 0;       // bytes of their text
  std::deque<Segment> segments_;  // text that no event has shown yet
};

}  // namespace volley::apps
