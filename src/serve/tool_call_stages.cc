#include "serve/tool_call_stages.h"

#include <optional>
#include <utility>

#include "serve/tool_call_scanner.h"

namespace volley::serve {
namespace {

using State = ToolCallScanner::State;

class ContentStage final : public OutputStage {
 public:
  void push(std::string_view text, OutputDelta& out) override { out.content += text; }
  void finish(OutputDelta&) override {}
};

// What both formats share: the object of the current call, and how its news become deltas.
class CallReader {
 public:
  CallReader(ToolCallScanner::Rules rules, std::string id_prefix) : rules_(rules), id_prefix_(std::move(id_prefix)) {}

  void begin() { scanner_.emplace(rules_); }

  State push(char c, OutputDelta& out) {
    const bool announced_before = scanner_->announced();
    const State state = scanner_->push(c);
    if (!scanner_->announced()) return state;
    if (!announced_before) {
      out.tool_calls.push_back({next_, id_prefix_ + std::to_string(next_), scanner_->name(), {}});
      ++next_;
    }
    if (std::string arguments = scanner_->take_arguments(); !arguments.empty()) {
      if (out.tool_calls.empty() || out.tool_calls.back().index != next_ - 1) {
        out.tool_calls.push_back({next_ - 1, {}, {}, {}});
      }
      out.tool_calls.back().arguments += arguments;
    }
    return state;
  }

  bool announced() const { return scanner_ && scanner_->announced(); }

 private:
  const ToolCallScanner::Rules rules_;
  const std::string id_prefix_;
  std::optional<ToolCallScanner> scanner_;
  int next_ = 0;  // index of the call after the current one
};

class HermesStage final : public OutputStage {
 public:
  explicit HermesStage(std::string id_prefix)
      : reader_({.other_members = true, .arguments_may_miss = true}, std::move(id_prefix)) {}

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
    if (place_ == Place::kCall && !reader_.announced()) {
      push(give_up(out), out);
      finish(out);
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
    if (step == MarkerHold::Step::kOther) {
      out.content += begin_.take();
      after_call_ = false;
      step = begin_.push(c);
      if (step == MarkerHold::Step::kOther) out.content += c;
    }
    if (step == MarkerHold::Step::kFound) {
      reader_.begin();
      place_ = Place::kCall;
    }
  }

  std::string call(char c, OutputDelta& out) {
    const State state = reader_.push(c, out);
    if (!reader_.announced()) {
      body_ += c;
      return state == State::kBroken ? give_up(out) : std::string();
    }
    begin_.take();
    body_.clear();
    after_call_ = true;
    if (state != State::kReading) place_ = Place::kAfterObject;
    return state == State::kBroken ? std::string(1, c) : std::string();
  }

  // Of what was no call, the marker is content. Returns the rest.
  std::string give_up(OutputDelta& out) {
    out.content += begin_.take();
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

  CallReader reader_;
  Place place_ = Place::kText;
  MarkerHold begin_{"<tool_call>"};
  MarkerHold end_{"</tool_call>"};
  std::string body_;         // behind the marker, until the call is announced
  bool after_call_ = false;  // no content came since the last call
};

class LlamaStage final : public OutputStage {
 public:
  explicit LlamaStage(std::string id_prefix) : reader_({}, std::move(id_prefix)) {}

  void push(std::string_view text, OutputDelta& out) override {
    for (const char c : text) step(c, out);
  }

  void finish(OutputDelta& out) override {
    const bool open_call = place_ == Place::kCall && !reader_.announced();
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
      reader_.begin();
      place_ = Place::kCall;
      call(c, out);
      return;
    }
    held_ += c;
    if (!is_json_space(c) && !separator) answer(out);
  }

  void call(char c, OutputDelta& out) {
    const State state = reader_.push(c, out);
    if (!reader_.announced() || state == State::kBroken) held_ += c;
    if (state == State::kBroken) {
      answer(out);
      return;
    }
    if (reader_.announced()) held_.clear();
    if (state == State::kDone) place_ = Place::kBetween;
  }

  // No call from here on.
  void answer(OutputDelta& out) {
    out.content += std::exchange(held_, {});
    place_ = Place::kAnswer;
  }

  CallReader reader_;
  Place place_ = Place::kTag;
  MarkerHold tag_{"<|python_tag|>"};
  std::string held_;
};

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

std::unique_ptr<OutputStage> content_stage() {
  return std::make_unique<ContentStage>();
}

std::unique_ptr<OutputStage> tool_call_stage(ToolFormat format, std::string call_id_prefix) {
  if (format == ToolFormat::kLlama) return std::make_unique<LlamaStage>(std::move(call_id_prefix));
  return std::make_unique<HermesStage>(std::move(call_id_prefix));
}

}  // namespace volley::serve
