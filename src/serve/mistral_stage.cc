#include "serve/mistral_stage.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "serve/tool_call_scanner.h"
#include "serve/tool_call_stages.h"

namespace volley::serve {
namespace {

using State = ToolCallScanner::State;

constexpr std::string_view kCalls = "[TOOL_CALLS]";
constexpr std::string_view kCallId = "[CALL_ID]";
constexpr std::string_view kArgs = "[ARGS]";
constexpr size_t kIdLength = 9;       // of Mistral's call ids
constexpr size_t kLongestHead = 512;  // names and ids that are longer are text

std::string_view skip_space(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  return text;
}

bool is_blank(std::string_view text) {
  return skip_space(text).empty();
}

bool is_id_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Text up to the byte that begins a call's arguments or object, or that shows that there is no call.
struct Head {
  enum class Kind { kMore, kList, kNamed, kNone };
  Kind kind = Kind::kNone;
  std::string name;  // of kNamed
  bool marked = false;
};

class HeadReader {
 public:
  explicit HeadReader(std::shared_ptr<const ToolTypes> tools) : tools_(std::move(tools)) {}

  // `bare`: a call may begin here without a marker. REQUIRES: all shorter texts gave kMore.
  Head read(std::string_view text, bool bare) const {
    text = skip_space(text);
    if (text.size() > kLongestHead) return {};
    if (kCalls.starts_with(text)) return {Head::Kind::kMore, {}, text == kCalls};
    const bool marked = text.starts_with(kCalls);
    if (marked) text = skip_space(text.substr(kCalls.size()));
    if (!marked && !bare) return {};
    Head head = text.starts_with('[') ? read_list(text) : read_named(text, marked);
    head.marked = marked;
    return head;
  }

 private:
  static Head read_list(std::string_view text) {
    text = skip_space(text.substr(1));
    if (text.empty()) return {Head::Kind::kMore, {}, false};
    return {text == "{" ? Head::Kind::kList : Head::Kind::kNone, {}, false};
  }

  // The name, then [CALL_ID] and an id, then [ARGS], then {: without a marker the name must be a tool's.
  Head read_named(std::string_view text, bool marked) const {
    const Head more{Head::Kind::kMore, {}, false};
    const size_t end = std::min(text.find_first_of("[{\n"), text.size());
    std::string_view name = text.substr(0, end);
    if (!marked && !may_become_known(name)) return {};
    text.remove_prefix(end);
    if (text.empty()) return more;
    if (text.starts_with(kCallId)) {
      text.remove_prefix(kCallId.size());
      while (!text.empty() && is_id_letter(text.front())) text.remove_prefix(1);
      if (text.empty()) return more;
    }
    if (text.starts_with(kArgs)) text = skip_space(text.substr(kArgs.size()));
    if (text.empty() || (text.front() == '[' && (kCallId.starts_with(text) || kArgs.starts_with(text)))) return more;
    while (!name.empty() && is_json_space(name.back())) name.remove_suffix(1);
    if (text != "{" || name.empty()) return {};
    name = without_id(name);
    if (!marked && !is_known(name)) return {};
    return {Head::Kind::kNamed, std::string(name), false};
  }

  bool is_known(std::string_view name) const { return tools_ && tools_->contains(std::string(name)); }

  // [CALL_ID] is not shown: the id then follows the name directly.
  std::string_view without_id(std::string_view name) const {
    if (is_known(name) || name.size() <= kIdLength) return name;
    const std::string_view id = name.substr(name.size() - kIdLength), rest = name.substr(0, name.size() - kIdLength);
    return std::all_of(id.begin(), id.end(), is_id_letter) && is_known(rest) ? rest : name;
  }

  bool may_become_known(std::string_view text) const {
    return tools_ && std::any_of(tools_->begin(), tools_->end(), [&](const auto& tool) {
             const std::string& name = tool.first;
             return name.starts_with(text) || (text.starts_with(name) && text.size() <= name.size() + kIdLength);
           });
  }

  const std::shared_ptr<const ToolTypes> tools_;
};

class MistralStage final : public OutputStage {
 public:
  explicit MistralStage(const OutputParser::Options& options)
      : heads_(options.types), writer_(options.call_id_prefix, /*short_ids=*/true) {}

