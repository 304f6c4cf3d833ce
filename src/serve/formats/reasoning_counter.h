// Counts the thinking tokens of an output, a usage's "reasoning_tokens". Token by token, so steps do not matter.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/formats/output_parser.h"

namespace volley::serve {

class ThoughtCounter {
 public:
  using TokenText = std::function<std::string(TokenId)>;  // text of one token, special tokens spelled out

  virtual ~ThoughtCounter() = default;
  virtual void push(TokenId token, const TokenText& text) = 0;
  int64_t tokens() const { return tokens_; }

 protected:
  int64_t tokens_ = 0;
};

// Thoughts between marks.
class ReasoningCounter final : public ThoughtCounter {
 public:
  explicit ReasoningCounter(ReasoningStart start, ThinkTags tags = {});

  void push(TokenId token, const TokenText& text) override {
    if (!done()) push(text(token));
  }
  // The next token's own text, special tokens spelled out.
  void push(std::string_view token);
  bool done() const { return place_ == Place::kDone; }  // counting is over

 private:
  enum class Place { kHead, kThinking, kDone };

  void begin(std::string_view token);
  void think(std::string_view token);

  const ThinkTags tags_;
  Place place_;
  std::string text_;            // the head; later the end of the thoughts, which may begin the marker
  std::vector<size_t> starts_;  // starts of its tokens in text_
};

}  // namespace volley::serve
