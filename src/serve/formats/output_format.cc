#include "serve/formats/output_format.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "serve/formats/answer_format.h"
#include "serve/formats/tool_call_scanner.h"

namespace volley::serve {

// Each is defined in the file of its class.
extern const AnswerFormatKind kHermesFormat, kLlamaFormat, kQwenCoderFormat, kGlmFormat, kMiniMaxFormat,
    kDeepSeekFormat, kKimiFormat, kGemmaFormat, kLfmFormat, kPythonFormat, kMistralFormat, kHarmonyFormat;

namespace {

using Kind = AnswerFormatKind;

// Errors list them in this order. If a template shows several, the last one counts.
constexpr const Kind* kKinds[] = {&kHermesFormat,  &kLlamaFormat,    &kQwenCoderFormat, &kGlmFormat,
                                  &kMiniMaxFormat, &kDeepSeekFormat, &kKimiFormat,      &kGemmaFormat,
                                  &kLfmFormat,     &kPythonFormat,   &kMistralFormat,   &kHarmonyFormat};

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kNone = "none";
constexpr std::string_view kThinkParsers[] = {"think", "qwen3", "deepseek_r1", "deepseek-r1"};

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
constexpr const char* kThought = R"([
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "<think>\nvolley_thought\n</think>\n\nvolley_answer"},
    {"role": "user", "content": "Hello."}])";

// Null: none.
template <class Is>
const Kind* last_kind(const Is& is) {
  const auto found = std::find_if(std::rbegin(kKinds), std::rend(kKinds), [&](const Kind* kind) { return is(*kind); });
  return found == std::rend(kKinds) ? nullptr : *found;
}

bool has_name(std::span<const std::string_view> names, std::string_view name) {
  return !name.empty() && std::ranges::count(names, name) > 0;
}

const Kind* kind_named(std::string_view name) {
  return last_kind([&](const Kind& kind) { return has_name(kind.names, name); });
}

const Kind& probe_tools(const FormatProbe& probe, OutputFormat& format) {
  const Kind* printed = last_kind([&](const Kind& kind) { return kind.is_printed(probe); });
  if (printed == nullptr) {
    format.tool_warning =
        "The chat template shows no form of tool calls that this server knows: calls that the model makes by its own "
        "choice stay text. Calls under tool_choice \"required\" or a named tool work. --tool-call-parser sets the "
        "form.";
  }
  if ((printed == nullptr || !printed->tells_tools) && !probe.shows_tools()) {
    format.tool_warning =
        "The chat template does not print tools, so the model does not see them. Give it a template that does.";
  }
  return printed == nullptr ? kHermesFormat : *printed;
}

constexpr const char* kThinking = R"({"enable_thinking": true, "thinking": true})";
constexpr const char* kNotThinking = R"({"enable_thinking": false, "thinking": false})";

bool probe_reasoning(const FormatProbe& probe) {
  const auto [begin, end, label] = ThinkTags();
  if (trim_end(probe.ask).ends_with(begin)) return true;
  // An earlier answer without thoughts.
  if (probe.call.find(std::string(begin).append(end)) != std::string::npos) return true;
  const std::string off = probe.asked(kNotThinking);
  if (trim_end(off).ends_with(end) && !trim_end(probe.ask).ends_with(end)) return true;
  // Templates of thinking models drop old thoughts.
  const std::string thought = probe.render(kThought, "", "", true);
  return thought.find("volley_answer") != std::string::npos && thought.find("volley_thought") == std::string::npos;
}

// Finds the variables for thinking that change the template's output.
void probe_thinking_variables(const FormatProbe& probe, OutputFormat& format) {
  const std::string on = probe.asked(kThinking), off = probe.asked(kNotThinking);
  if (on != off && !on.empty() && !off.empty()) format.thinks_by_default = probe.ask != off;
  const std::string low = probe.asked(R"({"reasoning_effort": "low"})"),
                    high = probe.asked(R"({"reasoning_effort": "high"})");
  format.reads_reasoning_effort = low != high && !low.empty() && !high.empty();
}

// listed: the name of a kind; may be empty.
Error unknown_name(std::string_view what, std::string_view name, std::string list,
                   std::string_view (*listed)(const Kind&)) {
  std::string last;
  for (const Kind* kind : kKinds) {
    if (listed(*kind).empty()) continue;
    if (!last.empty()) list += ", " + last;
    last = listed(*kind);
  }
  return invalid_argument("There is no " + std::string(what) + " parser \"" + std::string(name) + "\": use " + list +
                          " or " + last + ".");
}

}  // namespace

