#include "serve/tokens.h"

#include <nlohmann/json.hpp>

#include "serve/chat_messages.h"
#include "serve/harmony_prompt.h"
#include "serve/json_text.h"
#include "serve/request_fields.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;
using nlohmann::json;

// About what a token takes in an answer: its id, and its text.
constexpr size_t kIdBytes = 6;
constexpr size_t kStringBytes = 12;
constexpr size_t kMaxDetokenized = size_t{1} << 20;

struct TokenizeRequest {
  std::string prompt;  // without messages
  ChatMessages chat;
  bool is_chat = false;
  bool add_special_tokens = true;
  bool with_strings = false;
};

HttpResponse json_response(const Json& body) {
  HttpResponse response;
  response.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

TokenizeRequest read_tokenize(FieldReader& in, std::string_view body, const RequestRules& rules) {
  TokenizeRequest request;
  std::string model;
  read_model(in, rules, model);
  const bool has_prompt = in.string("prompt", request.prompt);
  request.is_chat = in.get("messages") != nullptr;
  if (has_prompt == request.is_chat) {
    in.fail(invalid_field("prompt", "Send either \"prompt\", a string, or \"messages\"."));
  }
  if (request.is_chat) {
    request.add_special_tokens = false;  // the template writes them
    read_messages(in, body, request.chat);
  }
  read_template_fields(in, body, request.chat);
  ToolRequest tools;
  read_tools(in, body, tools);
  request.chat.tools_json = tools.tools_json;
  in.boolean("add_special_tokens", request.add_special_tokens);
  in.boolean("return_token_strs", request.with_strings);
  if (in.get("chat_template")) {
    in.fail(
        unsupported_field("chat_template", "\"chat_template\" is not supported: the model's own template is used."));
  }
  return request;
}

}  // namespace

HttpResponse tokenize(const Engine& engine, const OutputFormat& format, std::string_view body,
                      const RequestRules& rules, const std::atomic<bool>* cancelled) {
  const auto parsed = parse_json_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error_response(*error);
  FieldReader in(*std::get<OwnedJson>(parsed));
  TokenizeRequest request = read_tokenize(in, body, rules);
  if (in.error()) return error_response(*in.error());
  const char* field = request.is_chat ? "messages" : "prompt";
  if (request.is_chat) {
    request.chat.cancelled = cancelled;
    auto rendered = render_chat_prompt(engine, format, request.chat);
    if (!rendered.ok()) return error_response(api_error(rendered.error(), field));
    request.prompt = std::move(*rendered);
  }
  EncodeLimits limits;
  limits.max_tokens = rules.max_response_bytes / (request.with_strings ? kIdBytes + kStringBytes : kIdBytes);
  limits.cancelled = cancelled;
  const auto ids = request.is_chat ? encode_chat(engine, format, request.prompt, request.add_special_tokens, limits)
                                   : engine.encode_within(request.prompt, request.add_special_tokens, limits);
  if (!ids.ok()) return error_response(api_error(ids.error(), field));
  if (ids->size() > limits.max_tokens) {
    return error_response(invalid_field(field, "The text has more than " + std::to_string(limits.max_tokens) +
                                                   " tokens, too many for one answer. Send it in parts."));
  }
  Json strings = nullptr;
  if (request.with_strings) {
    strings = Json::array();
    for (const TokenId id : *ids) {
      if (cancelled && *cancelled) break;
      strings.push_back(engine.decode({&id, 1}, false));
    }
  }
  return json_response({{"count", ids->size()},
                        {"max_model_len", engine.info().max_model_len},
                        {"tokens", *ids},
                        {"token_strs", std::move(strings)}});
}

HttpResponse detokenize(const Engine& engine, std::string_view body, const RequestRules& rules) {
  const auto parsed = parse_json_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error_response(*error);
  FieldReader in(*std::get<OwnedJson>(parsed));
  std::string model;
  read_model(in, rules, model);
  std::vector<TokenId> ids;
  const json* tokens = in.get("tokens");
  if (!tokens || !tokens->is_array() || tokens->size() > kMaxDetokenized) {
    in.fail(invalid_field("tokens",
                          "\"tokens\" must be a list of at most " + std::to_string(kMaxDetokenized) + " token ids."));
  } else {
    read_token_ids(in, "tokens", *tokens, rules.info.vocab_size, ids);
  }
  if (in.error()) return error_response(*in.error());
  return json_response({{"prompt", engine.decode(ids, false)}});
}

std::set<std::string_view> tokenize_fields(const RequestRules& rules) {
  const json nothing = json::object();
  FieldReader in(nothing);
  read_tokenize(in, "{}", rules);
  return in.known();
}

}  // namespace volley::serve
