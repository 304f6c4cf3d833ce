#include "serve/api/request_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "serve/api/structured_output.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr int kDefaultCompletionTokens = 16;  // the completions schema's default; a chat may fill the context
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxText = 1024;  // characters of a stop string and of a salt, which every choice copies
constexpr size_t kMaxBadWords = 1024;
constexpr int kMaxPattern = 1024;  // tokens of a repetition
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

// Clients of vLLM send -1 for no seed.
void read_seed(FieldReader& in, SamplingParams& sampling) {
  const json* value = in.get("seed");
  if (!value) return;
  if (value->is_number_unsigned()) {
    sampling.seed = value->get<uint64_t>();
    return;
  }
  const auto number = as_integer(*value);
  if (!number) {
    in.fail(invalid_field("seed", "\"seed\" must be an integer from " +
                                      std::to_string(std::numeric_limits<int64_t>::min()) + " to " +
                                      std::to_string(std::numeric_limits<uint64_t>::max()) +
                                      ", or null or -1 for none, not " + excerpt(*value) + "."));
  } else if (*number == -1) {
    sampling.seed.reset();
  } else {
    sampling.seed = static_cast<uint64_t>(*number);  // keeps a negative one's bits
  }
}

void read_logit_bias(FieldReader& in, int vocab_size, SamplingParams& sampling) {
  const json* value = in.get("logit_bias");
  if (!value) return;
  if (!value->is_object()) {
    in.fail(invalid_field("logit_bias",
                          "\"logit_bias\" must be an object of token ids and numbers, not " + excerpt(*value) + "."));
    return;
  }
  if (value->size() > kMaxLogitBias) {
    in.fail(invalid_field("logit_bias", "\"logit_bias\" may have at most " + std::to_string(kMaxLogitBias) +
                                            " entries, not " + std::to_string(value->size()) + "."));
    return;
  }
  for (const auto& [key, bias] : value->items()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab_size) {
      in.fail(invalid_field("logit_bias", "\"logit_bias\" has the key " + excerpt(json(key)) + ", but keys are token " +
                                              "ids from 0 to " + std::to_string(vocab_size - 1) + "."));
      return;
    }
    if (!bias.is_number() || bias.get<double>() < -100 || bias.get<double>() > 100) {
      in.fail(invalid_field("logit_bias", "\"logit_bias\" of token " + key +
                                              " must be a number from -100 to 100, not " + excerpt(bias) + "."));
      return;
    }
    sampling.logit_bias.emplace_back(id, bias.get<float>());
  }
}

// Defaults are the model's own; a null or missing field keeps them.
void read_sampling(FieldReader& in, const RequestRules& rules, SamplingParams& sampling) {
  sampling = rules.info.default_sampling;
  in.number("temperature", 0, 100, sampling.temperature);
  in.number("top_p", std::numeric_limits<double>::denorm_min(), 1, sampling.top_p, "above 0 and at most 1");
  // rounds a value below the least float up
  sampling.top_p = std::max(sampling.top_p, std::numeric_limits<float>::min());
  in.integer("top_k", -1, kMaxTokens, sampling.top_k);
  in.number("min_p", 0, 1, sampling.min_p);
  in.number("repetition_penalty", 0.01, 100, sampling.repetition_penalty);
  in.number("presence_penalty", -2, 2, sampling.presence_penalty);
  in.number("frequency_penalty", -2, 2, sampling.frequency_penalty);
  read_seed(in, sampling);
  read_logit_bias(in, rules.info.vocab_size, sampling);
}

