#include "serve/tool_call_stages.h"

#include <optional>
#include <type_traits>
#include <utility>

#include "serve/call_ids.h"
#include "serve/mistral_stage.h"
#include "serve/xml_call_scanner.h"

namespace volley::serve {
namespace {

using State = ToolCallScanner::State;

class ContentStage final : public OutputStage {
 public:
  void push(std::string_view text, OutputDelta& out) override { out.content += text; }
  void finish(OutputDelta&) override {}
};

// Calls between <tool_call> and </tool_call>, each read by a Scanner of its own. Qwen3-Coder is seen to leave the first
// one out: there <function=f> of a tool that there is begins a call, too.
template <class Scanner>
class TaggedStage final : public OutputStage {
 public:
  TaggedStage(Scanner unused, std::string id_prefix) : unused_(std::move(unused)), writer_(std::move(id_prefix)) {}

  void push(std::string_view text, OutputDelta& out) override {
    std::string input(text);
    for (size_t i = 0; i < input.size(); ++i) {
      // Text that was taken for a call and is none is read again from behind its marker: a call may begin there.
      if (std::string again = step(input[i], out); !again.empty()) {
        input.replace(0, i + 1, again);
        i = static_cast<size_t>(-1);
      }
    }
  }

  void finish(OutputDelta& out) override {
    if (place_ == Place::kCall && !scanner_->announced()) {
      push(give_up(out), out);
      finish(out);
    } else if (place_ == Place::kCall) {
      scanner_->finish();
      writer_.add_arguments(scanner_->take_arguments(), out);
    } else if (place_ == Place::kText && (begin_.in_marker() || !after_call_)) {
      out.content += begin_.take();
    }
  }

 private:
  enum class Place { kText, kCall, kAfterObject };

  // Returns text to be read again.
  std::string step(char c, OutputDelta& out) {
    switch (place_) {
      case Place::kText:
        text(c, out);
        return {};
      case Place::kCall:
        return call(c, out);
      case Place::kAfterObject:
        return after_object(c);
    }
    return {};
  }

  void text(char c, OutputDelta& out) {
    MarkerHold::Step step = begin_.push(c);
    if constexpr (std::is_same_v<Scanner, XmlCallScanner>) {
      if (step == MarkerHold::Step::kOther && c == 'f' && begin_.text().ends_with('<')) {
        marker_ = begin_.take();
        scanner_.emplace(unused_);
        scanner_->begin_bare();  // "<f"
        body_ = c;
        place_ = Place::kCall;
        return;
      }
    }
    if (step == MarkerHold::Step::kOther) {
      out.content += begin_.take();
      after_call_ = false;
      step = begin_.push(c);
      if (step == MarkerHold::Step::kOther) out.content += c;
    }
    if (step == MarkerHold::Step::kFound) {
      marker_ = begin_.take();
      scanner_.emplace(unused_);
      place_ = Place::kCall;
    }
  }

  std::string call(char c, OutputDelta& out) {
    const State state = scan_call(*scanner_, c, writer_, out);
    if (!scanner_->announced()) {
      body_ += c;
      return state == State::kBroken ? give_up(out) : std::string();
    }
    marker_.clear();
    body_.clear();
    after_call_ = true;
    if (state != State::kReading) place_ = Place::kAfterObject;
    return state == State::kBroken ? scanner_->take_rest() + c : std::string();
  }

  // The text was no call: its marker is content. Returns the rest.
  std::string give_up(OutputDelta& out) {
    out.content += std::exchange(marker_, {});
    after_call_ = false;
    place_ = Place::kText;
    return std::exchange(body_, {});
  }

  // An end marker that is missing or misspelt does not undo the call.
  std::string after_object(char c) {
    const MarkerHold::Step step = end_.push(c);
    if (step == MarkerHold::Step::kHeld) return {};
    place_ = Place::kText;
    std::string held = end_.take();
    return step == MarkerHold::Step::kFound ? std::string() : held + c;
  }

  const Scanner unused_;  // the state in which each call begins
  std::optional<Scanner> scanner_;
  CallWriter writer_;
  Place place_ = Place::kText;
  MarkerHold begin_{"<tool_call>"};
  MarkerHold end_{"</tool_call>"};
  std::string marker_;       // of the call that is not announced yet, with white space before it
  std::string body_;         // behind the marker, until the call is announced
  bool after_call_ = false;  // no content came since the last call
};

// Calls alone, or JSON, which shows by its first byte. Of an array that is not certain, so it may be a list of calls.
class CallsOrJsonStage final : public OutputStage {
 public:
  explicit CallsOrJsonStage(std::unique_ptr<OutputStage> calls) : next_(std::move(calls)) {}

  void push(std::string_view text, OutputDelta& out) override {
    for (size_t i = 0; i < text.size() && !decided_; ++i) {
      if (is_json_space(text[i])) continue;
      decided_ = true;
      if (text[i] == '{' || text[i] == '"') next_ = content_stage();
      next_->push(std::exchange(blank_, {}), out);
    }
    if (decided_) {
      next_->push(text, out);
    } else {
      blank_ += text;
    }
  }
  void finish(OutputDelta& out) override {
    next_->push(blank_, out);
    next_->finish(out);
  }

