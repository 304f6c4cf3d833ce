// Finds a model's form of reasoning and tool calls by probing its chat template.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace volley::serve {

class AnswerFormat;  // see serve/formats/answer_format.h
// The format without calls.
std::shared_ptr<const AnswerFormat> plain_answers();

struct OutputFormat {
  std::shared_ptr<const AnswerFormat> answers = plain_answers();
  // the model thinks before it answers, between <think> and </think>, or in the format's own way
  bool reasoning = false;
  // The vocabulary has <think> and </think> as visible tokens. A grammar then asks for these, as the model was trained,
  // not for their letters.
  bool think_tokens = false;
  bool several_calls = true;  // its template takes more than one call in a turn
  // The chat template's default for `enable_thinking`. No value: the template does not read it.
  std::optional<bool> thinks_by_default;
  bool reads_reasoning_effort = false;  // `reasoning_effort` changes the chat template's prompt
  // Why calls that the model chooses to make may be missed; logged when a request has tools.
  std::string tool_warning;
};

// `tool_parser`: "auto", "none" or the name of an AnswerFormatKind. `reasoning_parser`: "auto", "none", "think" (also
// "qwen3", "deepseek_r1", "deepseek-r1") or the name of a kind that tells thoughts, too (harmony, gemma4).
// kInvalidArgument lists the names. Such a kind takes both the tools and the reasoning or neither ("none" for one
// leaves it in the content); kFailedPrecondition names a missing control token. "auto" renders a few made-up
// conversations with the engine's chat template and looks at the output. If no known format shows, tools are "hermes"
// (a required call works with any model) and reasoning is off.
Result<OutputFormat> find_output_format(const Engine& engine, std::string_view tool_parser,
                                        std::string_view reasoning_parser);

}  // namespace volley::serve