void read_limits(FieldReader& in, const RequestRules& rules, ApiRequest& out) {
  GenerateRequest& generate = out.generate;
  if (!out.max_tokens_given) generate.max_tokens = out.kind == ApiKind::kChat ? -1 : kDefaultCompletionTokens;
  // An echo may stand alone: tools that score a prompt ask for it.
  if (in.integer("max_tokens", out.echo ? 0 : 1, kMaxTokens, generate.max_tokens)) out.max_tokens_given = true;
  if (out.kind == ApiKind::kChat && in.integer("max_completion_tokens", 1, kMaxTokens, generate.max_tokens)) {
    out.max_tokens_given = true;
  }
  const int64_t most = generate.max_tokens >= 0 ? generate.max_tokens : kMaxTokens;
  in.integer("min_tokens", 0, most, generate.min_tokens);
  if (generate.max_tokens == 0) {
    generate.max_tokens = 1;
    out.shape.echo_only = true;
  }
  in.boolean("ignore_eos", generate.ignore_eos);
  read_stop(in, "stop", generate.stop);
  if (const json* ids = in.list("stop_token_ids", "token ids")) {
    read_token_ids(in, "stop_token_ids", *ids, rules.info.vocab_size, generate.stop_token_ids);
    if (generate.stop_token_ids.size() + rules.info.eos_token_ids.size() > kMaxEndIds) {
      in.fail(invalid_field("stop_token_ids", "\"stop_token_ids\" may have at most " +
                                                  std::to_string(kMaxEndIds - rules.info.eos_token_ids.size()) +
                                                  " entries, not " + std::to_string(ids->size()) + "."));
    }
  }
  if (in.string("cache_salt", generate.cache_namespace) && count_code_points(generate.cache_namespace) > kMaxText) {
    in.fail(
        invalid_field("cache_salt", "\"cache_salt\" may have at most " + std::to_string(kMaxText) + " characters."));
  }
  float timeout = 0;
  if (in.number("timeout", 0.001, 1e6, timeout)) generate.timeout_s = timeout;
  in.integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), generate.priority);
  if (in.integer("truncate_prompt_tokens", -1, kMaxTokens, out.truncate_prompt) && out.truncate_prompt == 0) {
    in.fail(invalid_field("truncate_prompt_tokens",
                          "\"truncate_prompt_tokens\" must be -1, for what fits, or at least 1, not 0."));
  }
}

void read_bad_words(FieldReader& in, std::vector<std::string>& words) {
  const json* value = in.get("bad_words");
  if (!value) return;
  const auto is_word = [](const json& word) {
    return word.is_string() && word != "" && count_code_points(word.get_ref<const std::string&>()) <= kMaxText;
  };
  if (value->is_array() && value->size() <= kMaxBadWords && std::all_of(value->begin(), value->end(), is_word)) {
    words = value->get<std::vector<std::string>>();
    return;
  }
  in.fail(invalid_field("bad_words", "\"bad_words\" must be a list of at most " + std::to_string(kMaxBadWords) +
                                         " strings of 1 to " + std::to_string(kMaxText) + " characters."));
}

// vLLM's. A size of 0 turns it off, and a least size of 0 means 1.
void read_repetition(FieldReader& in, std::optional<RepetitionDetection>& out) {
  RepetitionDetection rule{.min_size = 0, .max_size = 0, .min_count = 0};
  in.object("repetition_detection", [&](FieldReader& fields) {
    fields.integer("max_pattern_size", 0, kMaxPattern, rule.max_size);
    fields.integer("min_pattern_size", 0, kMaxPattern, rule.min_size);
    fields.integer("min_count", 0, kMaxTokens, rule.min_count);
    if (rule.min_size > rule.max_size) {
      fields.fail(invalid_field("min_pattern_size", "\"min_pattern_size\" must not be above \"max_pattern_size\"."));
    }
    if (rule.max_size > 0 && rule.min_count < 2) {
      fields.fail(invalid_field("min_count", "\"min_count\" must be at least 2: a pattern repeats from then on."));
    }
  });
  if (rule.max_size == 0) return;
  rule.min_size = std::max(rule.min_size, 1);
  out = rule;
}

// Reads the fields on allowed tokens, except structured output.
void read_token_rules(FieldReader& in, const RequestRules& rules, ApiRequest& out) {
  std::vector<TokenId>& allowed = out.generate.allowed_tokens;
  if (const json* ids = in.list("allowed_token_ids", "token ids")) {
    read_token_ids(in, "allowed_token_ids", *ids, rules.info.vocab_size, allowed);
  }
  std::sort(allowed.begin(), allowed.end());
  allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
  read_bad_words(in, out.bad_words);
  in.integer("thinking_token_budget", -1, kMaxTokens, out.thinking_tokens);
  read_repetition(in, out.generate.repetition);
}

void read_choices(FieldReader& in, const RequestRules& rules, ApiRequest& out) {
  in.integer("n", 1, rules.max_n, out.n);
  int best_of = out.n;
  if (in.integer("best_of", 1, rules.max_n, best_of) && best_of != out.n) {
    in.fail(unsupported_field("best_of", "\"best_of\" is not supported unless it equals \"n\"."));
  }
  const int64_t prompts = out.kind == ApiKind::kChat ? 1 : static_cast<int64_t>(out.prompts.size());
  if (prompts * out.n > rules.max_choices) {
    in.fail(invalid_field("n", "The request asks for " + std::to_string(prompts * out.n) +
                                   " choices, but prompts × n " + "may be at most " +
                                   std::to_string(rules.max_choices) + "."));
  }
}

