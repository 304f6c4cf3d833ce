// From the text that a model generates to what a chat client sees: content, reasoning, tool calls. Text in pieces,
// deltas out: however the text is cut into pieces, the concatenated deltas are the same. A message without streaming is
// what one parser gave in all. One parser a choice; one thread at a time.
//
// The text is Event::text, detokenized without special tokens: <tool_call>, <think> and their ends are ordinary added
// tokens in Qwen's and DeepSeek's vocabularies and stay, <|python_tag|>, [TOOL_CALLS] and [ARGS] may be there or not.
//
// What is not in the format's form is content, with every character: markers that lead to nothing, objects without a
// name, an end in the middle of a call's head. Once a call was announced it stays one, and where it breaks off, its
// arguments are closed and the rest is content (serve/output_writer.h). White space directly before a call, after the
// last one, and around reasoning belongs to the form and is dropped.
//
// Calls between <tool_call> marks inside the reasoning are reasoning. Only where the text ends with them, whole, and
// never closed the reasoning, they are calls. So deltas stop at such a mark until it is known which of the two holds.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/formats/output_format.h"
#include "serve/formats/output_writer.h"
#include "serve/formats/tool_parameters.h"

namespace volley::serve {

// Where the generated text stands at its beginning.
enum class ReasoningStart {
  kOff,     // <think> has no meaning
  kClosed,  // the model may begin with <think>
  kOpen,    // the prompt ended with <think>
};

inline constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";

// Why an answer's text ends. stop_token_ids: the client's own.
TextEnd end_of(const Finish& finish, std::span<const TokenId> stop_token_ids);

// One stage of a parser: takes text and writes the answer.
class OutputStage {
 public:
  virtual ~OutputStage() = default;
  virtual void push(std::string_view text, OutputWriter& out) = 0;
  virtual void mark(TokenId, OutputWriter&) {}              // one of AnswerFormat::marks(), between two texts
  virtual void finish(TextEnd end, OutputWriter& out) = 0;  // what was held back
};

class OutputParser {
 public:
  struct Options {
    // As it is behind the prompt, and without calls for requests that may not make any.
    std::shared_ptr<const AnswerFormat> format = plain_answers();
    ReasoningStart reasoning = ReasoningStart::kOff;   // other than kOff: thoughts are told from the content
    std::string call_id_prefix = "call_";              // ids are this and the call's index, or made of it
    std::shared_ptr<const ToolTypes> types = nullptr;  // AnswerFormat::reads_types(): of the request's tools
    // An answer's messages of one kind are paragraphs of one text: all of them, or (true) only neighbours.
    bool in_order = false;
    bool calls_or_json = false;  // the output is calls alone, or JSON, whose strings may hold anything
  };

  explicit OutputParser(const Options& options);

  OutputDelta push(std::string_view text);                                      // what is certain now; may be empty
  OutputDelta mark(TokenId token);                                              // a control token, between two texts
  OutputDelta push(std::string_view text, std::span<const Event::Mark> marks);  // as an event has them
  // The text is over: what was held back. A call that the model did not end is ended, one that was cut is not.
  OutputDelta finish(TextEnd end = TextEnd::kModel);

  // The number of calls announced so far. If there are any at the end, finish_reason is "tool_calls" instead of "stop",
  // but where the client's own stop cut the last one.
  int calls() const { return out_.calls(); }
  // Whether the arguments of the last call are JSON. At the end they are, unless the text was cut within them.
  bool last_call_is_whole() const { return !out_.has_open_call(); }

 private:
  OutputWriter out_;
  std::unique_ptr<OutputStage> stage_;
};

// Prepares a chat's request whose prompt is set. prompt: as AnswerFormat::render() gave it.
OutputParser::Options plan_answer(const Engine& engine, const OutputFormat& format, std::string_view prompt,
                                  GenerateRequest& request);

}  // namespace volley::serve
