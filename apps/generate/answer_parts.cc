#include "apps/generate/answer_parts.h"

#include <algorithm>
#include <utility>

#include "serve/harmony.h"
#include "serve/harmony_prompt.h"

namespace volley::apps {

void parse_event(const Event& event, const serve::HarmonyTokens* tokens, TokenColours& colours,
                 serve::OutputParser& parser,
                 const std::function<void(const serve::OutputDelta&, TokenColours::Origin)>& show) {
  size_t at = 0;
  auto mark = event.marks.begin();
  const auto pass_marks = [&](TokenColours::Origin origin) {
    for (; mark != event.marks.end() && mark->at <= at; ++mark) {
      if (const auto known = tokens->mark_of(mark->token)) show(parser.mark(*known), origin);
    }
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

void separate(const AnswerParts& parts, Completion& completion) {
  serve::OutputParser parser(parts.options);
  std::string content;
  const auto take = [&](const serve::OutputDelta& delta) {
    content += delta.content;
    completion.reasoning += delta.reasoning;
  };
  const std::string_view text = completion.text;
  size_t begin = 0;
  for (const Event::Mark& mark : completion.marks) {
    take(parser.push(text.substr(begin, mark.at - begin)));
    begin = mark.at;
    if (const auto known = parts.tokens->mark_of(mark.token)) take(parser.mark(*known));
  }
  take(parser.push(text.substr(begin)));
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
  if (messages == nullptr || !format_->harmony) {
    VOLLEY_ASSIGN(built.request, build_request(engine_, prompt, defaults, line));
    return built;
  }
  ChatMessages chat;
  chat.messages_json = messages->json;
  VOLLEY_ASSIGN(const std::string rendered, serve::render_chat_prompt(engine_, *format_, std::move(chat)));
  VOLLEY_ASSIGN(std::vector<TokenId> ids, serve::encode_chat(engine_, *format_, rendered, false, {}));
  VOLLEY_ASSIGN(built.request, build_request(engine_, Prompt(std::move(ids)), defaults, line));
  auto start = serve::HarmonyReader::after(engine_, *format_->harmony, built.request.prompt);
  AnswerParts parts;
  parts.tokens = format_->harmony;
  serve::plan_harmony(*format_->harmony, std::make_shared<serve::HarmonyReader>(std::move(start)), format_->reasoning,
                      built.request, parts.options);
  built.parts = std::move(parts);
  return built;
}

}  // namespace volley::apps
