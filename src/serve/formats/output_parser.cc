#include "serve/formats/output_parser.h"

#include <algorithm>
#include <utility>

#include "serve/formats/answer_format.h"
#include "serve/formats/tool_call_scanner.h"
#include "serve/formats/tool_call_stages.h"

namespace volley::serve {
namespace {

// Reads reasoning, which comes first and once; the next stage gets the rest.
//
// Some models call a tool in the middle of a thought and stop. So whole calls at the end of a text with an open thought
// count as calls, if no text follows; all else between these marks is thought.
class ReasoningStage final : public OutputStage {
 public:
  ReasoningStage(const OutputParser::Options& options, std::unique_ptr<OutputStage> next)
      : options_(options),
        next_(std::move(next)),
        think_(options.format->think_tags()),
        call_(options.format->call_tags()),
        begin_(think_.begin) {}

  void push(std::string_view text, OutputWriter& out) override {
    std::string input;  // text to read again, from behind the mark of a false call
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

  void finish(TextEnd end, OutputWriter& out) override {
    if (place_ == Place::kHead && !open()) next_->push(begin_.text(), out);
    if (place_ == Place::kHead && open() && begin_.in_marker()) out.reasoning(skip_space(begin_.text()));
    if (place_ == Place::kReasoning && !marker_.empty()) out.reasoning(blank_ + marker_);
    if (place_ == Place::kCalls && announced_ && trim_end(held_).ends_with(call_.end)) {
      next_->push(held_, out);
    } else if (place_ == Place::kCalls) {
      out.reasoning(trim_end(held_));
    }
    next_->finish(end, out);
  }

 private:
  enum class Place { kHead, kReasoning, kCalls, kGap, kAnswer };

  bool open() const { return options_.reasoning == ReasoningStart::kOpen; }

  // Returns text to be read again.
  std::string step(char c, OutputWriter& out) {
    if (place_ == Place::kCalls) return calls(c, out);
    if (place_ == Place::kHead) {
      head(c, out);
    } else if (place_ == Place::kReasoning) {
      reasoning(c, !call_.begin.empty(), out);
    } else if (!is_json_space(c)) {
      place_ = Place::kAnswer;
      next_->push({&c, 1}, out);
    }
    return {};
  }

  // Some models write <think> although the prompt ends with it.
  void head(char c, OutputWriter& out) {
    const MarkerHold::Step step = begin_.push(c);
    if (step == MarkerHold::Step::kHeld) return;
    const std::string held = begin_.take();
    if (step == MarkerHold::Step::kFound || open()) {
      place_ = Place::kReasoning;
      if (step == MarkerHold::Step::kFound) return;
      for (const char h : skip_space(held)) reasoning(h, !call_.begin.empty(), out);  // less than a marker
      reasoning(c, !call_.begin.empty(), out);
    } else {
      place_ = Place::kAnswer;
      next_->push(held, out);
      next_->push({&c, 1}, out);
    }
  }

  // Holds white space, and the possible beginning of a marker, until it is decided.
  void reasoning(char c, bool may_call, OutputWriter& out) {
    if (!begun_ && is_json_space(c)) return;
    begun_ = true;
    if (marker_.empty() && is_json_space(c)) {
      blank_ += c;
      return;
    }
    marker_ += c;
    if (think_.end.starts_with(marker_) || (may_call && call_.begin.starts_with(marker_))) {
      if (marker_ == think_.end) place_ = Place::kGap;
      if (marker_ == call_.begin) begin_calls();
      return;
    }
    marker_.pop_back();
    out.reasoning(std::exchange(blank_, {}) + std::exchange(marker_, {}));
    if (is_json_space(c) || c == '<') {
      (c == '<' ? marker_ : blank_) = c;
    } else {
      out.reasoning({&c, 1});
    }
  }

  void begin_calls() {
    place_ = Place::kCalls;
    announced_ = false;
    head_ = blank_.size() + marker_.size();
    held_ = std::exchange(blank_, {}) + std::exchange(marker_, {});
    probe_ = options_.format->stage(options_);
    probed_.emplace("");
    probe_->push(call_.begin, *probed_);
  }

  // All of held_ may still be calls.
  std::string calls(char c, OutputWriter& out) {
    held_ += c;
    if (held_.ends_with(think_.end)) {
      out.reasoning(trim_end(std::string_view(held_).substr(0, held_.size() - think_.end.size())));
      place_ = Place::kGap;
      return {};
    }
    probe_->push({&c, 1}, *probed_);
    announced_ = probed_->calls() > 0;
    if (probed_->take().content().empty()) return {};
    place_ = Place::kReasoning;
    if (!announced_) {  // a false head may contain the head of another call
      out.reasoning(std::string_view(held_).substr(0, head_));
      return held_.substr(head_);
    }
    for (const char h : held_) reasoning(h, false, out);
    return {};
  }

  const OutputParser::Options options_;
  std::unique_ptr<OutputStage> next_;
  const ThinkTags think_;
  const CallTags call_;
  Place place_ = Place::kHead;
  MarkerHold begin_;
  bool begun_ = false;  // reasoning other than white space has come
  std::string blank_;   // trailing white space of the reasoning
  std::string marker_;  // behind that: the beginning of </think>, or of a call
  // Used in kCalls:
  std::string held_;                    // white space, the first call's marker, the text behind it
  size_t head_ = 0;                     // bytes of the first two
  std::unique_ptr<OutputStage> probe_;  // reads held_
  std::optional<OutputWriter> probed_;  // probe_'s output
  bool announced_ = false;
};

}  // namespace

std::unique_ptr<OutputStage> reasoning_stage(const OutputParser::Options& options, std::unique_ptr<OutputStage> next) {
  return std::make_unique<ReasoningStage>(options, std::move(next));
}

TextEnd end_of(const Finish& finish, std::span<const TokenId> stop_token_ids) {
  const bool by_clients_id = finish.stop_token && std::ranges::count(stop_token_ids, *finish.stop_token) > 0;
  const bool by_model = finish.reason == FinishReason::kStop && !finish.stop_text && !finish.repeated && !by_clients_id;
  return by_model ? TextEnd::kModel : TextEnd::kCut;
}

OutputParser::OutputParser(const Options& options)
    : format_(options.format),
      out_(options.call_id_prefix, options.format->short_call_ids()),
      stage_(options.format->whole_stage(options)) {}

OutputDelta OutputParser::push(std::string_view text) {
  stage_->push(text, out_);
  return out_.take();
}

void OutputParser::read(TokenId mark) {
  const std::string_view text = format_->spelling(mark);
  if (text.empty()) {
    stage_->mark(mark, out_);
  } else {
    stage_->push(text, out_);
  }
}

OutputDelta OutputParser::mark(TokenId token) {
  read(token);
  return out_.take();
}

OutputDelta OutputParser::push(std::string_view text, std::span<const Event::Mark> marks) {
  size_t begin = 0;
  for (const Event::Mark& mark : marks) {
    stage_->push(text.substr(begin, mark.at - begin), out_);
    read(mark.token);
    begin = mark.at;
  }
  return push(text.substr(begin));
}

OutputDelta OutputParser::finish(TextEnd end) {
  stage_->finish(end, out_);
  if (end == TextEnd::kModel) out_.end_call();
  return out_.take();
}

OutputParser::Options plan_answer(const Engine& engine, const OutputFormat& format, std::string_view prompt,
                                  GenerateRequest& request) {
  OutputParser::Options options;
  options.format = format.answers->after(engine, request.prompt);
  options.reasoning = options.format->start(format.reasoning, prompt);
  options.format->plan(format.reasoning, request, options);
  return options;
}

}  // namespace volley::serve
