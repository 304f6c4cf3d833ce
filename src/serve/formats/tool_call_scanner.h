// Reads the JSON object of one tool call while it grows: {"name": "f", "arguments": {…}}. The arguments are handed on
// as they come, before the object is complete. Its members may come in any order. Bytes in, one at a time; one thread.
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

// Finds where a JSON value ends. It checks quotes and brackets, and that nothing stands outside of strings that JSON
// does not have there; numbers and words it takes as they are.
class JsonValueScanner {
 public:
  enum class Step {
    kMore,       // the byte belongs to the value, which goes on
    kLast,       // the byte ends the value
    kEndBefore,  // the value ended before this byte (numbers and words)
    kBroken,     // no JSON value goes on like this
  };

  // Called for the value's first byte and on; white space before it is the caller's.
  Step push(char c);

 private:
  bool begun_ = false, in_string_ = false, escaped_ = false;
  std::string closers_;  // of the open brackets, innermost last
};

class ToolCallScanner {
 public:
  struct Rules {
    bool other_members = false;       // may the object have members that no call has?
    bool arguments_may_miss = false;  // then they are {}
  };
  enum class State { kReading, kDone, kBroken };

  explicit ToolCallScanner(Rules rules) : rules_(rules) {}

  // REQUIRES: kReading. Afterwards, with kBroken the byte is not part of the object; in all other cases it is.
  State push(char c);

  // True from the byte on that makes it certain that this is a call: its name is known and its arguments have begun.
  // It stays true if the object breaks later.
  bool announced() const { return !name_.empty() && arguments_begun_; }
  const std::string& name() const { return name_; }
  // The arguments' text that came since the last time. REQUIRES: announced().
  std::string take_arguments();
  // After kBroken: bytes before that one that are not part of the object either.
  std::string take_rest() { return {}; }
  // The text is over. Returns whether the call is whole.
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
  std::string value_text_;  // of a name, or of what stands for no arguments, as written
  std::string name_;
  std::string arguments_;
  bool arguments_begun_ = false;
};

}  // namespace volley::serve
