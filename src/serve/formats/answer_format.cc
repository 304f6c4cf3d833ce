#include "serve/formats/answer_format.h"

#include <utility>

#include "serve/formats/call_grammar.h"
#include "serve/formats/tool_call_scanner.h"
#include "serve/formats/tool_call_stages.h"
#include "serve/json/json_text.h"

namespace volley::serve {

std::shared_ptr<const AnswerFormat> plain_answers() {
  static const auto kPlain = std::make_shared<const AnswerFormat>();
  return kPlain;
}

void add_variable(std::string& kwargs_json, std::string_view name, const std::string& value) {
  if (kwargs_json.empty()) kwargs_json = "{}";
  if (!find_member(kwargs_json, name).empty()) return;
  const std::string rest(skip_space(std::string_view(kwargs_json).substr(kwargs_json.find('{') + 1)));
  kwargs_json = "{" + json_quote(name) + ": " + value + (rest.starts_with('}') ? "" : ", ") + rest;
}

void tell_tools(Conversation& chat, std::string_view form) {
  if (chat.tools_json.empty()) return;
  const std::string tools = "You can call these functions:\n" + std::exchange(chat.tools_json, {}) +
                            "\nTo call some, answer with nothing but this: " + std::string(form);
  std::vector<ChatMessage>& messages = chat.messages;
  if (!messages.empty() && (messages[0].role == "system" || messages[0].role == "developer")) {
    messages[0].content = messages[0].content.value_or("") + "\n\n" + tools;
  } else {
    messages.insert(messages.begin(), ChatMessage{"system", tools});
  }
}

Result<std::string> AnswerFormat::render(const Engine& engine, Conversation chat,
                                         const std::atomic<bool>* cancelled) const {
  // Only Harmony knows the role "developer". Elsewhere the system speaks, as in OpenAI's earlier models.
  for (ChatMessage& message : chat.messages) {
    if (message.role == "developer") message.role = "system";
  }
  return engine.render_chat(for_template(chat, cancelled));
}

ReasoningStart AnswerFormat::start(bool thinks, std::string_view prompt, std::string_view continued) const {
  if (!thinks) return ReasoningStart::kOff;
  // Checked only at the model's own beginning, because users may write <think>, too.
  if (trim_end(prompt).ends_with(think_tags().begin)) return ReasoningStart::kOpen;
  if (continued.empty()) return ReasoningStart::kClosed;
  const bool open = skip_space(continued).starts_with(think_tags().begin);
  if (open && continued.find(think_tags().end) == std::string_view::npos) return ReasoningStart::kOpen;
  return ReasoningStart::kOff;
}

std::unique_ptr<OutputStage> AnswerFormat::whole_stage(const OutputParser::Options& options) const {
  auto answer = stage(options);
  if (options.reasoning == ReasoningStart::kOff) return answer;
  return reasoning_stage(options, std::move(answer));
}

std::unique_ptr<OutputStage> AnswerFormat::stage(const OutputParser::Options&) const {
  return content_stage();
}

std::unique_ptr<ThoughtCounter> AnswerFormat::counter(ReasoningStart start) const {
  return std::make_unique<ReasoningCounter>(start, think_tags());
}

ThinkRules AnswerFormat::think_rules(ReasoningStart start, bool think_tokens) const {
  if (start == ReasoningStart::kOff) return {};
  const bool open = start == ReasoningStart::kOpen;
  ThinkRules think;
  think.start = open ? "think " : "think? ";
  const ThinkTags tags = think_tags();
  if (think_tokens) {
    think.rules =
        "think: " + (open ? "" : spelt({tags.token(), tags.label})) + "/(?s:.+)/? " + spelt({tags.end}) + "SPACE?\n";
  } else {
    think.rules = "think: thought SPACE?\n";
    think.rules +=
        "thought[lazy]: /" + (open ? "" : regex_escape(tags.begin)) + "(?s:.*)" + regex_escape(tags.end) + "/\n";
  }
  think.rules += "SPACE: /[ \\t\\r\\n]+/\n";
  return think;
}

std::string AnswerFormat::spelt(std::initializer_list<std::string_view> parts) const {
  std::string symbols;
  for (const std::string_view part : parts) symbols.append(part).append(part.empty() ? "" : " ");
  return symbols;
}

std::string AnswerFormat::answer_rule(CallGrammar& grammar) const {
  const std::string calls = calls_rule(grammar, grammar.answer == CallGrammar::Answer::kFree);
  return grammar.answer == CallGrammar::Answer::kRule ? "(" + calls + " | text)" : calls;
}

void AnswerFormat::add_tool(CallGrammar& grammar, const Tool& tool, const std::string& index) const {
  const std::string arguments = "arguments_" + index;
  grammar.rules += "tool_" + index + ": " + call_rule(tool, arguments) + "\n";
  grammar.rules += arguments + ": %json " + grammar.arguments_schema(tool) + "\n";
}

std::string AnswerFormat::call_rule(const Tool& tool, const std::string& arguments) const {
  return json_quote("{\"name\": " + json_quote(tool.name) + ", \"arguments\": ") + " " + arguments + " \"}\"";
}

}  // namespace volley::serve
