#include "serve/tool_choice.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "serve/harmony.h"
#include "serve/json_text.h"
#include "serve/reasoning_grammar.h"
#include "serve/tool_parameters.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using Choice = ToolRequest::Choice;

constexpr const char* kNoParameters = R"({"type": "object", "properties": {}, "additionalProperties": false})";

std::string json_string(std::string_view text) {
  return json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

// The object in `object[name]`, or null.
const json* member_object(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? &*found : nullptr;
}

// `raw` is the text of `value`, one element of "tools".
bool read_tool(FieldReader& in, const json& value, std::string_view raw, const std::string& where, Tool& out) {
  const auto wrong = [&](const std::string& message) {
    in.fail(invalid_field("tools", where + message));
    return false;
  };
  if (!value.is_object() || value.value("type", json()) != "function") {
    return wrong(R"( must be an object with "type": "function"; other types of tools are not supported.)");
  }
  const json* function = member_object(value, "function");
  if (!function || !function->contains("name") || !function->at("name").is_string() || function->at("name") == "") {
    return wrong(".function must be an object with a \"name\".");
  }
  out.name = function->at("name").get<std::string>();
  const json strict = function->value("strict", json());
  if (!strict.is_boolean() && !strict.is_null()) return wrong(".function.strict must be true or false.");
  out.strict = strict == true;
  const json parameters = function->value("parameters", json());
  if (parameters.is_null()) {
    out.parameters_json = kNoParameters;
    return true;
  }
  if (!parameters.is_object() || (parameters.contains("type") && parameters.at("type") != "object")) {
    return wrong(".function.parameters must be a JSON schema of an object.");
  }
  out.parameters_json = find_member(find_member(raw, "function"), "parameters");
  return true;
}

bool read_tool_list(FieldReader& in, const json& list, std::string_view raw, std::vector<Tool>& out) {
  const std::vector<std::string_view> texts = array_elements(raw);
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string where = "tools[" + std::to_string(i) + "]";
    Tool tool;
    if (!read_tool(in, list.at(i), texts[i], where, tool)) return false;
    if (!names.insert(tool.name).second) {
      in.fail(invalid_field("tools", where + ": there is another tool named " + json_string(tool.name) + "."));
      return false;
    }
    out.push_back(std::move(tool));
  }
  return true;
}

void fail_choice(FieldReader& in) {
  in.fail(invalid_field(
      "tool_choice",
      R"("tool_choice" must be "none", "auto", "required", {"type": "function", "function": {"name": …}} or )"
      R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}.)"));
}

// The tools of a request by name.
using ToolIndex = std::unordered_map<std::string, Tool>;

ToolIndex index_tools(std::vector<Tool>& tools) {
  ToolIndex index;
  for (Tool& tool : tools) {
    std::string name = tool.name;
    index.emplace(std::move(name), std::move(tool));
  }
  return index;
}

// Moves the tool that `reference`, {"type": "function", "function": {"name": …}}, names from `from` to `to`.
bool allow_tool(FieldReader& in, const json& reference, ToolIndex& from, std::vector<Tool>& to) {
  const json* function = reference.is_object() ? member_object(reference, "function") : nullptr;
  if (!function || !function->contains("name") || !function->at("name").is_string()) {
    fail_choice(in);
    return false;
  }
  const std::string name = function->at("name").get<std::string>();
  const auto tool = from.find(name);
  if (tool == from.end()) {
    in.fail(invalid_field("tool_choice",
                          "\"tool_choice\" names " + json_string(name) + ", which \"tools\" does not hold."));
    return false;
  }
  to.push_back(std::move(tool->second));
  from.erase(tool);
  return true;
}

void read_allowed(FieldReader& in, const json& allowed, ToolRequest& out) {
  const json mode = allowed.value("mode", json());
  const json list = allowed.value("tools", json());
  if ((mode != "auto" && mode != "required") || !list.is_array() || list.empty()) {
    fail_choice(in);
    return;
  }
  std::vector<Tool> chosen;
  ToolIndex rest = index_tools(out.tools);
  for (const json& reference : list) {
    if (!allow_tool(in, reference, rest, chosen)) return;
  }
  if (!rest.empty()) out.constrained_by = "tool_choice";
  out.tools = std::move(chosen);
  out.choice = mode == "auto" ? Choice::kAuto : Choice::kRequired;
}

