// Calls between <tool_call> and </tool_call>, any number, with text around them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "serve/formats/answer_format.h"
#include "serve/formats/tool_call_stages.h"

namespace volley::serve {

class TaggedCalls : public AnswerFormat {
 public:
  explicit TaggedCalls(const FormatProbe& probe)
      : AnswerFormat(true), tokens_(probe.shows("<tool_call>") && probe.shows("</tool_call>")) {}

  bool tags_calls() const override { return true; }
  std::string calls_rule(CallGrammar& grammar, bool free) const override;

 private:
  const bool tokens_;  // grammars ask for the tokens, as the model was trained, not for their letters
};

// A Scanner reads each call. With begin_bare(), "<f" may begin a call without <tool_call>.
template <class Scanner>
class TaggedStage final : public ByteStage {
 public:
  explicit TaggedStage(Scanner unused) : unused_(std::move(unused)) {}

  void finish(TextEnd end, OutputWriter& out) override {
    if (place_ == Place::kCall && !scanner_->announced()) {
      push(give_up(out), out);
      finish(end, out);
    } else if (place_ == Place::kCall) {
      const bool whole = scanner_->finish(end);
      out.arguments(scanner_->take_arguments());
      if (whole) out.end_call();
      if (end == TextEnd::kModel) out.content(scanner_->take_rest());
    } else if (place_ == Place::kText && (begin_.in_marker() || !after_call_)) {
      out.content(begin_.take());
    }
  }

 private:
  enum class Place { kText, kCall, kAfterObject };

  std::string step(char c, OutputWriter& out) override {
    if (place_ == Place::kCall) return call(c, out);
    if (place_ == Place::kAfterObject) return after_object(c);
    text(c, out);
    return {};
  }

  void text(char c, OutputWriter& out) {
    MarkerHold::Step step = begin_.push(c);
    if constexpr (requires { scanner_->begin_bare(); }) {
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
      out.content(begin_.take());
      after_call_ = false;
      step = begin_.push(c);
      if (step == MarkerHold::Step::kOther) out.content({&c, 1});
    }
    if (step == MarkerHold::Step::kFound) {
      marker_ = begin_.take();
      scanner_.emplace(unused_);
      place_ = Place::kCall;
    }
  }

  std::string call(char c, OutputWriter& out) {
    const ToolCallScanner::State state = scan_call(*scanner_, c, out);
    if (!scanner_->announced()) {
      body_ += c;
      return state == ToolCallScanner::State::kBroken ? give_up(out) : std::string();
    }
    marker_.clear();
    body_.clear();
    after_call_ = true;
    if (state != ToolCallScanner::State::kReading) place_ = Place::kAfterObject;
    return state == ToolCallScanner::State::kBroken ? scanner_->take_rest() + c : std::string();
  }

  // The text was no call, so its marker is content. Returns the rest.
  std::string give_up(OutputWriter& out) {
    out.content(std::exchange(marker_, {}));
    after_call_ = false;
    place_ = Place::kText;
    return std::exchange(body_, {});
  }

  // A missing or misspelt end marker does not undo the call.
  std::string after_object(char c) {
    const MarkerHold::Step step = end_.push(c);
    if (step == MarkerHold::Step::kHeld) return {};
    place_ = Place::kText;
    std::string held = end_.take();
    return step == MarkerHold::Step::kFound ? std::string() : held + c;
  }

  const Scanner unused_;  // the state at each call's beginning
  std::optional<Scanner> scanner_;
  Place place_ = Place::kText;
  MarkerHold begin_{"<tool_call>"};
  MarkerHold end_{"</tool_call>"};
  std::string marker_;       // marker of a call that is not announced yet, with white space before it
  std::string body_;         // behind the marker, until the call is announced
  bool after_call_ = false;  // no content came since the last call
};

}  // namespace volley::serve
