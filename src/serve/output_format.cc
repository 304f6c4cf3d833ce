#include "serve/output_format.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "serve/harmony.h"
#include "serve/tool_call_scanner.h"

namespace volley::serve {
namespace {

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kCallsMarker = "[TOOL_CALLS]";

struct ToolParserName {
  std::string_view name;
  ToolFormat format;
};

constexpr ToolParserName kToolParsers[] = {
    {"none", ToolFormat::kNone},           {"hermes", ToolFormat::kHermes},     {"qwen", ToolFormat::kHermes},
    {"qwen25", ToolFormat::kHermes},       {"qwen3", ToolFormat::kHermes},      {"llama", ToolFormat::kLlama},
    {"llama3", ToolFormat::kLlama},        {"llama3_json", ToolFormat::kLlama}, {"qwen3_coder", ToolFormat::kQwenCoder},
    {"qwen3_xml", ToolFormat::kQwenCoder}, {"mistral", ToolFormat::kMistral},   {"harmony", ToolFormat::kHarmony},
    {"openai", ToolFormat::kHarmony},      {"gpt-oss", ToolFormat::kHarmony},
};
constexpr std::string_view kReasoningParsers[] = {"think", "qwen3", "deepseek_r1", "deepseek-r1"};
constexpr std::string_view kHarmonyReasoningParsers[] = {"harmony", "openai_gptoss", "gpt-oss"};

// Names and words that no template prints by itself.
constexpr const char* kAsk = R"([{"role": "user", "content": "Hello."}])";
constexpr const char* kCall = R"([
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "type": "function",
     "function": {"name": "volley_probe", "arguments": "{\"volley_place\": \"here\"}"}}]},
    {"role": "tool", "tool_call_id": "call00000", "name": "volley_probe", "content": "Done."}])";
constexpr const char* kTwoCalls = R"([
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "", "tool_calls": [
     {"id": "call00000", "type": "function", "function": {"name": "volley_probe", "arguments": "{}"}},
     {"id": "call00001", "type": "function", "function": {"name": "volley_probe", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "call00000", "name": "volley_probe", "content": "Done."},
    {"role": "tool", "tool_call_id": "call00001", "name": "volley_probe", "content": "Done."}])";
constexpr const char* kTools = R"([{"type": "function", "function": {"name": "volley_probe", "description": "Nothing.",
    "parameters": {"type": "object", "properties": {"volley_place": {"type": "string", "description": "Where."}},
                   "required": ["volley_place"]}}}])";
constexpr const char* kThought = R"([
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "<think>\nvolley_thought\n</think>\n\nvolley_answer"},
    {"role": "user", "content": "Hello."}])";

constexpr const char* kPreamble = R"([
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "volley_answer", "thinking": "volley_thought", "tool_calls": [
     {"id": "call00000", "type": "function", "function": {"name": "volley_probe", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "call00000", "name": "volley_probe", "content": "Done."}])";

// Empty if the template refuses the conversation: that says nothing.
std::string render(const Engine& engine, const char* messages, const char* tools, const char* kwargs,
                   bool generation_prompt) {
  ChatMessages chat;
  chat.messages_json = messages;
  chat.tools_json = tools;
  chat.template_kwargs_json = kwargs;
  chat.add_generation_prompt = generation_prompt;
  auto text = engine.render_chat(chat);
  return text.ok() ? *text : std::string();
}

std::string_view skip_space(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  return text;
}

// Is there a place where `first` stands directly before `second`, but for white space and colons?
bool follows(std::string_view text, std::string_view first, std::string_view second) {
  for (size_t at = text.find(first); at != std::string_view::npos; at = text.find(first, at + 1)) {
    std::string_view rest = skip_space(text.substr(at + first.size()));
    if (rest.starts_with(':')) rest = skip_space(rest.substr(1));
    if (rest.starts_with(second)) return true;
  }
  return false;
}

bool ends_with_marker(std::string_view text, std::string_view marker) {
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text.ends_with(marker);
}

bool prints_harmony(const Engine& engine) {
  const std::string ask = render(engine, kAsk, "", "", true);
  return ask.find("<|start|>user<|message|>") != std::string::npos && ends_with_marker(ask, "<|start|>assistant");
}

void probe_tools(const Engine& engine, OutputFormat& format) {
  const std::string call = render(engine, kCall, kTools, "", false);
  if (prints_harmony(engine)) {
    format.tools = ToolFormat::kHarmony;
  } else if (follows(call, "<tool_call>", "<function=volley_probe")) {
    format.tools = ToolFormat::kQwenCoder;
  } else if (follows(call, kCallsMarker, "[") || follows(call, kCallsMarker, "volley_probe")) {
    format.tools = ToolFormat::kMistral;
  } else if (follows(call, "<tool_call>", "{")) {
    format.tools = ToolFormat::kHermes;
  } else if (follows(call, "\"parameters\"", "{\"volley_place\"")) {
    format.tools = ToolFormat::kLlama;
  } else {
    format.tools = ToolFormat::kHermes;
    format.tool_warning =
        "The chat template shows no form of tool calls that this server knows: calls that the model makes by its own "
        "choice stay text. Calls under tool_choice \"required\" or a named tool work. --tool-call-parser sets the "
        "form.";
  }
  if (render(engine, kAsk, kTools, "", true).find("volley_probe") == std::string::npos) {
    format.tool_warning =
        "The chat template does not print tools, so the model does not see them. Give it a template that does.";
  }
}

