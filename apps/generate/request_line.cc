#include "apps/generate/request_line.h"

#include <volley/chat.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "serve/api/structured_output.h"

namespace volley::apps {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;  // writing JSON is recursive, so nesting must be bounded

Error wrong(const std::string& field, const std::string& what) {
  return invalid_argument(field + " " + what + ".");
}

bool nested_too_deeply(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

template <typename Int>
Result<Int> read_integer(const Json& value, const std::string& field) {
  if (!value.is_number_integer()) return wrong(field, "must be a whole number");
  constexpr uint64_t kMax = static_cast<uint64_t>(std::numeric_limits<Int>::max());
  const bool fits =
      value.is_number_unsigned()
          ? value.get<uint64_t>() <= kMax
          : std::is_signed_v<Int> && value.get<int64_t>() >= static_cast<int64_t>(std::numeric_limits<Int>::min());
  if (!fits) return wrong(field, "is out of range");
  return value.get<Int>();
}

Result<float> read_float(const Json& value, const std::string& field) {
  if (!value.is_number()) return wrong(field, "must be a number");
  const float number = value.get<float>();
  if (!std::isfinite(number)) return wrong(field, "is out of range");
  return number;
}

Result<bool> read_bool(const Json& value, const std::string& field) {
  if (!value.is_boolean()) return wrong(field, "must be true or false");
  return value.get<bool>();
}

Result<std::vector<TokenId>> read_token_ids(const Json& value, const std::string& field) {
  if (!value.is_array()) return wrong(field, "must be a list of token ids");
  std::vector<TokenId> ids;
  ids.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    VOLLEY_ASSIGN(const TokenId id, read_integer<TokenId>(value[i], field + "[" + std::to_string(i) + "]"));
    if (id < 0) return wrong(field + "[" + std::to_string(i) + "]", "must not be negative");
    ids.push_back(id);
  }
  return ids;
}

Result<std::vector<std::string>> read_stop(const Json& value, const std::string& field) {
  if (value.is_string()) return std::vector<std::string>{value.get<std::string>()};
  if (!value.is_array()) return wrong(field, "must be a text or a list of texts");
  std::vector<std::string> stops;
  for (const Json& item : value) {
    if (!item.is_string()) return wrong(field, "must be a text or a list of texts");
    stops.push_back(item.get<std::string>());
  }
  return stops;
}

Result<std::vector<std::pair<TokenId, float>>> read_logit_bias(const Json& value, const std::string& field) {
  if (!value.is_object()) return wrong(field, "must be an object of token ids and numbers");
  std::vector<std::pair<TokenId, float>> biases;
  for (const auto& [key, bias] : value.items()) {
    TokenId id = 0;
    const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (failure != std::errc() || end != key.data() + key.size() || id < 0) {
      return wrong(field, "must have token ids as keys");
    }
    VOLLEY_ASSIGN(const float number, read_float(bias, field + "[" + key + "]"));
    biases.emplace_back(id, number);
  }
  return biases;
}

template <typename T>
Status assign(Result<T> value, std::optional<T>* to) {
  if (!value.ok()) return value.error();
  *to = std::move(value).value();
  return {};
}

// Reads a sampling field into `settings`; false for another field.
Result<bool> read_setting(const std::string& field, const Json& value, RequestSettings* settings) {
  const auto done = [](const Status& status) -> Result<bool> {
    if (!status.ok()) return status.error();
    return true;
  };
  const std::pair<const char*, std::optional<int32_t>*> integers[] = {
      {"max_tokens", &settings->max_tokens},
      {"min_tokens", &settings->min_tokens},
      {"top_k", &settings->top_k},
      {"logprobs", &settings->logprobs},
  };
  for (const auto& [name, to] : integers) {
    if (field != name) continue;
    const Status read = assign(read_integer<int32_t>(value, field), to);
    // The engine's own values for "as many as fit" and "none" are mistakes in a line.
    if (read.ok() && to == &settings->max_tokens && **to < 1) return wrong(field, "must be at least 1");
    if (read.ok() && to == &settings->logprobs && **to < 0) return wrong(field, "must not be negative");
    return done(read);
  }
  const std::pair<const char*, std::optional<float>*> numbers[] = {
      {"temperature", &settings->temperature},
      {"top_p", &settings->top_p},
      {"min_p", &settings->min_p},
      {"repetition_penalty", &settings->repetition_penalty},
      {"presence_penalty", &settings->presence_penalty},
      {"frequency_penalty", &settings->frequency_penalty},
  };
  for (const auto& [name, to] : numbers) {
    if (field == name) return done(assign(read_float(value, field), to));
  }
  if (field == "seed") return done(assign(read_integer<uint64_t>(value, field), &settings->seed));
  if (field == "ignore_eos") return done(assign(read_bool(value, field), &settings->ignore_eos));
  if (field == "stop") return done(assign(read_stop(value, field), &settings->stop));
  if (field == "stop_token_ids") return done(assign(read_token_ids(value, field), &settings->stop_token_ids));
  if (field == "logit_bias") return done(assign(read_logit_bias(value, field), &settings->logit_bias));
  return false;
}

Result<Prompt> read_prompt(const std::string& field, const Json& value) {
  if (field == "prompt_ids") {
    VOLLEY_ASSIGN(auto ids, read_token_ids(value, field));
    return Prompt(std::move(ids));
  }
  if (field == "prompt") {
    if (!value.is_string()) return wrong(field, "must be a text (token ids go into prompt_ids)");
    return Prompt(PromptText{value.get<std::string>()});
  }
  if (!value.is_array() || value.empty()) return wrong(field, "must be a list of messages");
  for (const Json& message : value) {
    if (!message.is_object() || !message.contains("role")) return wrong(field, "must hold objects with a role");
  }
  return Prompt(PromptMessages{value.dump()});
}

bool is_prompt(const std::string& field) {
  return field == "prompt_ids" || field == "messages" || field == "prompt";
}

// Refuses a field of the server's API that would change the answer and that lines do not have.
Status check_server_field(const std::string& field) {
  constexpr const char* kFields[] = {"n",
                                     "best_of",
                                     "max_completion_tokens",
                                     "prompt_logprobs",
                                     "bad_words",
                                     "allowed_token_ids",
                                     "thinking_token_budget",
                                     "repetition_detection",
                                     "skip_special_tokens",
                                     "tools",
                                     "tool_choice",
                                     "chat_template_kwargs",
                                     "reasoning_effort",
                                     "continue_final_message",
                                     "truncate_prompt_tokens"};
  if (std::ranges::count(kFields, field) == 0) return {};
  return invalid_argument(field +
                          " is a field of volley serve and volley batch, which a line does not have: leave it out.");
}

Result<Prompt> read_fields(const Json& object, std::string_view text, RequestLine* line) {
  serve::FieldReader in(object);
  bool open_objects = false;  // the default of a line
  serve::read_grammar(in, text, open_objects, line->settings.grammar);
  if (in.error()) return invalid_argument(in.error()->message);
  for (const auto& [field, value] : object.items()) {
    if (field == "id" || value.is_null() || is_prompt(field) || in.known().contains(field)) continue;
    if (field == "n" && value == 1) continue;
    VOLLEY_RETURN_IF_ERROR(check_server_field(field));
    VOLLEY_ASSIGN(const bool known, read_setting(field, value, &line->settings));
    if (!known) line->ignored.push_back(field);
  }
  std::optional<Result<Prompt>> prompt;
  for (const char* field : {"prompt_ids", "messages", "prompt"}) {
    const auto found = object.find(field);
    if (found == object.end() || found->is_null()) continue;
    if (prompt) {
      line->ignored.emplace_back(field);
    } else {
      prompt = read_prompt(field, *found);
    }
  }
  if (prompt) return *std::move(prompt);
  return invalid_argument("None of prompt_ids, prompt and messages is given.");
}

}  // namespace

