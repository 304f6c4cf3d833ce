#include "apps/generate/answer_parts.h"

#include <algorithm>
#include <utility>

#include "serve/api/chat_messages.h"
#include "serve/formats/answer_format.h"

namespace volley::apps {

void parse_event(const Event& event, TokenColours& colours, serve::OutputParser& parser,
                 const std::function<void(const serve::OutputDelta&, TokenColours::Origin)>& show) {
  size_t at = 0;
  auto mark = event.marks.begin();
  const auto pass_marks = [&](TokenColours::Origin origin) {
    for (; mark != event.marks.end() && mark->at <= at; ++mark) show(parser.mark(mark->token), origin);
  };
  pass_marks(TokenColours::Origin::kUnknown);
  for (const TokenColours::Span& span : colours.spans(event)) {
    std::string_view text = span.text;
    while (!text.empty()) {
      const size_t size = mark == event.marks.end() ? text.size() : std::min(text.size(), mark->at - at);
      show(parser.push(text.substr(0, size)), span.origin);
      text.remove_prefix(size);
      at += size;
      pass_marks(span.origin);
    }
  }
}

void separate(const serve::OutputParser::Options& parts, Completion& completion) {
  serve::OutputParser parser(parts);
  std::string content;
  const auto take = [&](const serve::OutputDelta& delta) {
    content += delta.content();
    completion.reasoning += delta.reasoning();
  };
  take(parser.push(completion.text, completion.marks));
  take(parser.finish());
  completion.text = std::move(content);
}

Result<ChatRequests::Built> ChatRequests::build(const Prompt& prompt, const RequestSettings& defaults,
                                                const RequestSettings& line) {
  Built built;
  const auto* messages = std::get_if<PromptMessages>(&prompt);
  if (messages != nullptr && !format_) {
    VOLLEY_ASSIGN(format_, serve::find_output_format(engine_, "none", "auto"));
  }
  if (messages == nullptr || format_->answers->marks().empty()) {
    VOLLEY_ASSIGN(built.request, build_request(engine_, prompt, defaults, line));
    return built;
  }
  ChatMessages chat;
  chat.messages_json = messages->json;
  VOLLEY_ASSIGN(serve::Conversation conversation, serve::conversation_of(chat));
  VOLLEY_ASSIGN(const std::string rendered, format_->answers->render(engine_, std::move(conversation), nullptr));
  VOLLEY_ASSIGN(std::vector<TokenId> ids, format_->answers->encode(engine_, rendered, false, {}));
  VOLLEY_ASSIGN(built.request, build_request(engine_, Prompt(std::move(ids)), defaults, line));
  built.parts = serve::plan_answer(engine_, *format_, rendered, built.request);
  return built;
}

}  // namespace volley::apps
