// Reads one tool call in Qwen3-Coder's form while it grows:
//   <function=f>\n<parameter=key>\nvalue\n</parameter>\n…</function>
// and hands its arguments on as JSON text. Text values go out as they come, others once they are complete. Bytes in,
// one at a time; one thread. The same calls as ToolCallScanner.
#pragma once

#include <memory>
#include <string>

#include "serve/tool_call_scanner.h"
#include "serve/tool_call_stages.h"
#include "serve/tool_parameters.h"

namespace volley::serve {

class XmlCallScanner {
 public:
  using State = ToolCallScanner::State;

  // `types` may be null and need not know the tool: then all values are text.
  explicit XmlCallScanner(std::shared_ptr<const ToolTypes> types) : types_(std::move(types)) {}

  State push(char c);
  // In place of the first two bytes, "<f": the call has no marker before it, so it must be of a tool that `types`
  // knows.
  void begin_bare();
  // True from the end of <function=f> on.
  bool announced() const { return announced_; }
  const std::string& name() const { return name_; }
  std::string take_arguments();
  // After kBroken: bytes before that one that are not part of the call either. A call that breaks between parameters
  // has all of its arguments.
  std::string take_rest();
  // The text is over: the value that is not complete becomes arguments as it is, unless </function> ended it. Behind a
  // whole value the call is whole.
  void finish();

 private:
  // kAfter, kKey, kLineBreak, kValue, kOtherEnd: of a parameter.
  enum class Place { kHead, kName, kAfter, kKey, kLineBreak, kValue, kOtherEnd };

  State head(char c);
  State name(char c);
  State after_parameter(char c);
  State key(char c);
  State value(char c);
  State other_end(char c);
  bool may_end_value() const;
  bool is_parameter(const std::string& key) const;
  bool begins_line(std::string_view tag) const;  // what value_end_ holds ends with it
  void add_value(std::string_view text);
  void end_value(std::string space);
  State end_call(State state);

  const std::shared_ptr<const ToolTypes> types_;
  Place place_ = Place::kHead;
  bool announced_ = false;
  std::string held_;  // white space and what may become a tag
  std::string name_, key_;
  std::string value_;  // one that is not text, so far
  unsigned value_types_ = kNoJsonType;
  bool value_is_text_ = false;
  bool at_first_line_ = false;  // of the value, behind the line break that belongs to the form
  MarkerHold value_end_{"</parameter>"};
  // Models are seen to leave that out. Then a value ends before "\n<parameter=key>" with a key of the tool, and before
  // "\n</function>" with "</tool_call>" or the end of the text behind it.
  std::string other_end_, before_other_end_;  // what may become one, and the white space before it
  bool only_known_ = false;
  bool first_ = true;
  std::string arguments_;
};

}  // namespace volley::serve
