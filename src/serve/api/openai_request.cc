#include "serve/api/openai_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/chat_messages.h"
#include "serve/api/foreign_fields.h"
#include "serve/api/request_fields.h"
#include "serve/json/fields.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

ApiResult<ApiRequest> finish(FieldReader& in, ApiRequest request, std::span<const UnbuiltField> elsewhere) {
  refuse_fields(in, unbuilt_fields());
  refuse_fields(in, elsewhere);
  request.ignored_fields = read_inert_fields(in);
  if (in.error()) return *in.error();
  const auto unread = in.unread();
  request.ignored_fields.insert(request.ignored_fields.end(), unread.begin(), unread.end());
  return request;
}

void read_chat_logprobs(FieldReader& in, SamplingParams& sampling) {
  bool logprobs = false;
  in.boolean("logprobs", logprobs);
  int32_t top = 0;
  const bool given = in.integer("top_logprobs", 0, kMaxLogprobs, top);
  if (given && top > 0 && !logprobs) {
    in.fail(invalid_field("top_logprobs", "\"top_logprobs\" is only allowed when \"logprobs\" is true."));
  }
  sampling.logprobs = logprobs ? top : -1;
}

// An echo includes the prompt's log-probabilities.
void read_completion_logprobs(FieldReader& in, ApiRequest& out) {
  int32_t& logprobs = out.generate.sampling.logprobs;
  logprobs = -1;
  in.integer("logprobs", 0, kMaxLogprobs, logprobs);
  if (out.echo) out.generate.prompt_logprobs = std::max(out.generate.prompt_logprobs, logprobs);
}

void read_prompts(FieldReader& in, int vocab_size, std::vector<Prompt>& prompts) {
  constexpr const char* kRule =
      "\"prompt\" must be a string, a list of token ids, a list of strings or a list of lists of token ids, none of "
      "them "
      "an empty list.";
  const auto add_ids = [&](const json& list) {
    std::vector<TokenId> ids;
    if (read_token_ids(in, "prompt", list, vocab_size, ids)) prompts.emplace_back(std::move(ids));
  };
  const json* value = in.get("prompt");
  if (value && value->is_string()) {
    prompts.emplace_back(value->get<std::string>());
    return;
  }
  if (!value || !value->is_array() || value->empty()) {
    in.fail(invalid_field("prompt", kRule));
    return;
  }
  if (value->front().is_number()) {
    add_ids(*value);
    return;
  }
  for (const json& element : *value) {
    if (element.is_string()) {
      prompts.emplace_back(element.get<std::string>());
    } else if (element.is_array() && !element.empty()) {
      add_ids(element);
    } else {
      in.fail(invalid_field("prompt", kRule));
      return;
    }
  }
}

// Reads all but the messages and tools.
ApiResult<ApiRequest> read_chat_fields(FieldReader& in, std::string_view body, const RequestRules& rules,
                                       ApiRequest request) {
  read_template_fields(in, body, request.chat);
  request.chat.tools_json = std::exchange(request.tools.tools_json, {});
  in.boolean("include_reasoning", request.shape.reasoning);
  in.boolean("separate_reasoning", request.separate_reasoning);
  read_common_fields(in, body, rules, request);
  read_chat_logprobs(in, request.generate.sampling);
  if (bool echo = false; in.boolean("echo", echo) && echo) {
    in.fail(unsupported_field("echo", "\"echo\" is for /v1/completions only: leave it out."));
  }
  return finish(in, std::move(request), not_in_chats());
}

ApiResult<ApiRequest> read_chat(FieldReader& in, std::string_view body, const RequestRules& rules) {
  ApiRequest request;
  read_messages(in, body, rules.info.pictures.has_value(), request.chat, request.notes);
  read_tools(in, body, request.tools);
  return read_chat_fields(in, body, rules, std::move(request));
}

ApiResult<ApiRequest> read_completion(FieldReader& in, std::string_view body, const RequestRules& rules) {
  ApiRequest request;
  request.kind = ApiKind::kCompletion;
  request.add_special_tokens = true;
  read_prompts(in, rules.info.vocab_size, request.prompts);
  in.boolean("echo", request.echo);
  read_common_fields(in, body, rules, request);
  read_completion_logprobs(in, request);
  return finish(in, std::move(request), not_in_completions());
}

using Reader = ApiResult<ApiRequest> (*)(FieldReader&, std::string_view, const RequestRules&);

ApiResult<ApiRequest> parse(Reader read, std::string_view body, const RequestRules& rules) {
  const auto parsed = parse_json_object(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  FieldReader in(std::get<nlohmann::json>(parsed));
  return read(in, body, rules);
}

}  // namespace

ApiResult<ApiRequest> read_shared_fields(const json& object, std::set<std::string_view> taken, std::string_view body,
                                         const RequestRules& rules, const std::optional<ToolChoice>& choice,
                                         ApiRequest request) {
  FieldReader rest(object, std::move(taken));
  choose_tools(rest, choice, request.tools);
  auto read = read_chat_fields(rest, body, rules, std::move(request));
  const auto* out = std::get_if<ApiRequest>(&read);
  if (out && (out->shape.tokens_per_step || out->shape.blocks)) {
    return unsupported_field("volley", "\"volley\" has only \"speculation\" here.");
  }
  return read;
}

ApiResult<ApiRequest> parse_chat_request(std::string_view body, const RequestRules& rules) {
  return parse(read_chat, body, rules);
}

ApiResult<ApiRequest> parse_completion_request(std::string_view body, const RequestRules& rules) {
  return parse(read_completion, body, rules);
}

std::set<std::string_view> known_fields(ApiKind kind, const RequestRules& rules) {
  const json empty = json::object();
  FieldReader in(empty);
  (void)(kind == ApiKind::kChat ? read_chat : read_completion)(in, "{}", rules);
  return in.known();
}

}  // namespace volley::serve
