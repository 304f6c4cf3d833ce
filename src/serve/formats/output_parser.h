// Turns generated text into a chat client's view: content, reasoning, tool calls. Text comes in pieces and deltas go
// out; any cuts give the same concatenated deltas. A message without streaming is one parser's whole output. One parser
// for each choice; one thread at a time.
//
// The text is Event::text, detokenized without special tokens. <tool_call>, <think> and their ends are ordinary added
// tokens of Qwen's and DeepSeek's vocabularies and stay; <|python_tag|>, [TOOL_CALLS] and [ARGS] may be missing.
// A format that needs tokens which text hides has them as marks, and as their letters (AnswerFormat::spelling()).
//
// Text outside of the format's form is content, with every character: markers that lead nowhere, objects without a
// name, an end inside a call's head. An announced call stays a call; if it breaks off, its arguments are closed and the
// rest is content (serve/formats/output_writer.h). White space directly before a call, after the last one, and around
// reasoning belongs to the form and is dropped.
//
// Calls between AnswerFormat::call_tags() inside the reasoning are reasoning, unless the text ends with them, whole,
// and the reasoning was never closed. So deltas stop at such a mark until this is decided.
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

// The state at the beginning of the generated text.
enum class ReasoningStart {
  kOff,     // <think> has no meaning
  kClosed,  // the model may begin with <think>
  kOpen,    // the prompt ended with <think>
};

// Marks around thoughts.
struct ThinkTags {
  std::string_view begin = "<think>", end = "</think>";
  std::string_view label = {};  // begin is a token and this

  std::string_view token() const { return begin.substr(0, begin.size() - label.size()); }
};

// Why an answer's text ends. stop_token_ids: the client's own.
TextEnd end_of(const Finish& finish, std::span<const TokenId> stop_token_ids);

// One stage of a parser: takes text and writes the answer.
class OutputStage {
 public:
  virtual ~OutputStage() = default;
  virtual void push(std::string_view text, OutputWriter& out) = 0;
  virtual void mark(TokenId, OutputWriter&) {}              // one of AnswerFormat::marks(), between two texts
  virtual void finish(TextEnd end, OutputWriter& out) = 0;  // writes held text
};

class OutputParser {
 public:
  struct Options {
    // The format behind the prompt; without calls if the request may make none.
    std::shared_ptr<const AnswerFormat> format = plain_answers();
    ReasoningStart reasoning = ReasoningStart::kOff;   // not kOff: thoughts are separated from content
    std::string call_id_prefix = "call_";              // an id is this and the call's index, or made of both
    std::shared_ptr<const ToolTypes> types = nullptr;  // the request's tools, for AnswerFormat::reads_types()
    // Messages of one kind become paragraphs of one text: all of them, or (true) only neighbours.
    bool in_order = false;
    bool calls_or_json = false;  // the output is calls alone or JSON, whose strings may hold any text
  };

  explicit OutputParser(const Options& options);

  OutputDelta push(std::string_view text);                                      // the certain part; may be empty
  OutputDelta mark(TokenId token);                                              // a control token, between two texts
  OutputDelta push(std::string_view text, std::span<const Event::Mark> marks);  // as in an event
  // Ends the text and returns held text. A call that the model did not end is ended, one that was cut is not.
  OutputDelta finish(TextEnd end = TextEnd::kModel);

  // Number of announced calls. If there are any at the end, finish_reason is "tool_calls" instead of "stop", unless the
  // client's own stop cut the last one.
  int calls() const { return out_.calls(); }
  // Whether the last call's arguments are complete JSON. At the end they are, unless the text was cut inside them.
  bool last_call_is_whole() const { return !out_.has_open_call(); }

 private:
  void read(TokenId mark);

  const std::shared_ptr<const AnswerFormat> format_;
  OutputWriter out_;
  std::unique_ptr<OutputStage> stage_;
};

// Prepares a chat's request whose prompt is set. prompt: from AnswerFormat::render().
OutputParser::Options plan_answer(const Engine& engine, const OutputFormat& format, std::string_view prompt,
                                  GenerateRequest& request);

}  // namespace volley::serve