void read_choice(FieldReader& in, const json& choice, ToolRequest& out) {
  if (choice == "none") {
    out.choice = Choice::kNone;
  } else if (choice == "auto") {
    out.choice = Choice::kAuto;
  } else if (choice == "required") {
    out.choice = Choice::kRequired;
  } else if (choice.is_object() && choice.value("type", json()) == "function") {
    std::vector<Tool> chosen;
    ToolIndex rest = index_tools(out.tools);
    if (!allow_tool(in, choice, rest, chosen)) return;
    out.tools = std::move(chosen);
    out.choice = Choice::kRequired;
    out.parallel = false;
  } else if (choice.is_object() && choice.value("type", json()) == "allowed_tools" &&
             member_object(choice, "allowed_tools")) {
    read_allowed(in, choice.at("allowed_tools"), out);
  } else {
    fail_choice(in);
  }
}

// A schema with the separators that the rest of the call has, and `more` members. With white space anywhere, a grammar
// could not go on from the schema's end in the middle of a token such as "}}".
std::string with_separators(const std::string& schema_json, const std::string& more) {
  std::string schema =
      R"({"x-guidance": {"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "})" + more;
  for (const auto& [key, value] : object_members(schema_json)) {
    if (key == "x-guidance") continue;
    schema.append(", ").append(json_string(key)).append(": ").append(value);
  }
  return schema + "}";
}

// The schema of arguments: always of an object.
std::string arguments_schema(const std::string& parameters_json) {
  const auto members = object_members(parameters_json);
  const bool typed = std::any_of(members.begin(), members.end(), [](const auto& m) { return m.first == "type"; });
  return with_separators(parameters_json, typed ? "" : R"(, "type": "object")");
}

std::string regex_escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) && c != '_' && c != '<' && c != '>') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string grammar_of(const CallMarker& marker) {
  return marker.token ? "<[" + std::to_string(*marker.token) + "]>" : json_string(marker.text);
}

// Writes one grammar in llguidance's Lark dialect.
class GrammarWriter {
 public:
  GrammarWriter(const ToolRequest& request, const OutputFormat& format, ReasoningStart reasoning)
      : request_(request),
        format_(format),
        reasoning_(reasoning),
        parallel_(request.parallel && format.several_calls) {}

  std::string write() { return "start: " + output(request_.choice == Choice::kAuto ? Answer::kFree : Answer::kNone); }

  // The lead of a grammar (text::GrammarCompiler): calls, or that grammar's text.
  std::string write_lead() { return "whole: " + output(Answer::kRule); }

 private:
  // What an answer without calls is: there is none, any text, or what the rule `text` says.
  enum class Answer { kNone, kFree, kRule };

  std::string output(Answer answer) {
    const ThinkRules think = think_rules(format_, reasoning_);
    rules_ += think.rules;
    const bool free = answer == Answer::kFree;
    std::string start;
    if (format_.tools == ToolFormat::kLlama) {
      rules_ += "call: object\n";
      start = free ? llama_free() : calls("\"; \"");
    } else if (format_.tools == ToolFormat::kMistral) {
      start = mistral(free);
    } else if (format_.tools == ToolFormat::kHarmony) {
      start = harmony(answer, think);
    } else {
      start = free ? hermes_free() : hermes_required();
    }
    if (answer == Answer::kRule && format_.tools != ToolFormat::kHarmony) start = "(" + start + " | text)";
    write_objects();
    return think.start + start + "\n" + rules_;
  }

  std::string calls(const std::string& separator) const {
    return parallel_ ? "call (" + separator + " call)*" : "call";
  }

  void hermes_call(const std::string& begin) {
    const std::string end = format_.tool_call_tokens ? R"("\n" </tool_call>)" : R"("\n</tool_call>")";
    rules_ += "call: " + begin + R"( "\n" object )" + end + "\n";
  }

  std::string hermes_required() {
    hermes_call(format_.tool_call_tokens ? "<tool_call>" : "\"<tool_call>\"");
    return calls(R"("\n")");
  }

  void text_without(std::string_view marker) {
    rules_ += "TEXT: /(?s:.+)/ & ~/(?s:.*)" + regex_escape(marker) + "(?s:.*)/\n";
  }
  void text_up_to(std::string_view marker) { rules_ += "to_call[lazy]: /(?s:.*)" + regex_escape(marker) + "/\n"; }

  // Any text, but what follows a marker must be a call.
  std::string hermes_free() {
    text_without("<tool_call>");
    if (format_.tool_call_tokens) {
      hermes_call("<tool_call>");
      return parallel_ ? "TEXT? (call TEXT?)*" : "TEXT? call?";
    }
    // Without a token for it, the marker is the end of whatever text is before it.
    text_up_to("<tool_call>");
    hermes_call("to_call");
    return parallel_ ? "call* TEXT?" : "(call | TEXT)?";
  }

  // The whole answer is calls, or text that cannot be taken for one.
  std::string llama_free() {
    rules_ += "TEXT: /[ \\t\\r\\n]*[^{ \\t\\r\\n](?s:.*)/\n";
    return "(" + calls("\"; \"") + " | TEXT)?";
  }

