// Shows on a terminal which part of a text was drafted and accepted, and which the target chose itself. Threads: one.
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
  // The event's text in spans, neighbours of unlike origin; its bytes are kept as they are.
  std::vector<Span> spans(const Event& event);
  // The same with colour codes; each event begins and ends uncoloured.
  std::string paint(const Event& event);

  static std::string coloured(std::string_view text, Origin origin);
  static std::string legend();  // one line that says what the colours mean

 private:
  struct Segment {
    size_t bytes;
    bool drafted;
  };
  void push(TokenId token, bool drafted);

  Decode decode_;
  std::vector<TokenId> window_;   // the last tokens: enough for the decoder to know where each one's text begins
  size_t window_bytes_ = 0;       // of their text
  std::deque<Segment> segments_;  // of text that events have not shown yet
};

}  // namespace volley::apps
