// Implements include/volley/chat.h with the parts of the server's chats.
#include <volley/chat.h>

#include <utility>

#include "serve/api/chat_input.h"
#include "serve/api/chat_messages.h"
#include "serve/formats/call_grammar.h"

namespace volley {
namespace {

void append(const serve::OutputDelta& piece, ChatDelta& delta) {
  delta.content += piece.content();
  delta.reasoning += piece.reasoning();
  for (serve::OutputDelta::ToolCall& call : piece.tool_calls()) {
    if (delta.tool_calls.empty() || delta.tool_calls.back().index != call.index) {
      delta.tool_calls.push_back({call.index, std::move(call.id), std::move(call.name), {}});
    }
    delta.tool_calls.back().arguments += call.arguments;
  }
}

class Reader final : public ChatReader {
 public:
  explicit Reader(const serve::OutputParser::Options& options) : parser_(options) {}

  ChatDelta read(std::string_view text, std::span<const Event::Mark> marks, const Finish* finish) override {
    ChatDelta delta;
    append(parser_.push(text, marks), delta);
    if (finish) append(parser_.finish(serve::end_of(*finish, {})), delta);
    return delta;
  }

 private:
  serve::OutputParser parser_;
};

class Format final : public ChatFormat {
 public:
  Format(const Engine& engine, serve::OutputFormat format) : engine_(engine), format_(std::move(format)) {}

  Result<ChatPrompt> render(const ChatMessages& chat) const override {
    const serve::AnswerFormat& answers = *format_.answers;
    VOLLEY_ASSIGN(serve::Conversation conversation, serve::conversation_of(chat));
    VOLLEY_RETURN_IF_ERROR(answers.check(conversation));
    return serve::chat_prompt(engine_, answers, std::move(conversation), chat.cancelled);
  }

  std::vector<TokenId> end_tokens() const override { return format_.answers->end_tokens(); }

  std::unique_ptr<ChatReader> prepare(GenerateRequest& request, bool tools,
                                      const std::string& call_id_prefix) const override {
    serve::OutputParser::Options options;
    options.call_id_prefix = call_id_prefix;
    options.format = format_.answers->after(engine_, request.prompt);
    if (!tools || (request.grammar && !serve::may_hold_calls(*request.grammar))) {
      options.format = options.format->without_calls();
    }
    if (request.grammar) {
      const serve::ReasoningStart start = options.format->start(format_.reasoning, "");
      request.grammar = serve::after_reasoning(std::move(*request.grammar), format_, start);
    }
    options.reasoning = options.format->start(format_.reasoning, "");
    options.format->plan(format_.reasoning, request, options);
    return std::make_unique<Reader>(options);
  }

 private:
  const Engine& engine_;
  const serve::OutputFormat format_;
};

}  // namespace

Result<std::unique_ptr<ChatFormat>> ChatFormat::find(const Engine& engine) {
  VOLLEY_ASSIGN(serve::OutputFormat format, serve::find_output_format(engine, "auto", "auto"));
  if (format.answers->marks().empty()) return std::unique_ptr<ChatFormat>();
  return std::unique_ptr<ChatFormat>(std::make_unique<Format>(engine, std::move(format)));
}

Result<ChatPrompt> ChatFormat::prompt_of(const Engine& engine, const ChatMessages& chat) {
  if (serve::has_pictures(chat.messages_json)) {
    VOLLEY_ASSIGN(serve::Conversation conversation, serve::conversation_of(chat, engine.info().pictures.has_value()));
    return serve::chat_prompt(engine, *serve::plain_answers(), std::move(conversation), chat.cancelled);
  }
  ChatPrompt prompt;
  VOLLEY_ASSIGN(prompt.text, engine.render_chat(chat));
  VOLLEY_ASSIGN(prompt.tokens, engine.encode(prompt.text, false));
  return prompt;
}

}  // namespace volley
