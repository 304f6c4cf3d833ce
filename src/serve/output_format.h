// In which form a model writes reasoning and tool calls, found by asking its chat template.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace volley::serve {

class HarmonyTokens;  // serve/harmony.h

// How a model family writes tool calls.
enum class ToolFormat {
  kNone,
  // <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>, any number of them, text around them: Hermes 2 Pro and
  // 3, Qwen 2.5 and 3.
  kHermes,
  // The whole answer is {"name": "f", "parameters": {…}}, or several of these with "; " between them; <|python_tag|>
  // may stand before: Llama 3.1, 3.2 and 3.3.
  kLlama,
  // <tool_call>\n<function=f>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>, any number of them,
  // text around them; values are bare text, whose types the tools' schemas say: Qwen3-Coder.
  kQwenCoder,
  // Text, then [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …], or [TOOL_CALLS]f[ARGS]{…} for each call; an id may
  // stand between as [CALL_ID]…. Where text does not show these tokens, calls begin an answer: with the list, or with
  // the name of a known tool and its arguments. Mistral's models.
  kMistral,
  // Messages to=functions.f between control tokens, as all of the answer: serve/harmony.h. gpt-oss.
  kHarmony,
};

// A marker of Mistral's as a grammar asks for it: a token, else its letters.
struct CallMarker {
  std::string text;
  std::optional<TokenId> token;
};

struct OutputFormat {
  ToolFormat tools = ToolFormat::kNone;
  bool reasoning = false;  // the model thinks: between <think> and </think>, before it answers; or in Harmony's way
  // The vocabulary has the marker as a token that text shows: a grammar then asks for that token, as the model was
  // trained, not for the marker's letters.
  bool tool_call_tokens = false;
  bool think_tokens = false;
  bool several_calls = true;  // its template takes more than one call in a turn
  // kMistral.
  bool named_calls = false;  // the template writes a name and [ARGS] for each call, not a list
  CallMarker calls_marker{"[TOOL_CALLS]", {}};
  CallMarker arguments_marker{"[ARGS]", {}};
  // Not null: outputs are Harmony, whether tools and reasoning are told from content or not.
  std::shared_ptr<const HarmonyTokens> harmony;
  bool preambles = true;  // its template takes content beside thoughts and a call
  // What the chat template takes for `enable_thinking` by itself. Nothing: it does not read it.
  std::optional<bool> thinks_by_default;
  bool reads_reasoning_effort = false;  // the chat template prints another prompt for another `reasoning_effort`
  // Why calls that the model makes by its own choice may not be seen; for the log, when a request has tools.
  std::string tool_warning;
};

// `tool_parser`: "auto", "none", "hermes" (also "qwen", "qwen25", "qwen3"), "llama" (also "llama3", "llama3_json"),
// "qwen3_coder" (also "qwen3_xml"), "mistral" or "harmony" (also "openai", "gpt-oss").
// `reasoning_parser`: "auto", "none", "think" (also "qwen3", "deepseek_r1", "deepseek-r1") or "harmony" (also
// "openai_gptoss", "gpt-oss"). kInvalidArgument lists the names. Harmony takes the tools and the reasoning or neither
// ("none" beside it leaves one of them in the content); kFailedPrecondition names a control token that the vocabulary
// lacks. "auto" renders a few made-up conversations with the engine's chat template and looks at what it prints;
// where that shows no format that is known, tools are kHermes (a required call works with any model) and reasoning is
// off.
Result<OutputFormat> find_output_format(const Engine& engine, std::string_view tool_parser,
                                        std::string_view reasoning_parser);

}  // namespace volley::serve
