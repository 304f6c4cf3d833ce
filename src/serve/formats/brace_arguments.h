// Turns Gemma 4's arguments of a call, {key:<|"|>text<|"|>,n:1,list:[true]}, into JSON text while they grow. Keys have
// no quotes, and texts no escapes. JSON's own quotes are understood, too.
#pragma once

#include <string>
#include <string_view>

#include "serve/formats/tool_call_scanner.h"

namespace volley::serve {

inline constexpr std::string_view kBraceQuote = "<|\"|>";

class BraceArguments {
 public:
  // Takes the next byte, the first of which is '{', and appends to `json`. With kBroken the byte is not taken.
  ToolCallScanner::State push(char c, std::string& json);
  // Ends the text: appends what was held.
  void end(std::string& json);

 private:
  using State = ToolCallScanner::State;
  enum class Place { kKey, kValue, kText, kQuoted, kWord, kAfter };

  State value(char c, std::string& json);
  State close(char c, std::string& json);
  void text(char c, std::string& json);
  void end_word(std::string& json);

  Place place_ = Place::kValue;
  std::string open_;  // closing brackets of what is open, innermost last
  std::string held_;  // a key, a word, or the beginning of a quote
  bool escaped_ = false;
};

}  // namespace volley::serve
