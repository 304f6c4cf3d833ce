// From the text that a model generates to what a chat client sees: content, reasoning, tool calls. Text in pieces,
// deltas out: however the text is cut into pieces, the concatenated deltas are the same. A message without streaming is
// what one parser gave in all. One parser a choice; one thread at a time.
//
// The text is Event::text, detokenized without special tokens: <tool_call>, <think> and their ends are ordinary added
// tokens in Qwen's and DeepSeek's vocabularies and stay, <|python_tag|>, [TOOL_CALLS] and [ARGS] may be there or not.
//
// What is not in the format's form is content, with every character: markers that lead to nothing, objects without a
// name, an end in the middle of a call's head. Once a call was announced it stays one; its arguments are then what was
// generated, if need be cut off. White space directly before a call, after the last one, and around reasoning belongs
// to the form and is dropped.
//
// Calls between <tool_call> marks inside the reasoning are reasoning. Only where the text ends with them, whole, and
// never closed the reasoning, they are calls. So deltas stop at such a mark until it is known which of the two holds.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/output_format.h"
#include "serve/tool_parameters.h"

namespace volley::serve {

struct OutputDelta {
  struct ToolCall {
    int index = 0;
    std::string id;         // of a call's first delta; later ones have none
    std::string name;       // like id
    std::string arguments;  // a piece of the arguments' JSON text, as generated
  };

  std::string content;
  std::string reasoning;
  std::vector<ToolCall> tool_calls;  // at most one a call

  bool empty() const { return content.empty() && reasoning.empty() && tool_calls.empty(); }
};

// Where the generated text stands at its beginning.
enum class ReasoningStart {
  kOff,     // <think> has no meaning
  kClosed,  // the model may begin with <think>
  kOpen,    // the prompt ended with <think>
};

// Where a request's text begins, by the format and the prompt as the chat template rendered it. `continued` is the
// content of the final message that the model continues, if it does (continue_final_message): its open <think> counts
// too.
ReasoningStart reasoning_start(const OutputFormat& format, std::string_view prompt, std::string_view continued = {});

// The control tokens of Harmony (serve/harmony.h).
enum class HarmonyMark { kStart, kMessage, kChannel, kConstrain, kEnd, kReturn, kCall };
inline constexpr size_t kHarmonyMarks = 7;
class HarmonyReader;

// One stage of a parser: takes text and appends to a delta.
class OutputStage {
 public:
  virtual ~OutputStage() = default;
  virtual void push(std::string_view text, OutputDelta& out) = 0;
  virtual void mark(HarmonyMark, OutputDelta&) {}
  virtual void finish(OutputDelta& out) = 0;  // what was held back
};

class OutputParser {
 public:
  struct Options {
    ToolFormat tools = ToolFormat::kNone;  // kNone too for requests that may not call any
    ReasoningStart reasoning = ReasoningStart::kOff;
    std::string call_id_prefix = "call_";  // ids are this and the call's index, or (kMistral) made of it
    // Types of the request's tools, for kQwenCoder and kMistral (these need it, see ToolFormat); may be null.
    std::shared_ptr<const ToolTypes> types = nullptr;
    // The output is Harmony and stands here; `reasoning` other than kOff: thoughts are told from the content.
    std::shared_ptr<const HarmonyReader> harmony = nullptr;
    // Its messages of one kind are paragraphs of one text: all of them, or (true) only neighbours.
    bool in_order = false;
    bool calls_or_json = false;  // the output is calls alone, or JSON, whose strings may hold anything
  };

  explicit OutputParser(const Options& options);

  OutputDelta push(std::string_view text);  // what is certain now; may be empty
  OutputDelta mark(HarmonyMark mark);       // a control token, between two texts
  OutputDelta finish();                     // the text is over: what was held back

  // The number of calls announced so far. If there are any at the end, finish_reason is "tool_calls" instead of "stop",
  // but where the client's own stop cut the last one.
  int calls() const { return calls_; }
  // Whether the arguments of the last call are JSON. REQUIRES: calls() > 0.
  bool last_call_is_whole() const;

 private:
  OutputDelta count(OutputDelta delta);

  std::unique_ptr<OutputStage> stage_;
  int calls_ = 0;
  std::string last_arguments_;  // of the last call
};

}  // namespace volley::serve
