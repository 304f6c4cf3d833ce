// The stages of an OutputParser that find tool calls, one for each format.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serve/output_parser.h"

namespace volley::serve {

// Text that may turn out to be white space and then a marker: keeps it until that is decided.
class MarkerHold {
 public:
  enum class Step {
    kHeld,   // the byte is kept
    kFound,  // the byte completes the marker; text() is white space and marker
    kOther,  // the byte does not fit and is not kept; take() what is held before the next push
  };

  explicit MarkerHold(std::string_view marker) : marker_(marker) {}

  Step push(char c);
  const std::string& text() const { return held_; }
  bool in_marker() const { return matched_ > 0; }
  std::string take();

 private:
  std::string_view marker_;  // a literal
  std::string held_;
  size_t matched_ = 0;
};

// All text is content.
std::unique_ptr<OutputStage> content_stage();

// REQUIRES: not kNone.
std::unique_ptr<OutputStage> tool_call_stage(ToolFormat format, std::string call_id_prefix);

}  // namespace volley::serve
