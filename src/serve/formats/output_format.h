// In which form a model writes reasoning and tool calls, found by asking its chat template.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace volley::serve {

class AnswerFormat;  // serve/formats/answer_format.h
// The one without calls.
std::shared_ptr<const AnswerFormat> plain_answers();

struct OutputFormat {
  std::shared_ptr<const AnswerFormat> answers = plain_answers();
  bool reasoning = false;  // the model thinks: between <think> and </think>, before it answers; or in the format's way
  // The vocabulary has <think> and </think> as tokens that text shows: a grammar then asks for them, as the model was
  // trained, not for their letters.
  bool think_tokens = false;
  bool several_calls = true;  // its template takes more than one call in a turn
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
// where that shows no format that is known, tools are "hermes" (a required call works with any model) and reasoning is
// off.
Result<OutputFormat> find_output_format(const Engine& engine, std::string_view tool_parser,
                                        std::string_view reasoning_parser);

}  // namespace volley::serve
