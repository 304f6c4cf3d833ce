// POST /v1/messages and /v1/messages/count_tokens.
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/api.h"
#include "serve/api/chat_input.h"
#include "serve/formats/answer_format.h"
#include "serve/http/random_id.h"
#include "serve/json/json_text.h"
#include "serve/messages/messages_request.h"
#include "serve/messages/messages_writer.h"

namespace volley::serve {

Api::Reply Api::message(Call call) {
  auto parsed = parse_messages_request(call.request.body, rules(), false);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error_response(*error);
  auto& request = std::get<MessagesRequest>(parsed);
  const OutputFormat& format = serving_.load()->format;
  request.chat.shape.reasoning = request.thinking;
  // A model without budgets is not refused, because clients send one without knowing the model.
  if (format.reasoning && format.think_tokens) request.chat.thinking_tokens = request.thinking_tokens;
  Prepared prepared{std::move(request.chat), "msg_" + random_id()};
  prepared.make_writer = [seals = request.seals_thoughts](ResponseInfo info, int, bool stream) {
    return messages_writer(std::move(info), stream, seals);
  };
  return generate(std::move(prepared), std::move(call));
}

HttpResponse Api::count_message_tokens(Call call) {
  auto parsed = parse_messages_request(call.request.body, rules(), true);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error_response(*error);
  const auto& [engine, format] = *serving_.load();
  ChatLimits limits;
  limits.read_named = read_named(call);
  limits.max_tokens = options_.max_body_bytes;  // no text has more tokens than bytes
  limits.cancelled = call.cancelled;
  const auto chat =
      encode_chat(engine, *format.answers, std::move(std::get<MessagesRequest>(parsed).chat.chat), false, limits);
  if (!chat.ok()) return error_response(api_error(chat.error(), "messages"));
  return json_response({{"input_tokens", chat->ids.size()}});
}

}  // namespace volley::serve