  // Calls end the answer. The list may have a space before it: models are trained with and without.
  std::string mistral(bool free) {
    const CallMarker& marker = format_.calls_marker;
    const std::string list = parallel_ ? R"(" "? "[" object (", " object)* "]")" : R"(" "? "[" object "]")";
    rules_ += "calls: " + (format_.named_calls ? "object" : list) + "\n";
    rules_ += "call: " + grammar_of(marker) + " calls\n";
    const std::string more = format_.named_calls && parallel_ ? " call*" : "";
    if (!free) return "call" + more;
    text_without(marker.text);
    if (marker.token) return "TEXT? (call" + more + ")?";
    text_up_to(marker.text);
    return "(to_call calls" + more + " | TEXT)?";
  }

  // A call ends the answer, so there is one at most. Free text may be a preamble before it.
  std::string harmony(Answer answer, const ThinkRules& think) {
    const auto token = [&](HarmonyMark mark) { return "<[" + std::to_string(format_.harmony->id_of(mark)) + "]> "; };
    const std::string channel = token(HarmonyMark::kChannel), message = token(HarmonyMark::kMessage);
    rules_ += "call: " + channel + "object\n";
    if (answer == Answer::kNone) return "call";
    rules_ += "preamble: " + channel + "\"commentary\" " + message + "/(?s:.+)/? " + token(HarmonyMark::kEnd) +
              token(HarmonyMark::kStart) + "\"assistant\"\n";
    if (answer == Answer::kRule) return "((preamble thought*)* call | " + think.answer + "text)";
    return "(preamble thought*)* (call | " + think.answer + "/(?s:.+)/?)";
  }

  void write_objects() {
    std::string choices;
    for (size_t i = 0; i < request_.tools.size(); ++i) {
      const Tool& tool = request_.tools[i];
      const std::string index = std::to_string(i);
      choices += (i > 0 ? " | tool_" : "tool_") + index;
      if (format_.tools == ToolFormat::kQwenCoder) {
        write_function(tool, index);
      } else {
        write_object(tool, index);
      }
    }
    rules_ += "object: " + choices + "\n";
    if (format_.tools == ToolFormat::kQwenCoder) {
      rules_ += "text_value[lazy]: /(?s:.*)<\\/parameter>/\n";
      rules_ += "any_parameter: \"<parameter=\" /[^<>\\n]+/ \">\\n\" text_value \"\\n\"\n";
    }
  }

  void write_object(const Tool& tool, const std::string& index) {
    if (format_.tools == ToolFormat::kHarmony) {
      const auto token = [&](HarmonyMark mark) { return "<[" + std::to_string(format_.harmony->id_of(mark)) + "]> "; };
      rules_ += "tool_" + index + ": " + json_string("commentary to=functions." + tool.name + " ") + " " +
                token(HarmonyMark::kConstrain) + "\"json\" " + token(HarmonyMark::kMessage) + "arguments_" + index +
                "\n";
    } else if (format_.tools == ToolFormat::kMistral && format_.named_calls) {
      rules_ += "tool_" + index + ": " + json_string(tool.name) + " " + grammar_of(format_.arguments_marker) +
                " arguments_" + index + "\n";
    } else {
      rules_ += "tool_" + index + ": " + object_head(tool.name) + " arguments_" + index + " \"}\"\n";
    }
    rules_ += "arguments_" + index + ": %json " + arguments_schema(tool.parameters_json) + "\n";
  }

  std::string object_head(const std::string& name) const {
    const std::string name_json = json_string(name);
    if (format_.tools != ToolFormat::kLlama) return json_string("{\"name\": " + name_json + ", \"arguments\": ");
    // The answer may be another object. The lexer takes the longest token that may come: these are that object's own.
    return R"("{" "\"name\"" ": " )" + json_string(name_json) + R"( ", " "\"parameters\"" ": ")";
  }

  void write_function(const Tool& tool, const std::string& index) {
    const ToolParameters parameters = tool_parameters(tool.parameters_json);
    std::string body = json_string("<function=" + tool.name + ">\n");
    for (size_t i = 0; i < parameters.listed.size(); ++i) {
      const ToolParameter& parameter = parameters.listed[i];
      const std::string rule = "parameter_" + index + "_" + std::to_string(i);
      body += " " + rule + (parameter.required ? "" : "?");
      write_parameter(parameter, tool.parameters_json, rule);
    }
    if (parameters.any_other) body += " any_parameter*";
    rules_ += "tool_" + index + ": " + body + " \"</function>\"\n";
  }

