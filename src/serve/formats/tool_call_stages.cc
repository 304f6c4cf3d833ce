#include "serve/formats/tool_call_stages.h"

#include <utility>

namespace volley::serve {
namespace {

class ContentStage final : public OutputStage {
 public:
  void push(std::string_view text, OutputWriter& out) override { out.content(text); }
  void finish(TextEnd, OutputWriter&) override {}
};

// Reads calls alone or JSON, told apart by the first byte, but for an array, which may be a list of calls.
class CallsOrJsonStage final : public OutputStage {
 public:
  explicit CallsOrJsonStage(std::unique_ptr<OutputStage> calls) : next_(std::move(calls)) {}

  void push(std::string_view text, OutputWriter& out) override {
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
  void finish(TextEnd end, OutputWriter& out) override {
    next_->push(blank_, out);
    next_->finish(end, out);
  }

 private:
  std::unique_ptr<OutputStage> next_;
  bool decided_ = false;
  std::string blank_;
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

void ByteStage::push(std::string_view text, OutputWriter& out) {
  std::string input(text);
  for (size_t i = 0; i < input.size(); ++i) {
    if (const std::string again = step(input[i], out); !again.empty()) {
      input.replace(0, i + 1, again);
      i = static_cast<size_t>(-1);
    }
  }
}

std::unique_ptr<OutputStage> content_stage() {
  return std::make_unique<ContentStage>();
}

std::unique_ptr<OutputStage> marked_stage(const OutputParser::Options& options, std::unique_ptr<OutputStage> calls) {
  if (!options.calls_or_json) return calls;
  return std::make_unique<CallsOrJsonStage>(std::move(calls));
}

}  // namespace volley::serve
