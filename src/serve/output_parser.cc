#include "serve/output_parser.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "serve/harmony.h"
#include "serve/tool_call_scanner.h"
#include "serve/tool_call_stages.h"

namespace volley::serve {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

std::string_view trim_end(std::string_view text) {
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view trim_start(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  return text;
}

// Reasoning comes first and once; everything behind it goes to the next stage.
class ReasoningStage final : public OutputStage {
 public:
  ReasoningStage(bool open, std::unique_ptr<OutputStage> next) : open_(open), next_(std::move(next)) {}

  void push(std::string_view text, OutputDelta& out) override {
    for (size_t i = 0; i < text.size(); ++i) {
      if (place_ == Place::kAnswer) {
        next_->push(text.substr(i), out);
        return;
      }
      step(text[i], out);
    }
  }

  void finish(OutputDelta& out) override {
    if (place_ == Place::kHead && !open_) next_->push(begin_.text(), out);
    if (place_ == Place::kHead && open_ && begin_.in_marker()) out.reasoning += trim_start(begin_.text());
    if (place_ == Place::kReasoning && end_.in_marker()) out.reasoning += end_.text();
    next_->finish(out);
  }

 private:
  enum class Place { kHead, kReasoning, kGap, kAnswer };

  void step(char c, OutputDelta& out) {
    switch (place_) {
      case Place::kHead:
        head(c, out);
        return;
      case Place::kReasoning:
        reasoning(c, out);
        return;
      case Place::kGap:
        if (is_json_space(c)) return;
        place_ = Place::kAnswer;
        [[fallthrough]];
      case Place::kAnswer:
        next_->push({&c, 1}, out);
        return;
    }
  }

  // Some models write <think> although the prompt ends with it.
  void head(char c, OutputDelta& out) {
    const MarkerHold::Step step = begin_.push(c);
    if (step == MarkerHold::Step::kHeld) return;
    const std::string held = begin_.take();
    if (step == MarkerHold::Step::kFound || open_) {
      place_ = Place::kReasoning;
      if (step == MarkerHold::Step::kFound) return;
      for (const char h : trim_start(held)) reasoning(h, out);
      reasoning(c, out);
    } else {
      place_ = Place::kAnswer;
      next_->push(held, out);
      next_->push({&c, 1}, out);
    }
  }

  void reasoning(char c, OutputDelta& out) {
    if (!begun_ && is_json_space(c)) return;
    begun_ = true;
    MarkerHold::Step step = end_.push(c);
    if (step == MarkerHold::Step::kOther) {
      out.reasoning += end_.take();
      step = end_.push(c);
      if (step == MarkerHold::Step::kOther) out.reasoning += c;
    }
    if (step == MarkerHold::Step::kFound) place_ = Place::kGap;
  }

  const bool open_;
  std::unique_ptr<OutputStage> next_;
  Place place_ = Place::kHead;
  MarkerHold begin_{kThink};
  MarkerHold end_{kThinkEnd};
  bool begun_ = false;  // something of the reasoning but white space was seen
};

}  // namespace

ReasoningStart reasoning_start(const OutputFormat& format, std::string_view prompt, std::string_view continued) {
  if (!format.reasoning) return ReasoningStart::kOff;
  // Only where the model itself is to speak: users may write <think> too.
  if (trim_end(prompt).ends_with(kThink)) return ReasoningStart::kOpen;
  if (continued.empty()) return ReasoningStart::kClosed;
  const bool thinks = trim_start(continued).starts_with(kThink);
  if (thinks && continued.find(kThinkEnd) == std::string_view::npos) return ReasoningStart::kOpen;
  return ReasoningStart::kOff;
}

OutputParser::OutputParser(const Options& options) {
  if (options.harmony) {
    stage_ = harmony_stage(options);
    return;
  }
  stage_ = options.tools == ToolFormat::kNone ? content_stage() : tool_call_stage(options);
  if (options.reasoning == ReasoningStart::kOff) return;
  stage_ = std::make_unique<ReasoningStage>(options.reasoning == ReasoningStart::kOpen, std::move(stage_));
}

OutputDelta OutputParser::push(std::string_view text) {
  OutputDelta delta;
  stage_->push(text, delta);
  return count(std::move(delta));
}

OutputDelta OutputParser::mark(HarmonyMark mark) {
  OutputDelta delta;
  stage_->mark(mark, delta);
  return count(std::move(delta));
}

OutputDelta OutputParser::finish() {
  OutputDelta delta;
  stage_->finish(delta);
  return count(std::move(delta));
}

OutputDelta OutputParser::count(OutputDelta delta) {
  for (const OutputDelta::ToolCall& call : delta.tool_calls) {
    if (!call.id.empty()) {
      ++calls_;
      last_arguments_.clear();
    }
    last_arguments_ += call.arguments;
  }
  return delta;
}

bool OutputParser::last_call_is_whole() const {
  return nlohmann::json::accept(last_arguments_);
}

}  // namespace volley::serve
