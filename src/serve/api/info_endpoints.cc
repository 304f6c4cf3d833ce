#include "serve/api/info_endpoints.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <span>
#include <utility>

#include "serve/api/chat_input.h"
#include "serve/api/chat_messages.h"
#include "serve/api/foreign_fields.h"
#include "serve/api/request_fields.h"
#include "serve/formats/answer_format.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;
using nlohmann::json;

// Estimates of a token in an answer: its id, and its text.
constexpr size_t kIdBytes = 6;
constexpr size_t kStringBytes = 12;
constexpr size_t kMaxDetokenized = size_t{1} << 20;

struct TokenizeRequest {
  std::string prompt;  // without messages
  Conversation chat;
  bool is_chat = false;
  bool add_special_tokens = true;
  bool with_strings = false;
};

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
    Notes notes;                         // the answer has no place for notes
    read_messages(in, body, rules.info.pictures.has_value(), request.chat, notes);
  }
  read_template_fields(in, body, request.chat);
  ToolRequest tools;
  read_tools(in, body, tools);
  request.chat.tools_json = std::move(tools.tools_json);
  in.boolean("add_special_tokens", request.add_special_tokens);
  in.boolean("return_token_strs", request.with_strings);
  if (in.get("chat_template")) {
    in.fail(
        unsupported_field("chat_template", "\"chat_template\" is not supported: the model's own template is used."));
  }
  return request;
}

// The fewest digits that give the same float: 0.6, not 0.6000000238.
Json shortest(float value) {
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return Json::parse(text.data(), end);
}

Json sampling_json(const SamplingParams& sampling) {
  return {{"temperature", shortest(sampling.temperature)},
          {"top_p", shortest(sampling.top_p)},
          {"top_k", sampling.top_k},
          {"min_p", shortest(sampling.min_p)},
          {"repetition_penalty", shortest(sampling.repetition_penalty)},
          {"presence_penalty", shortest(sampling.presence_penalty)},
          {"frequency_penalty", shortest(sampling.frequency_penalty)}};
}

void add_unbuilt_fields(Json& properties, std::span<const UnbuiltField> fields) {
  for (const UnbuiltField& field : fields) {
    Json values = Json::parse(field.neutral);
    values.push_back(nullptr);
    properties[std::string(field.name)] = {{"description", "Not supported: " + std::string(field.instead) + "."},
                                           {"enum", std::move(values)}};
  }
}

void add_foreign_fields(Json& properties, std::span<const UnbuiltField> elsewhere) {
  for (const InertField& field : inert_fields()) {
    properties[std::string(field.name)] = {
        {"description", "Accepted and ignored, which the log says once: " + std::string(field.reason) + "."}};
  }
  add_unbuilt_fields(properties, unbuilt_fields());
  add_unbuilt_fields(properties, elsewhere);
}

std::string make_document() {
  Json document = Json::parse(openapi_text());
  Json& schemas = document.at("components").at("schemas");
  add_foreign_fields(schemas.at("ChatCompletionRequest").at("properties"), not_in_chats());
  add_foreign_fields(schemas.at("CompletionRequest").at("properties"), not_in_completions());
  return document.dump(2);
}

}  // namespace

Json model_card(const std::string& name, std::time_t created, const EngineInfo& info, const OutputFormat& format,
                const std::optional<SamplingParams>& chat_sampling) {
  const Json thinking = format.thinks_by_default ? Json(*format.thinks_by_default) : Json(nullptr);
  return {{"id", name},
          {"object", "model"},
          {"created", static_cast<int64_t>(created)},
          {"owned_by", "volley"},
          {"max_model_len", info.max_model_len},
          {"modalities", info.pictures ? Json({"text", "image"}) : Json::array({"text"})},
          {"volley",
           {{"block_size", info.block_size},
            {"tensor_parallel_size", info.tensor_parallel_size},
            {"expert_parallel", info.expert_parallel},
            {"default_sampling", sampling_json(info.default_sampling)},
            {"chat_sampling", sampling_json(chat_sampling.value_or(info.default_sampling))},
            {"thinking", thinking},
            {"reasoning_effort", format.reads_reasoning_effort}}}};
}

HttpResponse tokenize(const Engine& engine, const OutputFormat& format, std::string_view body,
                      const RequestRules& rules, const std::atomic<bool>* cancelled, ReadNamed read_named) {
  const auto parsed = parse_json_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error_response(*error);
  FieldReader in(std::get<nlohmann::json>(parsed));
  TokenizeRequest request = read_tokenize(in, body, rules);
  if (in.error()) return error_response(*in.error());
  const char* field = request.is_chat ? "messages" : "prompt";
  ChatLimits limits;
  limits.read_named = std::move(read_named);
  limits.max_tokens = rules.max_response_bytes / (request.with_strings ? kIdBytes + kStringBytes : kIdBytes);
  limits.cancelled = cancelled;
  const bool add_special = request.add_special_tokens;
  Result<std::vector<TokenId>> ids = std::vector<TokenId>();
  if (request.is_chat) {
    auto chat = encode_chat(engine, *format.answers, std::move(request.chat), add_special, limits);
    ids = chat.ok() ? std::move(chat->ids) : Result<std::vector<TokenId>>(chat.error());
  } else {
    ids = engine.encode_within(request.prompt, add_special, limits);
  }
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
  FieldReader in(std::get<nlohmann::json>(parsed));
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

std::string_view openapi_document() {
  static const std::string document = make_document();
  return document;
}

Json load_json(const Load& load) {
  return {{"server_load", load.requests}};
}

Json replica_loads_json(const Load& load, const EngineStats& stats) {
  return Json::array({Json{{"dp_rank", 0},
                           {"num_reqs", load.choices},
                           {"num_waiting_reqs", stats.requests_waiting},
                           {"num_tokens", load.tokens}}});
}

Json server_info_json(const ServerOptions& options, const EngineInfo& info) {
  return {{"served_model_name", options.served_model_names.front()},
          {"version", options.version},
          {"max_running_requests", info.max_num_seqs},
          {"max_total_tokens", info.kv_pages * info.page_size},
          {"max_model_len", info.max_model_len}};
}

Json model_info_json(const ServerOptions& options, const EngineInfo& info) {
  return {{"served_model_name", options.served_model_names.front()},
          {"is_generation", true},
          {"architectures", Json::array({info.architecture})}};
}

}  // namespace volley::serve
