// A name between marks, then the arguments:
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>: DeepSeek
//   V3.1;
//     V3 and R1 write "function<｜tool▁sep｜>f\n```json\n{…}\n```" in its place
//   <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>…
//     <|tool_calls_section_end|>, where the number counts the conversation's calls: Kimi K2
//   <|tool_call>call:f{…}<tool_call|>, with braces that are no JSON, and <|channel>thought\n…<channel|> for thoughts:
//     Gemma 4
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "serve/formats/brace_arguments.h"
#include "serve/formats/call_grammar.h"
#include "serve/formats/call_ids.h"
#include "serve/formats/tagged_calls.h"
#include "serve/formats/tool_parameters.h"
#include "serve/formats/typescript_tools.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

struct NamedForm {
  CallMarks marks;
  std::string_view prefix = {};     // before the name
  std::string_view separator = {};  // behind it; empty: the arguments begin there, and the prefix is needed
  bool typed = false;               // the type comes before the name, and the arguments are fenced
  bool counts_ids = false;          // ":" and a number stand behind the name
  bool braces = false;              // the arguments are BraceArguments
  ThinkTags think = {};
};

constexpr NamedForm kDeepSeek{.marks = {.section = "<｜tool▁calls▁begin｜>",
                                        .section_end = "<｜tool▁calls▁end｜>",
                                        .call = "<｜tool▁call▁begin｜>",
                                        .call_end = "<｜tool▁call▁end｜>",
                                        .tail = "```",
                                        .several = true},
                              .separator = "<｜tool▁sep｜>"};
constexpr NamedForm kKimi{.marks = {.section = "<|tool_calls_section_begin|>",
                                    .section_end = "<|tool_calls_section_end|>",
                                    .call = "<|tool_call_begin|>",
                                    .call_end = "<|tool_call_end|>",
                                    .several = true},
                          .prefix = "functions.",
                          .separator = "<|tool_call_argument_begin|>",
                          .counts_ids = true};
constexpr NamedForm kGemma{
    .marks = {.section = {}, .section_end = {}, .call = "<|tool_call>", .call_end = "<tool_call|>"},
    .prefix = "call:",
    .braces = true,
    .think = {.begin = "<|channel>thought", .end = "<channel|>", .label = "thought"}};

constexpr std::string_view kFence = "```";

// The name in a text up to the arguments; empty: it has none.
std::string_view name_in(const NamedForm& form, std::string_view head) {
  const size_t at = form.separator.empty() ? head.size() : head.find(form.separator);
  if (at == std::string_view::npos) return {};
  std::string_view name = head.substr(0, at);
  const std::string_view behind = skip_space(head.substr(at + (at < head.size() ? form.separator.size() : 0)));
  // The type came first, and the arguments are fenced.
  if (!behind.empty() && !form.marks.tail.empty()) name = behind.substr(0, behind.find(kFence));
  name = trim_end(skip_space(name));
  if (name.starts_with(form.prefix)) {
    name.remove_prefix(form.prefix.size());
  } else if (form.separator.empty()) {
    return {};
  }
  if (const size_t colon = name.rfind(':'); form.counts_ids && colon != std::string_view::npos) {
    const bool counts = name.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
    if (counts) name = name.substr(0, colon);
  }
  return name.find_first_of("\n<") == std::string_view::npos ? name : std::string_view();
}

// It has ToolCallScanner's functions.
class NamedCallScanner {
 public:
  using State = ToolCallScanner::State;

  explicit NamedCallScanner(const NamedForm& form) : form_(form) {}

  State push(char c) {
    if (!announced()) {
      if (c != '{') {
        head_ += c;
        return head_.size() > kLongestHead ? State::kBroken : State::kReading;
      }
      name_ = name_in(form_, head_);
      if (name_.empty()) return State::kBroken;
    }
    if (form_.braces) return braces_.push(c, arguments_);
    const JsonValueScanner::Step step = value_.push(c);
    if (step == JsonValueScanner::Step::kBroken || step == JsonValueScanner::Step::kEndBefore) return State::kBroken;
    arguments_ += c;
    return step == JsonValueScanner::Step::kLast ? State::kDone : State::kReading;
  }

  bool announced() const { return !name_.empty(); }
  const std::string& name() const { return name_; }
  std::string take_arguments() { return std::exchange(arguments_, {}); }
  std::string take_rest() { return {}; }
  bool finish(TextEnd end) {
    if (form_.braces && end == TextEnd::kModel) braces_.end(arguments_);
    return false;
  }

 private:
  static constexpr size_t kLongestHead = 512;  // longer ones are text

  const NamedForm form_;
  std::string head_, name_, arguments_;
  JsonValueScanner value_;
  BraceArguments braces_;
};

