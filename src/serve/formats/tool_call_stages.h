// Stages of an OutputParser, and what stages with tool calls share.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serve/formats/output_parser.h"
#include "serve/formats/tool_call_scanner.h"

namespace volley::serve {

// Holds text that may be white space and a marker, until that is decided.
class MarkerHold {
 public:
  enum class Step {
    kHeld,   // the byte is held
    kFound,  // the byte completes the marker; text() is white space and marker
    kOther,  // the byte does not fit and is not held; take() the held text before the next push
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

// Takes its text byte by byte.
class ByteStage : public OutputStage {
 public:
  void push(std::string_view text, OutputWriter& out) final;

 private:
  // Returns text to read again: a false call behind its beginning, where another call may begin.
  virtual std::string step(char c, OutputWriter& out) = 0;
};

// Passes a byte to the current call's scanner, and the scanner's news to the answer.
template <class Scanner>
ToolCallScanner::State scan_call(Scanner& scanner, char c, OutputWriter& out) {
  const bool announced_before = scanner.announced();
  const ToolCallScanner::State state = scanner.push(c);
  if (!scanner.announced()) return state;
  if (!announced_before) out.begin_call(scanner.name());
  out.arguments(scanner.take_arguments());
  if (state != ToolCallScanner::State::kReading) out.end_call();
  return state;
}

// All text is content.
std::unique_ptr<OutputStage> content_stage();
// Thoughts between <think> and </think>, then `next`'s text.
std::unique_ptr<OutputStage> reasoning_stage(const OutputParser::Options& options, std::unique_ptr<OutputStage> next);
// `calls`, which except for Mistral's and Python's lists do not begin like JSON; or JSON, if options.calls_or_json.
std::unique_ptr<OutputStage> marked_stage(const OutputParser::Options& options, std::unique_ptr<OutputStage> calls);

}  // namespace volley::serve