const char* const kProbeTools = R"([{"type": "function", "function": {"name": "volley_probe", "description": "Nothing.",
    "parameters": {"type": "object", "properties": {"volley_place": {"type": "string", "description": "Where."}},
                   "required": ["volley_place"]}}}])";

FormatProbe::FormatProbe(const Engine& e) : engine(e), ask(asked("")), call(render(kCall, kProbeTools, "", false)) {}

std::string FormatProbe::render(const char* messages, const char* tools, const char* kwargs,
                                bool generation_prompt) const {
  ChatMessages chat;
  chat.messages_json = messages;
  chat.tools_json = tools;
  chat.template_kwargs_json = kwargs;
  chat.add_generation_prompt = generation_prompt;
  auto text = engine.render_chat(chat);
  return text.ok() ? *text : std::string();
}

std::string FormatProbe::asked(const char* kwargs, const char* tools) const {
  return render(kAsk, tools, kwargs, true);
}

std::optional<TokenId> FormatProbe::token(std::string_view marker) const {
  const auto ids = engine.encode(marker, /*add_special_tokens=*/false);
  const bool is_one = ids.ok() && ids->size() == 1 && engine.decode(*ids, /*skip_special_tokens=*/false) == marker;
  return is_one ? std::optional(ids->front()) : std::nullopt;
}

bool FormatProbe::shows(std::string_view marker) const {
  const auto id = token(marker);
  return id && engine.decode({&*id, 1}, /*skip_special_tokens=*/true) == marker;
}

bool FormatProbe::shows_tools() const {
  return asked("", kProbeTools).find("volley_probe") != std::string::npos;
}

bool follows(std::string_view text, std::string_view first, std::string_view second) {
  for (size_t at = text.find(first); at != std::string_view::npos; at = text.find(first, at + 1)) {
    std::string_view rest = skip_space(text.substr(at + first.size()));
    if (rest.starts_with(':')) rest = skip_space(rest.substr(1));
    if (rest.starts_with(second)) return true;
  }
  return false;
}

Result<OutputFormat> find_output_format(const Engine& engine, std::string_view tool_parser,
                                        std::string_view reasoning_parser) {
  const FormatProbe probe(engine);
  OutputFormat format;
  const Kind* tools = tool_parser == kAuto ? &probe_tools(probe, format) : kind_named(tool_parser);
  if (tools == nullptr && tool_parser != kNone) {
    return unknown_name("tool call", tool_parser, "auto, none", [](const Kind& kind) { return kind.names[0]; });
  }
  // The format that separates thoughts by itself, if any.
  const Kind* thoughts = last_kind([&](const Kind& kind) {
    return reasoning_parser == kAuto ? kind.tells_thoughts() && kind.is_printed(probe)
                                     : has_name(kind.reasoning_names, reasoning_parser);
  });
  format.reasoning = thoughts != nullptr ||
                     (reasoning_parser == kAuto ? probe_reasoning(probe) : has_name(kThinkParsers, reasoning_parser));
  if (!format.reasoning && reasoning_parser != kAuto && reasoning_parser != kNone) {
    return unknown_name("reasoning", reasoning_parser, "auto, none, think",
                        [](const Kind& kind) { return kind.reasoning_names[0]; });
  }
  const Kind* both = tools != nullptr && tools->tells_thoughts() ? tools : thoughts;
  if (both != nullptr && ((tools != nullptr && tools != both) || (format.reasoning && thoughts != both))) {
    return invalid_argument("The tool call parser \"" + std::string(tool_parser) + "\" and the reasoning parser \"" +
                            std::string(reasoning_parser) + "\" do not go together: in " + std::string(both->names[0]) +
                            " one reads both. Give both \"auto\" or \"" + std::string(both->names[0]) + "\".");
  }
  if (const Kind* kind = both != nullptr ? both : tools) {
    VOLLEY_ASSIGN(format.answers, kind->make(probe));
    if (tools == nullptr) format.answers = format.answers->without_calls();
  }
  probe_thinking_variables(probe, format);
  // The template would refuse a history with a second call.
  format.several_calls = !probe.render(kTwoCalls, kProbeTools, "", false).empty() || probe.call.empty();
  const ThinkTags think = format.answers->think_tags();
  format.think_tokens = probe.token(think.token()) && probe.token(think.end);
  return format;
}

}  // namespace volley::serve
