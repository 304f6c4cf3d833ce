// include/volley/chat.h, by the parts of which the server's chats consist.
#include <volley/chat.h>

#include <utility>

#include "serve/harmony.h"
#include "serve/harmony_prompt.h"
#include "serve/output_format.h"
#include "serve/output_parser.h"
#include "serve/reasoning_grammar.h"

namespace volley {
namespace {

using serve::HarmonyMark;
using serve::HarmonyReader;
using serve::HarmonyTokens;

void append(serve::OutputDelta&& piece, ChatDelta& delta) {
  delta.content += piece.content;
  delta.reasoning += piece.reasoning;
  for (serve::OutputDelta::ToolCall& call : piece.tool_calls) {
    if (delta.tool_calls.empty() || delta.tool_calls.back().index != call.index) {
      delta.tool_calls.push_back({call.index, std::move(call.id), std::move(call.name), {}});
    }
    delta.tool_calls.back().arguments += call.arguments;
  }
}

class Reader final : public ChatReader {
 public:
  Reader(std::shared_ptr<const HarmonyTokens> tokens, const serve::OutputParser::Options& options)
      : tokens_(std::move(tokens)), parser_(options) {}

  ChatDelta read(std::string_view text, std::span<const Event::Mark> marks, bool last) override {
    ChatDelta delta;
    size_t begin = 0;
    for (const Event::Mark& mark : marks) {
      append(parser_.push(text.substr(begin, mark.at - begin)), delta);
      begin = mark.at;
      if (const auto known = tokens_->mark_of(mark.token)) append(parser_.mark(*known), delta);
    }
    append(parser_.push(text.substr(begin)), delta);
    if (last) append(parser_.finish(), delta);
    return delta;
  }

 private:
  const std::shared_ptr<const HarmonyTokens> tokens_;
  serve::OutputParser parser_;
};

class Harmony final : public ChatFormat {
 public:
  Harmony(const Engine& engine, serve::OutputFormat format) : engine_(engine), format_(std::move(format)) {}

  Result<ChatPrompt> render(const ChatMessages& chat) const override {
    VOLLEY_RETURN_IF_ERROR(serve::check_reasoning_effort(format_, chat));
    VOLLEY_ASSIGN(const std::string rendered, serve::render_chat_prompt(engine_, format_, chat));
    ChatPrompt prompt;
    VOLLEY_ASSIGN(prompt.tokens, serve::encode_chat(engine_, format_, rendered, false, {}));
    prompt.text = serve::unmarked(rendered);
    return prompt;
  }

  std::vector<TokenId> end_tokens() const override {
    return {format_.harmony->id_of(HarmonyMark::kReturn), format_.harmony->id_of(HarmonyMark::kCall)};
  }

  std::unique_ptr<ChatReader> prepare(GenerateRequest& request, bool tools,
                                      const std::string& call_id_prefix) const override {
    auto start = std::make_shared<HarmonyReader>(HarmonyReader::after(engine_, *format_.harmony, request.prompt));
    serve::OutputParser::Options options;
    options.call_id_prefix = call_id_prefix;
    if (tools && (!request.grammar || serve::may_hold_calls(*request.grammar))) options.tools = format_.tools;
    if (request.grammar) {
      request.grammar = serve::after_reasoning(std::move(*request.grammar), format_, serve::reasoning_start(*start));
    }
    serve::plan_harmony(*format_.harmony, std::move(start), format_.reasoning, request, options);
    return std::make_unique<Reader>(format_.harmony, options);
  }

 private:
  const Engine& engine_;
  const serve::OutputFormat format_;
};

}  // namespace

Result<std::unique_ptr<ChatFormat>> ChatFormat::find(const Engine& engine) {
  VOLLEY_ASSIGN(serve::OutputFormat format, serve::find_output_format(engine, "auto", "auto"));
  if (!format.harmony) return std::unique_ptr<ChatFormat>();
  return std::unique_ptr<ChatFormat>(std::make_unique<Harmony>(engine, std::move(format)));
}

}  // namespace volley
