// Text, then [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …], or [TOOL_CALLS]f[ARGS]{…} for each call, perhaps with
// an id [CALL_ID]… between. If text does not show these tokens, calls begin the answer: with the list, or with a known
// tool's name and its arguments. Mistral's models.
#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "serve/formats/call_grammar.h"
#include "serve/formats/call_ids.h"
#include "serve/formats/tool_call_stages.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using State = ToolCallScanner::State;

constexpr std::string_view kCalls = "[TOOL_CALLS]";
constexpr std::string_view kCallId = "[CALL_ID]";
constexpr std::string_view kArgs = "[ARGS]";
constexpr size_t kIdLength = 9;       // length of Mistral's call ids
constexpr size_t kLongestHead = 512;  // longer names and ids are text

bool is_blank(std::string_view text) {
  return skip_space(text).empty();
}

bool is_id_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Text up to the byte that begins a call's arguments or object, or that excludes a call.
struct Head {
  enum class Kind { kMore, kList, kNamed, kNone };
  Kind kind = Kind::kNone;
  std::string name;  // with kNamed
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

  // Reads the name, then [CALL_ID] and an id, then [ARGS], then {. Without a marker the name must be a tool's.
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

  // Text does not show [CALL_ID], so the id follows the name directly.
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

class MistralStage final : public ByteStage {
 public:
  explicit MistralStage(const OutputParser::Options& options) : heads_(options.types) {}

  void finish(TextEnd, OutputWriter& out) override {
    while (!held_.empty() && !(is_blank(held_) && after_call_)) push(give_up(out), out);
  }

 private:
  enum class Place { kText, kObject, kArguments, kBetween };

  std::string step(char c, OutputWriter& out) override {
    if (place_ == Place::kText) return text(c, out);
    if (place_ == Place::kObject) return object(c, out);
    return place_ == Place::kArguments ? arguments(c, out) : between(c, out);
  }

  std::string text(char c, OutputWriter& out) {
    const bool blank = is_json_space(c) && is_blank(held_);
    held_ += c;
    if (blank) return {};
    const Head head = heads_.read(held_, bare_);
    if (head.kind == Head::Kind::kMore) return {};
    if (head.kind == Head::Kind::kNone) return give_up(out);
    if (head.kind == Head::Kind::kList) {
      held_.pop_back();
      // A list of objects is one of calls only if they have no other members.
      rules_ = {.other_members = head.marked, .arguments_may_miss = head.marked};
      return begin_object(c, out);
    }
    held_.clear();
    after_call_ = bare_ = true;
    out.begin_call(head.name);
    value_ = {};
    place_ = Place::kArguments;
    return arguments(c, out);
  }

  std::string arguments(char c, OutputWriter& out) {
    const JsonValueScanner::Step step = value_.push(c);
    if (step == JsonValueScanner::Step::kMore || step == JsonValueScanner::Step::kLast) out.arguments({&c, 1});
    if (step == JsonValueScanner::Step::kMore) return {};
    out.end_call();
    place_ = Place::kText;
    return step == JsonValueScanner::Step::kLast ? std::string() : std::string(1, c);
  }

  std::string begin_object(char c, OutputWriter& out) {
    scanner_.emplace(rules_);
    place_ = Place::kObject;
    return object(c, out);
  }

  std::string object(char c, OutputWriter& out) {
    const State state = scan_call(*scanner_, c, out);
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

  // Reads the bytes after a list's object. A missing end does not undo the calls.
  std::string between(char c, OutputWriter& out) {
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

  // The held text is no call: its first byte and the white space before it are content. Returns the rest.
  std::string give_up(OutputWriter& out) {
    const size_t taken = std::min(held_.size(), held_.size() - skip_space(held_).size() + 1);
    out.content(std::string_view(held_).substr(0, taken));
    after_call_ = bare_ = false;
    place_ = Place::kText;
    std::string rest = held_.substr(taken);
    held_.clear();
    return rest;
  }

  const HeadReader heads_;
  Place place_ = Place::kText;
  ToolCallScanner::Rules rules_;
  std::optional<ToolCallScanner> scanner_;
  JsonValueScanner value_;
  std::string held_;         // undecided text
  bool bare_ = true;         // a call may begin without a marker
  bool after_call_ = false;  // no content came since the last call
};

class Mistral final : public AnswerFormat {
 public:
  explicit Mistral(const FormatProbe& probe)
      : AnswerFormat(true),
        named_(follows(probe.call, kCalls, "volley_probe")),
        calls_token_(probe.token(kCalls)),
        args_token_(probe.token(kArgs)) {}

  Result<std::string> render(const Engine& engine, Conversation chat,
                             const std::atomic<bool>* cancelled) const override {
    shorten_call_ids(chat.messages);
    return AnswerFormat::render(engine, std::move(chat), cancelled);
  }
  bool short_call_ids() const override { return true; }
  bool reads_types() const override { return true; }  // for the tools' names
  std::unique_ptr<OutputStage> stage(const OutputParser::Options& options) const override {
    return marked_stage(options, std::make_unique<MistralStage>(options));
  }

  // Calls end the answer. A space may come before the list, because models are trained with and without.
  std::string calls_rule(CallGrammar& grammar, bool free) const override {
    const std::string list = grammar.parallel ? R"(" "? "[" object (", " object)* "]")" : R"(" "? "[" object "]")";
    grammar.rules += "calls: " + (named_ ? "object" : list) + "\n";
    grammar.rules += "call: " + marker(calls_token_, kCalls) + " calls\n";
    const std::string more = named_ && grammar.parallel ? " call*" : "";
    if (!free) return "call" + more;
    grammar.text_without(kCalls);
    if (calls_token_) return "TEXT? (call" + more + ")?";
    grammar.text_up_to(kCalls);
    return "(to_call calls" + more + " | TEXT)?";
  }

  std::string call_rule(const Tool& tool, const std::string& arguments) const override {
    if (!named_) return AnswerFormat::call_rule(tool, arguments);
    return json_quote(tool.name) + " " + marker(args_token_, kArgs) + " " + arguments;
  }

 private:
  static std::string marker(std::optional<TokenId> token, std::string_view text) {
    return token ? token_terminal(*token) : json_quote(text);
  }

  const bool named_;  // the template writes a name and [ARGS] for each call, not a list
  const std::optional<TokenId> calls_token_, args_token_;  // tokens that text may hide; nothing: spelt in letters
};

}  // namespace

extern const AnswerFormatKind kMistralFormat{{"mistral"},
                                             {},
                                             [](const FormatProbe& probe) {
                                               return follows(probe.call, kCalls, "[") ||
                                                      follows(probe.call, kCalls, "volley_probe");
                                             },
                                             made<Mistral>};

}  // namespace volley::serve
