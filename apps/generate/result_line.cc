#include "apps/generate/result_line.h"

#include <nlohmann/json.hpp>

namespace volley::apps {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string write(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson error_json(const Error& error) {
  return {{"code", error_code_name(error.code)}, {"message", error.message}};
}

OrderedJson token_json(const TokenLogprob& token) {
  return {{"token_id", token.token}, {"logprob", token.logprob}};
}

OrderedJson logprobs_json(const std::vector<PositionLogprobs>& positions) {
  OrderedJson list = OrderedJson::array();
  for (const PositionLogprobs& position : positions) {
    OrderedJson entry = token_json(position.chosen);
    entry["top"] = OrderedJson::array();
    for (const TokenLogprob& token : position.top) entry["top"].push_back(token_json(token));
    list.push_back(std::move(entry));
  }
  return list;
}

OrderedJson percentiles_json(const Percentiles& values) {
  return {{"p50", values.p50}, {"p99", values.p99}};
}

}  // namespace

std::string result_line(const std::string& id_json, const Completion& completion) {
  const Finish& finish = completion.finish;
  OrderedJson line;
  line["id"] = OrderedJson::parse(id_json);
  line["token_ids"] = completion.tokens;
  line["text"] = completion.text;
  if (!completion.reasoning.empty()) line["reasoning"] = completion.reasoning;
  line["finish_reason"] = finish_reason_name(finish.reason);
  line["prompt_tokens"] = finish.usage.prompt_tokens;
  line["cached_tokens"] = finish.usage.cached_tokens;
  line["tokens_per_step"] = finish.tokens_per_step;
  if (!completion.logprobs.empty()) line["logprobs"] = logprobs_json(completion.logprobs);
  if (finish.error) line["error"] = error_json(*finish.error);
  return write(line);
}

std::string error_line(const std::string& id_json, const Error& error) {
  OrderedJson line;
  line["id"] = OrderedJson::parse(id_json);
  line["finish_reason"] = finish_reason_name(FinishReason::kError);
  line["error"] = error_json(error);
  return write(line);
}

std::string summary_line(const RunSummary& summary) {
  return write({{"requests", summary.requests},
                {"errors", summary.errors},
                {"prompt_tokens", summary.prompt_tokens},
                {"cached_tokens", summary.cached_tokens},
                {"completion_tokens", summary.completion_tokens},
                {"wall_s", summary.wall_s},
                {"decode_tok_s", summary.decode_tok_s},
                {"steps", summary.steps},
                {"acceptance_length", summary.acceptance_length},
                {"ttft_ms", percentiles_json(summary.ttft_ms)},
                {"tpot_ms", percentiles_json(summary.tpot_ms)}});
}

Result<std::string> user_message_json(const std::string& text) {
  OrderedJson message;
  message["role"] = "user";
  message["content"] = text;
  try {
    return OrderedJson::array({message}).dump();
  } catch (const OrderedJson::type_error&) {
    return invalid_argument("The message is not valid UTF-8: check the terminal's encoding.");
  }
}

}  // namespace volley::apps
