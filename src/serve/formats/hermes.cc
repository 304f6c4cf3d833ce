// <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>: Hermes 2 Pro and 3, Qwen 2.5 and 3.
#include "serve/formats/tagged_calls.h"
#include "serve/formats/tool_call_scanner.h"

namespace volley::serve {
namespace {

class Hermes final : public TaggedCalls {
 public:
  explicit Hermes(const FormatProbe& probe)
      : TaggedCalls(probe, {.section = {},
                            .section_end = {},
                            .call = "<tool_call>",
                            .call_end = "</tool_call>",
                            .lead = "\n",
                            .trail = "\n",
                            .between = "\n"}) {}

  std::unique_ptr<OutputStage> stage(const OutputParser::Options& options) const override {
    const ToolCallScanner scanner({.other_members = true, .arguments_may_miss = true});
    return marked_stage(options, std::make_unique<TaggedStage<ToolCallScanner>>(marks_, scanner));
  }
};

}  // namespace

extern const AnswerFormatKind kHermesFormat{
    {"hermes", "qwen", "qwen25", "qwen3"},
    {},
    [](const FormatProbe& probe) { return follows(probe.call, "<tool_call>", "{"); },
    made<Hermes>};

}  // namespace volley::serve
