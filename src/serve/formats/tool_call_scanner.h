// Reads a tool call's growing JSON object byte by byte: {"name": "f", "arguments": {…}}, members in any order.
// Arguments go out before the object is complete. One thread.
#pragma once

#include <string>
#include <string_view>

#include "serve/formats/output_writer.h"

namespace volley::serve {

inline bool is_json_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

inline std::string_view skip_space(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  return text;
}

inline std::string_view trim_end(std::string_view text) {
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

// Finds a JSON value's end. It checks quotes, brackets and characters outside of strings, but not the spelling of
// numbers and words.
class JsonValueScanner {
 public:
  enum class Step {
    kMore,       // the byte belongs to the value, which goes on
    kLast,       // the byte ends the value
    kEndBefore,  // the value (a number or word) ended before this byte
    kBroken,     // not a JSON value
  };

  // Takes the value's bytes from the first on; the caller skips white space before it.
  Step push(char c);

 private:
  bool begun_ = false, in_string_ = false, escaped_ = false;
  std::string closers_;  // closing brackets of open ones, innermost last
};

class ToolCallScanner {
 public:
  struct Rules {
    bool other_members = false;       // the object may have members that no call has
    bool arguments_may_miss = false;  // then they are {}
  };
  enum class State { kReading, kDone, kBroken };

  explicit ToolCallScanner(Rules rules) : rules_(rules) {}

  // REQUIRES: kReading. With kBroken the byte is not part of the object, otherwise it is.
  State push(char c);

  // True from the byte that makes it certain that this is a call, with a name and begun arguments. It stays true if the
  // object breaks later.
  bool announced() const { return !name_.empty() && arguments_begun_; }
  const std::string& name() const { return name_; }
  // The arguments' text since the last time. REQUIRES: announced().
  std::string take_arguments();
  // After kBroken: earlier bytes that are not part of the object either.
  std::string take_rest() { return {}; }
  // Ends the text. Returns whether the call is whole.
  bool finish(TextEnd) { return false; }

 private:
  enum class Place { kBefore, kFirstKey, kKey, kColon, kValueStart, kValue, kAfterValue, kNextKey };
  enum class Member { kName, kArguments, kNoArguments, kOther };

  bool step(char c);  // false: broken
  bool begin_member();
  bool value(char c);
  bool end_value();
  bool after_value(char c);

  const Rules rules_;
  Place place_ = Place::kBefore;
  bool done_ = false;
  Member member_ = Member::kOther;
  std::string key_;  // as written, with its quotes
  JsonValueScanner scanner_;
  std::string value_text_;  // a name, or a value for no arguments, as written
  std::string name_;
  std::string arguments_;
  bool arguments_begun_ = false;
};

}  // namespace volley::serve