class NamedCalls final : public LiteralCalls {
 public:
  NamedCalls(const FormatProbe& probe, const NamedForm& form)
      : LiteralCalls(probe, form.marks, form.braces ? std::optional(kBraces) : std::nullopt,
                     {form.separator, form.think.token(), form.think.end, form.braces ? kBraceQuote : form.separator}),
        form_(form),
        tells_tools_(form.marks.tail == kFence && !probe.shows_tools()) {}

  std::shared_ptr<const AnswerFormat> without_calls() const override {
    auto same = std::make_shared<NamedCalls>(*this);
    same->calls_ = false;
    return same;
  }
  ThinkTags think_tags() const override { return form_.think; }
  Result<std::string> render(const Engine& engine, Conversation chat,
                             const std::atomic<bool>* cancelled) const override {
    std::string& variables = chat.template_kwargs_json;
    if (form_.counts_ids) {
      count_call_ids(chat.messages);
      const auto declared = typescript_tools(chat.tools_json);
      if (declared) add_variable(variables, "tools_ts_str", json_quote(*declared));
    }
    // DeepSeek's and Kimi's templates have another name for the variable.
    const std::string thinks(variables.empty() ? "" : find_member(variables, "enable_thinking"));
    if (!form_.braces && !thinks.empty()) add_variable(variables, "thinking", thinks);
    if (tells_tools_) {
      const std::string arguments = R"({"parameter": "value"})", separator(form_.separator);
      const std::string call = form_.typed ? "function" + separator + "name\n```json\n" + arguments + "\n```"
                                           : "name" + separator + arguments;
      const auto& [section, section_end, mark, end, tail, several, alone, lead, trail, between] = form_.marks;
      tell_tools(chat, std::string(section).append(mark).append(call).append(end).append(section_end));
    }
    return AnswerFormat::render(engine, std::move(chat), cancelled);
  }
  std::unique_ptr<OutputStage> stage(const OutputParser::Options& options) const override {
    if (!calls_) return content_stage();
    return marked_stage(options, std::make_unique<TaggedStage<NamedCallScanner>>(form_.marks, NamedCallScanner(form_)));
  }

  bool writes_bare_text() const override { return form_.braces; }

  std::string call_rule(const Tool& tool, const std::string& arguments) const override {
    const auto& [section, section_end, mark, end, tail, several, alone, lead, trail, between] = form_.marks;
    if (form_.typed) {
      return spelt({mark, "function", form_.separator, tool.name, "\n", kFence, "json\n"}) + arguments + " " +
             spelt({"\n", kFence, end});
    }
    if (form_.counts_ids) {
      return spelt({mark, form_.prefix, tool.name, ":"}) + "/[0-9]+/ " + spelt({form_.separator}) + arguments + " " +
             spelt({end});
    }
    return spelt({mark, tool.name, form_.separator}) + arguments + " " + spelt({end});
  }

 private:
  static constexpr LiteralStyle kBraces{.json = kJsonNumber | kJsonBoolean | kJsonNull,
                                        .prefix = "call:",
                                        .quote = kBraceQuote,
                                        .comma = ",",
                                        .colon = ":"};

  const NamedForm form_;
  const bool tells_tools_;  // DeepSeek's templates print calls, but no tools
};

template <const NamedForm& form>
Result<std::shared_ptr<const AnswerFormat>> named(const FormatProbe& probe) {
  NamedForm own = form;
  if (probe.call.find("function<｜tool▁sep｜>volley_probe") != std::string::npos) {
    own.typed = true;
    own.marks.between = "\n";
  }
  return std::shared_ptr<const AnswerFormat>(std::make_shared<const NamedCalls>(probe, own));
}

}  // namespace

extern const AnswerFormatKind kDeepSeekFormat{{"deepseek_v3", "deepseek_v31", "deepseekv3", "deepseekv31"},
                                              {},
                                              [](const FormatProbe& probe) {
                                                return follows(probe.call, "<｜tool▁sep｜>", "volley_probe") ||
                                                       follows(probe.call, "<｜tool▁call▁begin｜>", "volley_probe");
                                              },
                                              named<kDeepSeek>,
                                              /*tells_tools=*/true};
extern const AnswerFormatKind kKimiFormat{
    {"kimi_k2"},
    {},
    [](const FormatProbe& probe) { return follows(probe.call, "<|tool_call_argument_begin|>", "{"); },
    named<kKimi>};
extern const AnswerFormatKind kGemmaFormat{
    {"gemma4"},
    {"gemma4"},
    [](const FormatProbe& probe) { return follows(probe.call, "<|tool_call>", "call:volley_probe{"); },
    named<kGemma>};

}  // namespace volley::serve
