// The stages of an OutputParser that find tool calls, one for each format.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "serve/output_parser.h"
#include "serve/tool_call_scanner.h"

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

// Writes calls into deltas.
class CallWriter {
 public:
  // `short_ids`: as serve/call_ids.h has them, made of what they would be.
  explicit CallWriter(std::string id_prefix, bool short_ids = false)
      : id_prefix_(std::move(id_prefix)), short_ids_(short_ids) {}

  void announce(const std::string& name, OutputDelta& out);
  // Continues the call that was announced last.
  void add_arguments(std::string_view arguments, OutputDelta& out);

 private:
  const std::string id_prefix_;
  const bool short_ids_;
  int next_ = 0;  // index of the call after the current one
};

// Hands a byte to the scanner of the current call, and what it learns from it to the writer.
template <class Scanner>
ToolCallScanner::State scan_call(Scanner& scanner, char c, CallWriter& writer, OutputDelta& out) {
  const bool announced_before = scanner.announced();
  const ToolCallScanner::State state = scanner.push(c);
  if (!scanner.announced()) return state;
  if (!announced_before) writer.announce(scanner.name(), out);
  writer.add_arguments(scanner.take_arguments(), out);
  return state;
}

// All text is content.
std::unique_ptr<OutputStage> content_stage();

// REQUIRES: not kNone.
std::unique_ptr<OutputStage> tool_call_stage(const OutputParser::Options& options);

}  // namespace volley::serve