  void write_parameter(const ToolParameter& parameter, std::string_view parameters, const std::string& rule) {
    static constexpr std::string_view kEnd = "\n</parameter>\n";
    static constexpr size_t kTooManyRules = size_t{1} << 20;
    rules_ += rule + ": " + json_string("<parameter=" + parameter.name + ">\n");
    if (!parameter.texts.empty()) {
      for (size_t i = 0; i < parameter.texts.size(); ++i) {
        rules_ += (i == 0 ? " (" : " | ") + json_string(parameter.texts[i] + std::string(kEnd));
      }
      rules_ += ")\n";
    } else if (parameter.is_text()) {
      rules_ += R"( text_value "\n")"
                "\n";
    } else if (rules_.size() > kTooManyRules) {
      rules_ += "\n";  // the grammar is refused for its size: definitions need not stand in every other rule
    } else {
      rules_ += " value_" + rule + " " + json_string(kEnd) + "\n";
      rules_ += "value_" + rule + ": %json " +
                with_separators(with_definitions(parameter.schema_json, parameters), "") + "\n";
    }
  }

  const ToolRequest& request_;
  const OutputFormat& format_;
  const ReasoningStart reasoning_;
  const bool parallel_;
  std::string rules_;
};

}  // namespace

void read_tools(FieldReader& in, std::string_view body, ToolRequest& out) {
  const json* tools = in.get("tools");
  const json* choice = in.get("tool_choice");
  in.boolean("parallel_tool_calls", out.parallel);
  if (tools && !tools->is_array()) {
    in.fail(invalid_field("tools", "\"tools\" must be a list of tools, not " + excerpt(*tools) + "."));
    return;
  }
  if (!tools || tools->empty()) {
    if (choice && *choice != "none" && *choice != "auto") {
      in.fail(invalid_field("tool_choice", "\"tool_choice\" asks for a call, but the request has no \"tools\"."));
    }
    return;
  }
  const std::string_view raw = find_member(body, "tools");
  if (!read_tool_list(in, *tools, raw, out.tools)) return;
  out.choice = Choice::kAuto;
  if (choice) read_choice(in, *choice, out);
  if (out.choice == Choice::kNone) {
    out.tools.clear();
    return;
  }
  out.tools_json = raw;
  const bool strict = std::any_of(out.tools.begin(), out.tools.end(), [](const Tool& tool) { return tool.strict; });
  if (out.choice == Choice::kRequired) {
    out.constrained_by = "tool_choice";
  } else if (out.constrained_by.empty() && (strict || !out.parallel)) {
    out.constrained_by = strict ? "tools" : "parallel_tool_calls";
  }
}

ToolFormat tool_format(const ToolRequest& request, const OutputFormat& format) {
  return request.choice == Choice::kNone ? ToolFormat::kNone : format.tools;
}

std::shared_ptr<const ToolTypes> tool_types(const ToolRequest& request, const OutputFormat& format) {
  if (format.tools != ToolFormat::kQwenCoder && format.tools != ToolFormat::kMistral) return nullptr;
  auto types = std::make_shared<ToolTypes>();
  for (const Tool& tool : request.tools) {
    auto& parameters = (*types)[tool.name];
    for (const ToolParameter& p : tool_parameters(tool.parameters_json).listed) parameters[p.name] = p.types;
  }
  return types;
}

Result<std::optional<GrammarSpec>> tool_grammar(const ToolRequest& request, const OutputFormat& format,
                                                ReasoningStart reasoning) {
  if (request.constrained_by.empty()) return std::optional<GrammarSpec>();
  if (format.tools == ToolFormat::kNone) {
    return invalid_argument(
        "This server does not parse tool calls, so it cannot hold the model to one. Leave out \"tools\", or start it "
        "with --tool-call-parser.");
  }
  GrammarSpec grammar;
  grammar.kind = GrammarSpec::Kind::kLark;
  grammar.text = GrammarWriter(request, format, reasoning).write();
  return std::optional(std::move(grammar));
}

bool may_call_instead(const ToolRequest& request, const OutputFormat& format, ReasoningStart reasoning) {
  // A message of Harmony's that the prompt has begun is the answer.
  const bool begun = format.harmony && reasoning == ReasoningStart::kOff;
  return request.choice == Choice::kAuto && format.tools != ToolFormat::kNone && !begun;
}

GrammarSpec calls_or(GrammarSpec answer, const ToolRequest& request, const OutputFormat& format,
                     ReasoningStart reasoning) {
  if (format.tools == ToolFormat::kLlama && answer.kind == GrammarSpec::Kind::kJsonObject) {
    answer = {GrammarSpec::Kind::kJsonSchema, R"({"type": "object"})", {}};
  }
  // A call is an object, too: where white space may come, the lexer would not see the call's.
  if (format.tools == ToolFormat::kLlama && answer.kind == GrammarSpec::Kind::kJsonSchema) {
    answer.text = with_separators(answer.text, "");
  }
  answer.lead = GrammarWriter(request, format, reasoning).write_lead();
  return answer;
}

}  // namespace volley::serve