  void push(std::string_view text, OutputDelta& out) override {
    std::string input(text);
    for (size_t i = 0; i < input.size(); ++i) {
      // Text that was taken for a call and is none is read again from behind its first byte.
      if (std::string again = step(input[i], out); !again.empty()) {
        input.replace(0, i + 1, again);
        i = static_cast<size_t>(-1);
      }
    }
  }

  void finish(OutputDelta& out) override {
    while (!held_.empty() && !(is_blank(held_) && after_call_)) push(give_up(out), out);
  }

 private:
  enum class Place { kText, kObject, kArguments, kBetween };

  // Returns text to be read again.
  std::string step(char c, OutputDelta& out) {
    switch (place_) {
      case Place::kText:
        return text(c, out);
      case Place::kObject:
        return object(c, out);
      case Place::kArguments:
        return arguments(c, out);
      case Place::kBetween:
        return between(c, out);
    }
    return {};
  }

  std::string text(char c, OutputDelta& out) {
    const bool blank = is_json_space(c) && is_blank(held_);
    held_ += c;
    if (blank) return {};
    const Head head = heads_.read(held_, bare_);
    if (head.kind == Head::Kind::kMore) return {};
    if (head.kind == Head::Kind::kNone) return give_up(out);
    if (head.kind == Head::Kind::kList) {
      held_.pop_back();
      // An answer that happens to be a list of objects is one of calls only if they have no foreign members.
      rules_ = {.other_members = head.marked, .arguments_may_miss = head.marked};
      return begin_object(c, out);
    }
    held_.clear();
    after_call_ = bare_ = true;
    writer_.announce(head.name, out);
    value_ = {};
    place_ = Place::kArguments;
    return arguments(c, out);
  }

  std::string arguments(char c, OutputDelta& out) {
    const JsonValueScanner::Step step = value_.push(c);
    if (step == JsonValueScanner::Step::kMore || step == JsonValueScanner::Step::kLast) {
      std::string json;
      value_.append_last(json);
      writer_.add_arguments(json, out);
    }
    if (step == JsonValueScanner::Step::kMore) return {};
    place_ = Place::kText;
    return step == JsonValueScanner::Step::kLast ? std::string() : std::string(1, c);
  }

  std::string begin_object(char c, OutputDelta& out) {
    scanner_.emplace(rules_);
    place_ = Place::kObject;
    return object(c, out);
  }

  std::string object(char c, OutputDelta& out) {
    const State state = scan_call(*scanner_, c, writer_, out);
    if (!scanner_->announced()) {
      held_ += c;
      return state == State::kBroken ? give_up(out) : std::string();
    }
    held_.clear();
    after_call_ = true;
    bare_ = false;
    if (state == State::kReading) return {};
    place_ = state == State::kDone ? Place::kBetween : Place::kText;
    return state == State::kDone ? std::string() : std::string(1, c);
  }

  // After an object of a list. An end that is missing does not undo the calls.
  std::string between(char c, OutputDelta& out) {
    const bool comma = held_.find(',') != std::string::npos;
    if (c == '{' && comma) return begin_object(c, out);
    if (c == ']' && !comma) {
      held_.clear();
      place_ = Place::kText;
      return {};
    }
    held_ += c;
    if (is_json_space(c) || (c == ',' && !comma)) return {};
    return give_up(out);
  }

  // What is held is no call: its first byte and the white space before it are content. Returns the rest.
  std::string give_up(OutputDelta& out) {
    const size_t taken = std::min(held_.size(), held_.size() - skip_space(held_).size() + 1);
    out.content += held_.substr(0, taken);
    after_call_ = bare_ = false;
    place_ = Place::kText;
    std::string rest = held_.substr(taken);
    held_.clear();
    return rest;
  }

  const HeadReader heads_;
  CallWriter writer_;
  Place place_ = Place::kText;
  ToolCallScanner::Rules rules_;
  std::optional<ToolCallScanner> scanner_;
  JsonValueScanner value_;
  std::string held_;         // what is not decided
  bool bare_ = true;         // a call may begin without a marker
  bool after_call_ = false;  // no content came since the last call
};

}  // namespace

std::unique_ptr<OutputStage> mistral_stage(const OutputParser::Options& options) {
  return std::make_unique<MistralStage>(options);
}

}  // namespace volley::serve
