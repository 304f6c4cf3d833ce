// <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>: Hermes 2 Pro and 3, Qwen 2.5 and 3. The grammar serves
// all calls between such tags.
#include "serve/formats/call_grammar.h"
#include "serve/formats/tagged_calls.h"
#include "serve/formats/tool_call_scanner.h"

namespace volley::serve {
namespace {

class Hermes final : public TaggedCalls {
 public:
  using TaggedCalls::TaggedCalls;

  std::unique_ptr<OutputStage> stage(const OutputParser::Options& options) const override {
    const ToolCallScanner scanner({.other_members = true, .arguments_may_miss = true});
    return marked_stage(options, std::make_unique<TaggedStage<ToolCallScanner>>(scanner));
  }
};

}  // namespace

std::string TaggedCalls::calls_rule(CallGrammar& grammar, bool free) const {
  const std::string tag = tokens_ ? "<tool_call>" : "\"<tool_call>\"";
  const std::string end = tokens_ ? R"("\n" </tool_call>)" : R"("\n</tool_call>")";
  // Allows any text, but a marker must be followed by a call. Without a token for it, the marker ends the text.
  const bool lazy = free && !tokens_;
  if (free) grammar.text_without("<tool_call>");
  if (lazy) grammar.text_up_to("<tool_call>");
  grammar.rules += "call: " + (lazy ? "to_call" : tag) + R"( "\n" object )" + end + "\n";
  if (!free) return grammar.calls(R"("\n")");
  if (lazy) return grammar.parallel ? "call* TEXT?" : "(call | TEXT)?";
  return grammar.parallel ? "TEXT? (call TEXT?)*" : "TEXT? call?";
}

extern const AnswerFormatKind kHermesFormat{
    {"hermes", "qwen", "qwen25", "qwen3"},
    {},
    [](const FormatProbe& probe) { return follows(probe.call, "<tool_call>", "{"); },
    made<Hermes>};

}  // namespace volley::serve