RequestLine parse_request_line(std::string_view text) {
  RequestLine line;
  if (nested_too_deeply(text)) {
    line.prompt = invalid_argument("The JSON is nested deeper than " + std::to_string(kMaxDepth) + ".");
    return line;
  }
  Json object;
  try {
    object = Json::parse(text);
  } catch (const Json::parse_error& error) {
    line.prompt = invalid_argument("Not valid JSON in UTF-8 at byte " + std::to_string(error.byte) + ".");
    return line;
  } catch (const Json::out_of_range&) {
    line.prompt = invalid_argument("A number in the JSON is out of range.");
    return line;
  }
  if (!object.is_object()) {
    line.prompt = invalid_argument("Not a JSON object.");
    return line;
  }
  if (const auto id = object.find("id"); id != object.end() && !id->is_null()) {
    if (!id->is_string() && !id->is_number_integer()) {
      line.prompt = wrong("id", "must be a text or a whole number");
      return line;
    }
    line.id_json = id->dump();
  }
  line.prompt = read_fields(object, text, &line);
  return line;
}

Result<GenerateRequest> build_request(const Engine& engine, const Prompt& prompt, const RequestSettings& defaults,
                                      const RequestSettings& line) {
  GenerateRequest request;
  request.sampling = engine.info().default_sampling;
  // Parts without marks: the text continues the prompt's.
  if (!std::holds_alternative<PromptMessages>(prompt)) request.parts.emplace();
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
    request.prompt = *ids;
  } else if (const auto* text = std::get_if<PromptText>(&prompt)) {
    VOLLEY_ASSIGN(request.prompt, engine.encode(text->text, true));
  } else {
    VOLLEY_ASSIGN(ChatPrompt chat, ChatFormat::prompt_of(engine, {std::get<PromptMessages>(prompt).json}));
    request.prompt = std::move(chat.tokens);
    request.pictures = std::move(chat.pictures);
  }
  apply_settings(defaults, &request);
  apply_settings(line, &request);
  return request;
}

}  // namespace volley::apps