bool probe_reasoning(const Engine& engine) {
  const std::string ask = render(engine, kAsk, "", "", true);
  if (ends_with_marker(ask, kThink)) return true;
  const std::string off = render(engine, kAsk, "", R"({"enable_thinking": false})", true);
  if (ends_with_marker(off, "</think>") && !ends_with_marker(ask, "</think>")) return true;
  // Templates of models that think drop old thoughts.
  const std::string thought = render(engine, kThought, "", "", true);
  return thought.find("volley_answer") != std::string::npos && thought.find("volley_thought") == std::string::npos;
}

// Which of the variables that steer thinking change what the template prints.
void probe_thinking_variables(const Engine& engine, OutputFormat& format) {
  const auto ask = [&](const char* kwargs) { return render(engine, kAsk, "", kwargs, true); };
  const std::string on = ask(R"({"enable_thinking": true})"), off = ask(R"({"enable_thinking": false})");
  if (on != off && !on.empty() && !off.empty()) format.thinks_by_default = ask("") != off;
  const std::string low = ask(R"({"reasoning_effort": "low"})"), high = ask(R"({"reasoning_effort": "high"})");
  format.reads_reasoning_effort = low != high && !low.empty() && !high.empty();
}

// A marker that is one token, and one that shows up in text.
bool is_token(const Engine& engine, std::string_view marker) {
  const auto ids = engine.encode(marker, /*add_special_tokens=*/false);
  return ids.ok() && ids->size() == 1 && engine.decode(*ids, /*skip_special_tokens=*/true) == marker;
}

// Markers of Mistral's are tokens that text need not show.
void find_markers(const Engine& engine, OutputFormat& format) {
  format.named_calls = follows(render(engine, kCall, kTools, "", false), kCallsMarker, "volley_probe");
  for (CallMarker* marker : {&format.calls_marker, &format.arguments_marker}) {
    const auto ids = engine.encode(marker->text, /*add_special_tokens=*/false);
    if (ids.ok() && ids->size() == 1) marker->token = ids->front();
  }
}

// Both parsers of one kind, or one of them "none".
Status find_harmony(const Engine& engine, bool tools, bool reasoning, std::string_view tool_parser,
                    std::string_view reasoning_parser, OutputFormat& format) {
  if (!tools && !reasoning) return {};
  if ((!tools && format.tools != ToolFormat::kNone) || (!reasoning && format.reasoning)) {
    return invalid_argument("The tool call parser \"" + std::string(tool_parser) + "\" and the reasoning parser \"" +
                            std::string(reasoning_parser) +
                            "\" do not go together: in Harmony one reads both. Give both \"auto\" or \"harmony\".");
  }
  std::string missing;
  const auto tokens = HarmonyTokens::find(engine, missing);
  if (!tokens) {
    return failed_precondition("The model's answers are in the Harmony format, but its tokenizer.json has no token " +
                               missing + ", which the format needs: use the checkpoint's own tokenizer, or set " +
                               "--tool-call-parser and --reasoning-parser to none to get the text as it is.");
  }
  format.harmony = std::make_shared<const HarmonyTokens>(*tokens);
  format.preambles = !render(engine, kPreamble, kTools, "", true).empty();
  return {};
}

Error unknown_name(std::string_view what, std::string_view name, std::string_view names) {
  return invalid_argument("There is no " + std::string(what) + " parser \"" + std::string(name) + "\": use " +
                          std::string(names) + ".");
}

}  // namespace

Result<OutputFormat> find_output_format(const Engine& engine, std::string_view tool_parser,
                                        std::string_view reasoning_parser) {
  OutputFormat format;
  const auto tools = std::find_if(std::begin(kToolParsers), std::end(kToolParsers),
                                  [&](const auto& p) { return p.name == tool_parser; });
  if (tools != std::end(kToolParsers)) {
    format.tools = tools->format;
  } else if (tool_parser == kAuto) {
    probe_tools(engine, format);
  } else {
    return unknown_name("tool call", tool_parser, "auto, none, hermes, llama, qwen3_coder, mistral or harmony");
  }
  if (format.tools == ToolFormat::kMistral) find_markers(engine, format);
  bool harmony_reasoning = std::ranges::count(kHarmonyReasoningParsers, reasoning_parser) > 0;
  if (reasoning_parser == kAuto) {
    harmony_reasoning = prints_harmony(engine);
    format.reasoning = harmony_reasoning || probe_reasoning(engine);
  } else if (harmony_reasoning) {
    format.reasoning = true;
  } else if (std::count(std::begin(kReasoningParsers), std::end(kReasoningParsers), reasoning_parser) > 0) {
    format.reasoning = true;
  } else if (reasoning_parser != "none") {
    return unknown_name("reasoning", reasoning_parser, "auto, none, think or harmony");
  }
  VOLLEY_RETURN_IF_ERROR(find_harmony(engine, format.tools == ToolFormat::kHarmony, harmony_reasoning, tool_parser,
                                      reasoning_parser, format));
  probe_thinking_variables(engine, format);
  // A second call would make the next turn's history one that the template refuses.
  format.several_calls =
      !render(engine, kTwoCalls, kTools, "", false).empty() || render(engine, kCall, kTools, "", false).empty();
  format.tool_call_tokens = is_token(engine, "<tool_call>") && is_token(engine, "</tool_call>");
  format.think_tokens = is_token(engine, kThink) && is_token(engine, "</think>");
  return format;
}

}  // namespace volley::serve