void read_stream(FieldReader& in, ApiRequest& out) {
  in.boolean("stream", out.stream);
  const bool given = in.object("stream_options", [&](FieldReader& options) {
    options.boolean("include_usage", out.shape.include_usage);
    options.boolean("continuous_usage_stats", out.shape.continuous_usage);
  });
  if (given && !out.stream) {
    in.fail(invalid_field("stream_options", "\"stream_options\" is only allowed when \"stream\" is true."));
  }
}

// Reads what the answer contains beside its text.
void read_shape(FieldReader& in, ApiRequest& out) {
  in.boolean("include_stop_str_in_output", out.shape.include_stop);
  bool no_stop_trim = false;  // SGLang's name
  in.boolean("no_stop_trim", no_stop_trim);
  out.shape.include_stop = out.shape.include_stop || no_stop_trim;
  in.boolean("skip_special_tokens", out.generate.skip_special_tokens);
  out.shape.skip_special_tokens = out.generate.skip_special_tokens;
  in.boolean("return_token_ids", out.shape.token_ids);
  in.boolean("return_tokens_as_token_ids", out.shape.tokens_as_ids);
  if (in.integer("prompt_logprobs", 0, kMaxLogprobs, out.shape.prompt_logprobs)) {
    out.generate.prompt_logprobs = out.shape.prompt_logprobs;
  }
}

// This object is our own, so an unknown name in it is a mistake, not another server's field.
void read_volley(FieldReader& in, ApiRequest& out) {
  in.object("volley", [&](FieldReader& volley) {
    volley.boolean("speculation", out.generate.speculation);
    volley.boolean("tokens_per_step", out.shape.tokens_per_step);
    volley.boolean("blocks", out.shape.blocks);
    if (const auto unread = volley.unread(); !unread.empty()) {
      volley.fail(unsupported_field(unread.front(), "\"volley\" has no " + in_quotes(unread.front()) +
                                                        "; it has speculation, tokens_per_step and blocks."));
    }
  });
}

}  // namespace

void read_stop(FieldReader& in, std::string_view name, std::vector<std::string>& stop) {
  const json* value = in.get(name);
  if (!value) return;
  const std::string rule =
      in_quotes(name) +
      " must be a string or a list of at most 16 strings, none of them empty or longer than 1024 characters.";
  if (value->is_string()) {
    stop.push_back(value->get<std::string>());
  } else if (value->is_array() && value->size() <= kMaxStops &&
             std::all_of(value->begin(), value->end(), [](const json& s) { return s.is_string(); })) {
    stop = value->get<std::vector<std::string>>();
  } else {
    in.fail(invalid_field(name, rule));
  }
  const auto wrong = [](const std::string& s) { return s.empty() || count_code_points(s) > kMaxText; };
  if (std::any_of(stop.begin(), stop.end(), wrong)) {
    stop.clear();
    in.fail(invalid_field(name, rule));
  }
}

void read_model(FieldReader& in, const RequestRules& rules, std::string& model) {
  if (!rules.served_models.empty()) model = rules.served_models.front();
  if (!in.string("model", model)) return;
  if (std::find(rules.served_models.begin(), rules.served_models.end(), model) == rules.served_models.end()) {
    in.fail(model_not_found(model.substr(0, 200)));
  }
}

bool read_token_ids(FieldReader& in, std::string_view field, const json& list, int vocab_size,
                    std::vector<TokenId>& out) {
  out.reserve(list.size());
  for (const json& element : list) {
    const auto id = as_integer(element);
    if (!id || *id < 0 || *id >= vocab_size) {
      in.fail(invalid_field(field, in_quotes(field) + " holds " + excerpt(element) + ", but token ids go from 0 to " +
                                       std::to_string(vocab_size - 1) + "."));
      return false;
    }
    out.push_back(static_cast<TokenId>(*id));
  }
  return true;
}

void read_common_fields(FieldReader& in, std::string_view body, const RequestRules& rules, ApiRequest& out) {
  read_model(in, rules, out.model);
  read_sampling(in, rules, out.generate.sampling);
  read_limits(in, rules, out);
  read_token_rules(in, rules, out);
  read_choices(in, rules, out);
  read_stream(in, out);
  read_shape(in, out);
  read_volley(in, out);
  out.tools.open_objects = rules.open_objects;
  out.grammar_field = read_grammar(in, body, out.tools.open_objects, out.generate.grammar, out.grammar_field);
  in.boolean("add_special_tokens", out.add_special_tokens);
}

}  // namespace volley::serve