 private:
  std::unique_ptr<OutputStage> next_;
  bool decided_ = false;
  std::string blank_;
};

class LlamaStage final : public OutputStage {
 public:
  explicit LlamaStage(std::string id_prefix) : writer_(std::move(id_prefix)) {}

  void push(std::string_view text, OutputDelta& out) override {
    for (const char c : text) step(c, out);
  }

  void finish(OutputDelta& out) override {
    const bool open_call = place_ == Place::kCall && !scanner_->announced();
    const bool separator = place_ == Place::kBetween && held_.find(';') != std::string::npos;
    if (place_ == Place::kTag) held_ = tag_.take();
    if (place_ == Place::kTag || place_ == Place::kObject || open_call || separator) answer(out);
  }

 private:
  enum class Place { kTag, kObject, kCall, kBetween, kAnswer };

  void step(char c, OutputDelta& out) {
    switch (place_) {
      case Place::kTag:
        tag(c, out);
        return;
      case Place::kObject:
      case Place::kBetween:
        before_object(c, out);
        return;
      case Place::kCall:
        call(c, out);
        return;
      case Place::kAnswer:
        out.content += c;
        return;
    }
  }

  void tag(char c, OutputDelta& out) {
    const MarkerHold::Step step = tag_.push(c);
    if (step == MarkerHold::Step::kHeld) return;
    const bool blank = !tag_.in_marker();
    held_ = tag_.take();
    place_ = Place::kObject;
    if (step == MarkerHold::Step::kFound) return;
    if (blank) {
      before_object(c, out);
    } else {
      held_ += c;
      answer(out);
    }
  }

  void before_object(char c, OutputDelta& out) {
    const bool separator = place_ == Place::kBetween && c == ';' && held_.find(';') == std::string::npos;
    if (c == '{') {
      scanner_.emplace(ToolCallScanner::Rules{});
      place_ = Place::kCall;
      call(c, out);
      return;
    }
    held_ += c;
    if (!is_json_space(c) && !separator) answer(out);
  }

  void call(char c, OutputDelta& out) {
    const State state = scan_call(*scanner_, c, writer_, out);
    if (!scanner_->announced() || state == State::kBroken) held_ += c;
    if (state == State::kBroken) {
      answer(out);
      return;
    }
    if (scanner_->announced()) held_.clear();
    if (state == State::kDone) place_ = Place::kBetween;
  }

  // No call from here on.
  void answer(OutputDelta& out) {
    out.content += std::exchange(held_, {});
    place_ = Place::kAnswer;
  }

  std::optional<ToolCallScanner> scanner_;
  CallWriter writer_;
  Place place_ = Place::kTag;
  MarkerHold tag_{"<|python_tag|>"};
  std::string held_;
};

// The formats whose calls do not begin as JSON does, but for lists of Mistral's.
std::unique_ptr<OutputStage> marked_call_stage(const OutputParser::Options& options) {
  switch (options.tools) {
    case ToolFormat::kMistral:
      return mistral_stage(options);
    case ToolFormat::kQwenCoder:
      return std::make_unique<TaggedStage<XmlCallScanner>>(XmlCallScanner(options.types), options.call_id_prefix);
    default:  // kHarmony has a stage of its own, without tools too
      break;
  }
  const ToolCallScanner scanner({.other_members = true, .arguments_may_miss = true});
  return std::make_unique<TaggedStage<ToolCallScanner>>(scanner, options.call_id_prefix);
}

}  // namespace

MarkerHold::Step MarkerHold::push(char c) {
  if (c == marker_[matched_]) {
    held_ += c;
    return ++matched_ == marker_.size() ? Step::kFound : Step::kHeld;
  }
  if (matched_ > 0 || !is_json_space(c)) return Step::kOther;
  held_ += c;
  return Step::kHeld;
}

std::string MarkerHold::take() {
  matched_ = 0;
  return std::exchange(held_, {});
}

void CallWriter::announce(const std::string& name, OutputDelta& out) {
  std::string id = id_prefix_ + std::to_string(next_);
  if (short_ids_) id = short_call_id(id);
  out.tool_calls.push_back({next_, std::move(id), name, {}});
  ++next_;
}

void CallWriter::add_arguments(std::string_view arguments, OutputDelta& out) {
  if (arguments.empty()) return;
  if (out.tool_calls.empty() || out.tool_calls.back().index != next_ - 1) {
    out.tool_calls.push_back({next_ - 1, {}, {}, {}});
  }
  out.tool_calls.back().arguments += arguments;
}

std::unique_ptr<OutputStage> content_stage() {
  return std::make_unique<ContentStage>();
}

std::unique_ptr<OutputStage> tool_call_stage(const OutputParser::Options& options) {
  if (options.tools == ToolFormat::kLlama)
    return std::make_unique<LlamaStage>(options.call_id_prefix);  // calls are JSON
  auto stage = marked_call_stage(options);
  if (options.calls_or_json) stage = std::make_unique<CallsOrJsonStage>(std::move(stage));
  return stage;
}

}  // namespace volley::serve
