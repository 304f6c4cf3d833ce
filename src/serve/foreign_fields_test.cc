// Protects clients of other servers from answers that are not what they asked for: every field of the requests of vLLM,
// SGLang and llama.cpp is honoured, refused by name, or harmless for a reason that is written down. A field is added
// here when one of them adds it. Sources: ChatCompletionRequest and CompletionRequest in vLLM's and SGLang's
// protocol.py, the fields that llama.cpp's server reads of a completion and of a chat; November 2026.
#include "serve/foreign_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "serve/openai_request.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

const Names kVllm = {
    "messages",
    "model",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "presence_penalty",
    "response_format",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "reasoning_effort",
    "thinking_token_budget",
    "include_reasoning",
    "parallel_tool_calls",
    "user",
    "use_beam_search",
    "top_k",
    "min_p",
    "repetition_penalty",
    "watermarking",
    "length_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "prompt_logprobs",
    "logprob_token_ids",
    "allowed_token_ids",
    "bad_words",
    "echo",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "structured_outputs",
    "priority",
    "request_id",
    "session_id",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "routed_experts_prompt_start",
    "return_token_offsets",
    "return_prompt_text",
    "return_mm_kwargs",
    "cache_salt",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "repetition_detection",
    "stream_interval",
    // of completions
    "prompt",
    "suffix",
    "prompt_embeds",
    // of older versions
    "best_of",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "structural_tag",
    "logits_processors",
    "early_stopping",
};

const Names kSglang = {
    "messages",
    "model",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "presence_penalty",
    "response_format",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "user",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "return_hidden_states",
    "return_routed_experts",
    "routed_experts_start_len",
    "return_cached_tokens_details",
    "return_prompt_token_ids",
    "return_token_ids",
    "return_meta_info",
    "reasoning_effort",
    "reasoning",
    "task",
    "top_k",
    "min_p",
    "min_tokens",
    "regex",
    "ebnf",
    "repetition_penalty",
    "stop_token_ids",
    "stop_regex",
    "no_stop_trim",
    "ignore_eos",
    "continue_final_message",
    "skip_special_tokens",
    "lora_path",
    "session_id",
    "session_params",
    "separate_reasoning",
    "stream_reasoning",
    "chat_template_kwargs",
    "max_dynamic_patch",
    "min_dynamic_patch",
    "use_audio_in_video",
    "images_config",
    "custom_logit_processor",
    "custom_params",
    "input_ids",
    "rid",
    "extra_key",
    "cache_salt",
    "ngram_corpus_id",
    "priority",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "data_parallel_rank",
    // of completions
    "prompt",
    "best_of",
    "echo",
    "suffix",
    "json_schema",
    "custom_labels",
};

const Names kLlamaCpp = {
    "messages",
    "model",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "json_schema",
    "grammar",
    "add_generation_prompt",
    "chat_template_kwargs",
    "reasoning_format",
    "reasoning_effort",
    "modalities",
    "prompt",
    "verbose",
    "timings_per_token",
    "stream",
    "stream_options",
    "cache_prompt",
    "return_tokens",
    "return_progress",
    "sse_ping_interval",
    "n_predict",
    "max_tokens",
    "max_completion_tokens",
    "n_indent",
    "n_keep",
    "n_discard",
    "n_cmpl",
    "n",
    "n_cache_reuse",
    "t_max_prompt_ms",
    "t_max_predict_ms",
    "response_fields",
    "id_slot",
    "top_k",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "typical_p",
    "tfs_z",
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "repeat_last_n",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "penalize_nl",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "seed",
    "n_probs",
    "logprobs",
    "top_logprobs",
    "min_keep",
    "backend_sampling",
    "post_sampling_probs",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.p_min",
    "speculative.type",
    "lora",
    "grammar_lazy",
    "grammar_triggers",
    "preserved_tokens",
    "chat_format",
    "chat_parser",
    "parse_tool_calls",
    "generation_prompt",
    "thinking_forced_open",
    "continue_final_message",
    "echo",
    "reasoning_control",
    "reasoning_budget_tokens",
    "reasoning_budget_start_tag",
    "reasoning_budget_end_tag",
    "reasoning_budget_end_tags",
    "reasoning_budget_message",
    "reasoning_budget_arm_immediately",
    "logit_bias",
    "ignore_eos",
    "stop",
    "samplers",
    "image_data",
};

