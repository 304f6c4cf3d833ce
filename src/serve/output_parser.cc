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
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";

std::string_view trim_end(std::string_view text) {
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view trim_start(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  return text;
}

// Reasoning comes first and once; everything behind it goes to the next stage.
//
// Some models call a tool in the middle of a thought and end there. So calls at the end of a text whose thought nobody
// closed are calls, if they are whole and nothing comes behind them; anything else between these marks is a thought.
class ReasoningStage final : public OutputStage {
 public:
  ReasoningStage(const OutputParser::Options& options, std::unique_ptr<OutputStage> next)
      : options_(options), next_(std::move(next)) {}

  void push(std::string_view text, OutputDelta& out) override {
    std::string input;  // where text is read again, from behind the mark of a call that is none
    for (size_t i = 0; i < text.size(); ++i) {
      if (place_ == Place::kAnswer) {
        next_->push(text.substr(i), out);
        return;
      }
      if (const std::string again = step(text[i], out); !again.empty()) {
        text = input = again + std::string(text.substr(i + 1));
        i = static_cast<size_t>(-1);
      }
    }
  }

  void finish(OutputDelta& out) override {
    if (place_ == Place::kHead && !open()) next_->push(begin_.text(), out);
    if (place_ == Place::kHead && open() && begin_.in_marker()) out.reasoning += trim_start(begin_.text());
    if (place_ == Place::kReasoning && !marker_.empty()) out.reasoning += blank_ + marker_;
    if (place_ == Place::kCalls && announced_ && trim_end(held_).ends_with(kCallEnd)) {
      next_->push(held_, out);
    } else if (place_ == Place::kCalls) {
      out.reasoning += trim_end(held_);
    }
    next_->finish(out);
  }

 private:
  enum class Place { kHead, kReasoning, kCalls, kGap, kAnswer };

  bool open() const { return options_.reasoning == ReasoningStart::kOpen; }
  bool tagged_calls() const {
    return options_.tools == ToolFormat::kHermes || options_.tools == ToolFormat::kQwenCoder;
  }

  // Returns text to be read again.
  std::string step(char c, OutputDelta& out) {
    switch (place_) {
      case Place::kHead:
        head(c, out);
        return {};
      case Place::kReasoning:
        reasoning(c, tagged_calls(), out);
        return {};
      case Place::kCalls:
        return calls(c, out);
      case Place::kGap:
        if (is_json_space(c)) return {};
        place_ = Place::kAnswer;
        [[fallthrough]];
      case Place::kAnswer:
        next_->push({&c, 1}, out);
        return {};
    }
    return {};
  }

  // Some models write <think> although the prompt ends with it.
  void head(char c, OutputDelta& out) {
    const MarkerHold::Step step = begin_.push(c);
    if (step == MarkerHold::Step::kHeld) return;
    const std::string held = begin_.take();
    if (step == MarkerHold::Step::kFound || open()) {
      place_ = Place::kReasoning;
      if (step == MarkerHold::Step::kFound) return;
      for (const char h : trim_start(held)) reasoning(h, tagged_calls(), out);  // less than a marker
      reasoning(c, tagged_calls(), out);
    } else {
      place_ = Place::kAnswer;
      next_->push(held, out);
      next_->push({&c, 1}, out);
    }
  }

  // Keeps white space, and what may become a marker, until that is decided.
  void reasoning(char c, bool may_call, OutputDelta& out) {
    if (!begun_ && is_json_space(c)) return;
    begun_ = true;
    if (marker_.empty() && is_json_space(c)) {
      blank_ += c;
      return;
    }
    marker_ += c;
    if (kThinkEnd.starts_with(marker_) || (may_call && kCall.starts_with(marker_))) {
      if (marker_ == kThinkEnd) place_ = Place::kGap;
      if (marker_ == kCall) begin_calls();
      return;
    }
    marker_.pop_back();
    out.reasoning += std::exchange(blank_, {}) + std::exchange(marker_, {});
    if (is_json_space(c) || c == '<') {
      (c == '<' ? marker_ : blank_) = c;
    } else {
      out.reasoning += c;
    }
  }

  void begin_calls() {
    place_ = Place::kCalls;
    announced_ = false;
    head_ = blank_.size() + marker_.size();
    held_ = std::exchange(blank_, {}) + std::exchange(marker_, {});
    probe_ = tool_call_stage(options_);
    OutputDelta nothing;
    probe_->push(kCall, nothing);
  }

  // All of held_ may still be calls.
  std::string calls(char c, OutputDelta& out) {
    held_ += c;
    if (held_.ends_with(kThinkEnd)) {
      out.reasoning += trim_end(std::string_view(held_).substr(0, held_.size() - kThinkEnd.size()));
      place_ = Place::kGap;
      return {};
    }
    OutputDelta found;
    probe_->push({&c, 1}, found);
    announced_ = announced_ || !found.tool_calls.empty();
    if (found.content.empty()) return {};
    place_ = Place::kReasoning;
    if (!announced_) {  // what was taken for a call's head may hold another one's
      out.reasoning.append(held_, 0, head_);
      return held_.substr(head_);
    }
    for (const char h : held_) reasoning(h, false, out);
    return {};
  }

  const OutputParser::Options options_;
  std::unique_ptr<OutputStage> next_;
  Place place_ = Place::kHead;
  MarkerHold begin_{kThink};
  bool begun_ = false;  // something of the reasoning but white space was seen
  std::string blank_;   // white space in it
  std::string marker_;  // behind that: the beginning of </think>, or of a call
  // kCalls.
  std::string held_;                    // white space, the first call's marker, what came behind it
  size_t head_ = 0;                     // bytes of the first two
  std::unique_ptr<OutputStage> probe_;  // what reads it
  bool announced_ = false;
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
  stage_ = std::make_unique<ReasoningStage>(options, std::move(stage_));
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
