#include "serve/openai_request.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "serve/fields.h"
#include "serve/json_text.h"
#include "serve/request_fields.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr int kMaxLogprobs = 20;
// Templates print any role they are given, so a mistyped one would reach the model as if it were one.
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};

bool is_role(std::string_view role) {
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

std::string role_list() {
  std::string list;
  for (const std::string_view role : kRoles) {
    if (!list.empty()) list += role == kRoles[std::size(kRoles) - 1] ? " or " : ", ";
    list.append("\"").append(role).append("\"");
  }
  return list;
}

ApiResult<ApiRequest> finish(FieldReader& in, ApiRequest request) {
  refuse_unbuilt_fields(in);
  if (in.error()) return *in.error();
  request.ignored_fields = in.unread();
  return request;
}

// The text of a list of content parts, joined by line ends: what templates that take strings expect. Nothing after an
// error.
std::optional<std::string> join_parts(FieldReader& in, const json& parts, const std::string& where) {
  std::string text;
  for (const json& part : parts) {
    const bool object = part.is_object() && part.contains("type") && part.at("type").is_string();
    if (!object) {
      in.fail(invalid_field("messages", where + ".content holds a part that is not an object with a \"type\"."));
      return std::nullopt;
    }
    if (part.at("type") != "text") {
      in.fail(unsupported_field("messages", where + ".content holds a part of type " + excerpt(part.at("type")) +
                                                ". Only text is supported."));
      return std::nullopt;
    }
    if (!part.contains("text") || !part.at("text").is_string()) {
      in.fail(invalid_field("messages", where + ".content holds a text part without a string \"text\"."));
      return std::nullopt;
    }
    if (&part != &parts.front()) text += '\n';
    text += part.at("text").get_ref<const std::string&>();
  }
  return text;
}

// One message as JSON text: the client's own bytes, except that a list of text parts becomes one string.
std::optional<std::string> message_text(FieldReader& in, const json& message, std::string_view raw, size_t index) {
  const std::string where = "messages[" + std::to_string(index) + "]";
  if (!message.is_object() || !message.contains("role") || !message.at("role").is_string()) {
    in.fail(invalid_field("messages", where + " must be an object with a string \"role\"."));
    return std::nullopt;
  }
  if (!is_role(message.at("role").get_ref<const std::string&>())) {
    in.fail(invalid_field("messages",
                          where + ".role must be " + role_list() + ", not " + excerpt(message.at("role")) + "."));
    return std::nullopt;
  }
  static const json kMissing;
  const auto found = message.find("content");
  const json& content = found == message.end() ? kMissing : *found;
  const bool may_be_missing = message.at("role") == "assistant";
  if (content.is_string() || (content.is_null() && may_be_missing)) return std::string(raw);
  if (!content.is_array()) {
    in.fail(invalid_field("messages",
                          where + ".content must be a string or a list of text parts, not " + excerpt(content) + "."));
    return std::nullopt;
  }
  const auto joined = join_parts(in, content, where);
  if (!joined) return std::nullopt;
  std::string text = "{\"content\":" + json(*joined).dump();
  for (const auto& [key, value] : object_members(raw)) {
    if (key != "content") text.append(",").append(json(key).dump()).append(":").append(value);
  }
  return text + "}";
}

void read_messages(FieldReader& in, std::string_view body, ChatMessages& chat) {
  const json* messages = in.get("messages");
  if (!messages || !messages->is_array() || messages->empty()) {
    in.fail(invalid_field("messages", "\"messages\" must be a list of at least one message."));
    return;
  }
  // Templates print values, so they see what the client wrote: its order of keys and its numbers.
  const std::vector<std::string_view> raw = array_elements(find_member(body, "messages"));
  chat.messages_json = "[";
  for (size_t i = 0; i < raw.size(); ++i) {
    const auto text = message_text(in, messages->at(i), raw[i], i);
    if (!text) return;
    if (i > 0) chat.messages_json += ',';
    chat.messages_json += *text;
  }
  chat.messages_json += ']';
}

void read_template_fields(FieldReader& in, std::string_view body, ChatMessages& chat) {
  in.boolean("continue_final_message", chat.continue_final_message);
  chat.add_generation_prompt = !chat.continue_final_message;
  in.boolean("add_generation_prompt", chat.add_generation_prompt);
  if (chat.add_generation_prompt && chat.continue_final_message) {
    in.fail(invalid_field("continue_final_message",
                          "\"continue_final_message\" and \"add_generation_prompt\" cannot both be true."));
  }
  if (const json* kwargs = in.get("chat_template_kwargs")) {
    if (kwargs->is_object()) {
      chat.template_kwargs_json = find_member(body, "chat_template_kwargs");
    } else {
      in.fail(invalid_field("chat_template_kwargs",
                            "\"chat_template_kwargs\" must be an object, not " + excerpt(*kwargs) + "."));
    }
  }
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

void read_completion_logprobs(FieldReader& in, ApiRequest& out) {
  int32_t& logprobs = out.generate.sampling.logprobs;
  logprobs = -1;
  in.integer("logprobs", 0, kMaxLogprobs, logprobs);
  in.boolean("echo", out.echo);
  if (out.echo && logprobs >= 0) {
    in.fail(unsupported_field("echo",
                              "\"echo\" together with \"logprobs\" needs log-probabilities of the prompt, which are "
                              "not available. Leave one of them out."));
  }
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

ApiResult<json> parse_object(std::string_view body) {
  auto parsed = parse_json(body);
  if (const json* object = std::get_if<json>(&parsed); object && !object->is_object()) {
    return invalid_body("The body must be a JSON object.");
  }
  return parsed;
}

}  // namespace

ApiResult<ApiRequest> parse_chat_request(std::string_view body, const RequestRules& rules) {
  const auto parsed = parse_object(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  FieldReader in(std::get<json>(parsed));
  ApiRequest request;
  request.kind = ApiKind::kChat;
  read_messages(in, body, request.chat);
  read_template_fields(in, body, request.chat);
  read_common_fields(in, rules, request);
  read_chat_logprobs(in, request.generate.sampling);
  return finish(in, std::move(request));
}

ApiResult<ApiRequest> parse_completion_request(std::string_view body, const RequestRules& rules) {
  const auto parsed = parse_object(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  FieldReader in(std::get<json>(parsed));
  ApiRequest request;
  request.kind = ApiKind::kCompletion;
  request.add_special_tokens = true;
  read_prompts(in, rules.info.vocab_size, request.prompts);
  read_common_fields(in, rules, request);
  read_completion_logprobs(in, request);
  return finish(in, std::move(request));
}

}  // namespace volley::serve