// What the parser of each endpoint reads: a value that asks for something. "chat" or "text" where only one has it.
struct Honoured {
  const char* value;
  const char* only = "";
  const char* with = "";  // other fields that it needs
};
const std::map<std::string, Honoured> kHonoured = {
    {"messages", {R"([{"role": "user", "content": "hi"}])", "chat"}},
    {"prompt", {R"("hi")", "text"}},
    {"model", {R"("pocket")"}},
    {"temperature", {"0.5"}},
    {"top_p", {"0.5"}},
    {"top_k", {"5"}},
    {"min_p", {"0.5"}},
    {"repetition_penalty", {"1.5"}},
    {"presence_penalty", {"0.5"}},
    {"frequency_penalty", {"0.5"}},
    {"logit_bias", {R"({"5": 1})"}},
    {"seed", {"5"}},
    {"stop", {R"(["a"])"}},
    {"stop_token_ids", {"[5]"}},
    {"ignore_eos", {"true"}},
    {"min_tokens", {"1"}},
    {"max_tokens", {"5"}},
    {"max_completion_tokens", {"5", "chat"}},
    {"n", {"2"}},
    {"best_of", {"2", "", R"("n": 2)"}},
    {"stream", {"true"}},
    {"stream_options", {R"({"include_usage": true})", "", R"("stream": true)"}},
    {"logprobs", {"true", "chat"}},
    {"top_logprobs", {"2", "chat", R"("logprobs": true)"}},
    {"prompt_logprobs", {"1"}},
    {"echo", {"true", "text"}},
    {"return_token_ids", {"true"}},
    {"return_tokens_as_token_ids", {"true"}},
    {"include_stop_str_in_output", {"true"}},
    {"no_stop_trim", {"true"}},
    {"skip_special_tokens", {"false"}},
    {"allowed_token_ids", {"[5]"}},
    {"bad_words", {R"(["a"])"}},
    {"thinking_token_budget", {"5"}},
    {"repetition_detection", {R"({"max_pattern_size": 5, "min_count": 3})"}},
    {"truncate_prompt_tokens", {"5"}},
    {"add_special_tokens", {"true"}},
    {"cache_salt", {R"("a")"}},
    {"priority", {"1"}},
    {"response_format", {R"({"type": "json_object"})"}},
    {"structured_outputs", {R"({"regex": "a"})"}},
    {"guided_json", {R"({"type": "object"})"}},
    {"guided_regex", {R"("a")"}},
    {"guided_choice", {R"(["a"])"}},
    {"guided_grammar", {R"("root ::= \"a\"")"}},
    {"guided_json_object", {"true"}},
    {"json_schema", {R"({"type": "object"})"}},
    {"regex", {R"("a")"}},
    {"ebnf", {R"("root ::= \"a\"")"}},
    {"grammar", {R"("root ::= \"a\"")"}},
    {"tools", {R"([{"type": "function", "function": {"name": "f"}}])", "chat"}},
    {"tool_choice", {R"("none")", "chat"}},
    {"parallel_tool_calls", {"true", "chat"}},
    {"reasoning_effort", {R"("low")", "chat"}},
    {"include_reasoning", {"false", "chat"}},
    {"separate_reasoning", {"false", "chat"}},
    {"chat_template_kwargs", {R"({"a": 1})", "chat"}},
    {"documents", {"[]", "chat"}},
    {"add_generation_prompt", {"false", "chat"}},
    {"continue_final_message", {"true", "chat"}},
};

// What asks for something in fields that are refused, where a number or a text that is not neutral would not do.
json wish(const UnbuiltField& field) {
  const json neutral = json::parse(field.neutral);
  if (neutral == json::array({false})) return true;
  if (neutral == json::array({true})) return false;
  if (!neutral.empty() && neutral.front().is_number()) return 0.75;
  if (!neutral.empty() && neutral.front().is_string()) return "something";
  return json::array({"something"});
}

class ForeignFields : public ::testing::Test {
 protected:
  ForeignFields() { info_.vocab_size = 1000; }

  ApiResult<ApiRequest> parse(ApiKind kind, const std::string& fields) const {
    const RequestRules rules{info_, models_};
    const bool chat = kind == ApiKind::kChat;
    std::string body = "{" + fields;
    if (fields.find(chat ? "\"messages\"" : "\"prompt\"") == std::string::npos) {
      body += chat ? R"(, "messages": [{"role": "user", "content": "hi"}])" : R"(, "prompt": "hi")";
    }
    body += "}";
    return chat ? parse_chat_request(body, rules) : parse_completion_request(body, rules);
  }
  static std::string member(const std::string& name, const std::string& value) { return "\"" + name + "\": " + value; }

  EngineInfo info_;
  std::vector<std::string> models_ = {"pocket"};
};

bool is_inert(const std::string& name) {
  return std::ranges::any_of(inert_fields(), [&](const InertField& field) { return field.name == name; });
}
bool is_unbuilt(const std::string& name) {
  return std::ranges::any_of(unbuilt_fields(), [&](const UnbuiltField& field) { return field.name == name; });
}

TEST_F(ForeignFields, EveryFieldOfTheOthersHasItsFate) {
  for (const Names& names : {kVllm, kSglang, kLlamaCpp}) {
    for (const std::string& name : names) {
      EXPECT_EQ(int(kHonoured.contains(name)) + int(is_inert(name)) + int(is_unbuilt(name)), 1)
          << name << " is to be honoured, harmless or refused, and only one of these";
    }
  }
}

TEST_F(ForeignFields, HonouredOnesAreRead) {
  for (const auto& [name, honoured] : kHonoured) {
    for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
      const std::string only = honoured.only;
      if (!only.empty() && only != (kind == ApiKind::kChat ? "chat" : "text")) continue;
      const std::string with = honoured.with;
      const auto result = parse(kind, member(name, honoured.value) + (with.empty() ? "" : ", " + with));
      const auto* error = std::get_if<ApiError>(&result);
      ASSERT_FALSE(error) << name << ": " << error->message;
      EXPECT_TRUE(std::get<ApiRequest>(result).ignored_fields.empty()) << name;
    }
  }
}

TEST_F(ForeignFields, HarmlessOnesAreIgnoredAndTheLogIsTold) {
  for (const InertField& field : inert_fields()) {
    EXPECT_FALSE(field.reason.empty()) << field.name;
    for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
      const auto result = parse(kind, member(std::string(field.name), "5"));
      ASSERT_TRUE(std::holds_alternative<ApiRequest>(result)) << field.name;
      EXPECT_EQ(std::get<ApiRequest>(result).ignored_fields, Names{std::string(field.name)});
    }
  }
}

TEST_F(ForeignFields, TheOthersAreRefusedByNameUnlessTheyAskForNothing) {
  for (const UnbuiltField& field : unbuilt_fields()) {
    const std::string name(field.name);
    for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
      const auto result = parse(kind, member(name, wish(field).dump()));
      const auto* error = std::get_if<ApiError>(&result);
      ASSERT_TRUE(error) << name << " was accepted";
      EXPECT_EQ(error->status, 400) << name;
      EXPECT_EQ(error->param, name);
      EXPECT_EQ(error->code, "unsupported_parameter") << name;
      EXPECT_NE(error->message.find(name), std::string::npos) << error->message;
      json neutral = json::parse(field.neutral);
      neutral.push_back(nullptr);
      for (const json& value : neutral) {
        const auto accepted = parse(kind, member(name, value.dump()));
        const auto* refusal = std::get_if<ApiError>(&accepted);
        ASSERT_FALSE(refusal) << name << " " << value << ": " << refusal->message;
        EXPECT_TRUE(std::get<ApiRequest>(accepted).ignored_fields.empty()) << name;
      }
    }
  }
}

// Each endpoint names the field that it has instead of another one's: what was asked for must not be lost.
TEST_F(ForeignFields, FieldsOfOtherEndpointsAreRefusedByName) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    for (const UnbuiltField& field : kind == ApiKind::kChat ? not_in_chats() : not_in_completions()) {
      const std::string name(field.name);
      const auto result = parse(kind, member(name, "7"));
      const auto* error = std::get_if<ApiError>(&result);
      ASSERT_TRUE(error) << name << " was accepted";
      EXPECT_EQ(error->param, name);
      EXPECT_EQ(error->code, "unsupported_parameter") << name;
      for (const json& neutral : json::parse(field.neutral)) {
        EXPECT_TRUE(std::holds_alternative<ApiRequest>(parse(kind, member(name, neutral.dump())))) << name;
      }
    }
  }
  const auto result = parse(ApiKind::kChat, member("max_output_tokens", "7"));
  EXPECT_NE(std::get<ApiError>(result).message.find("max_completion_tokens"), std::string::npos);
}

}  // namespace
}  // namespace volley::serve
