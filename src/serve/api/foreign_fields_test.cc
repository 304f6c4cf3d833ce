// Protects clients of other servers from answers that they did not ask for: every request field of vLLM, SGLang and
// llama.cpp is applied, refused by name, or harmless for a stated reason. Add fields here when these servers do.
// Sources: ChatCompletionRequest and CompletionRequest in vLLM's and SGLang's protocol.py, and the fields of a
// completion and of a chat in llama.cpp's server; November 2026.
#include "serve/api/foreign_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "serve/api/openai_request.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

// The fields of vLLM, SGLang and llama.cpp, in alphabetical order.
constexpr const char* kFieldsOfOthers = R"(
    adaptive_decay adaptive_target add_generation_prompt add_special_tokens allowed_token_ids backend_sampling bad_words
    best_of bootstrap_host bootstrap_port bootstrap_room cache_prompt cache_salt chat_format chat_parser chat_template
    chat_template_kwargs continue_final_message custom_labels custom_logit_processor custom_params data_parallel_rank
    disagg_prefill_dp_rank documents dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers
    dynatemp_exponent dynatemp_range early_stopping ebnf ec_transfer_params echo extra_key frequency_penalty
    generation_prompt grammar grammar_lazy grammar_triggers guided_choice guided_decoding_backend guided_grammar
    guided_json guided_json_object guided_regex guided_whitespace_pattern id_slot ignore_eos image_data images_config
    include_reasoning include_stop_str_in_output input_ids json_schema kv_transfer_params length_penalty logit_bias
    logits_processors logprob_token_ids logprobs lora lora_path max_completion_tokens max_dynamic_patch max_tokens
    media_io_kwargs messages min_dynamic_patch min_keep min_p min_tokens mirostat mirostat_eta mirostat_tau
    mm_processor_kwargs modalities model n n_cache_reuse n_cmpl n_discard n_indent n_keep n_predict n_probs
    ngram_corpus_id no_stop_trim parallel_tool_calls parse_tool_calls penalize_nl post_sampling_probs presence_penalty
    preserved_tokens priority prompt prompt_embeds prompt_logprobs reasoning reasoning_budget_arm_immediately
    reasoning_budget_end_tag reasoning_budget_end_tags reasoning_budget_message reasoning_budget_start_tag
    reasoning_budget_tokens reasoning_control reasoning_effort reasoning_format regex repeat_last_n repeat_penalty
    repetition_detection repetition_penalty request_id response_fields response_format return_cached_tokens_details
    return_hidden_states return_meta_info return_mm_kwargs return_progress return_prompt_text return_prompt_token_ids
    return_routed_experts return_token_ids return_token_offsets return_tokens return_tokens_as_token_ids rid
    routed_dp_rank routed_experts_prompt_start routed_experts_start_len samplers seed separate_reasoning session_id
    session_params skip_special_tokens spaces_between_special_tokens speculative.n_max speculative.n_min
    speculative.p_min speculative.type sse_ping_interval stop stop_regex stop_token_ids stream stream_interval
    stream_options stream_reasoning structural_tag structured_outputs suffix t_max_predict_ms t_max_prompt_ms task
    temperature tfs_z thinking_forced_open thinking_token_budget timings_per_token tool_choice tools top_k top_logprobs
    top_n_sigma top_p truncate_prompt_tokens truncation_side typical_p use_audio_in_video use_beam_search user verbose
    vllm_xargs watermarking xtc_probability xtc_threshold)";

// Applied fields, with a value that asks for something. "chat" or "text" if only one endpoint has the field.
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

// A value that asks for something, for refused fields where a number or text does not.
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
  std::istringstream names(kFieldsOfOthers);
  for (std::string name; names >> name;) {
    EXPECT_EQ(int(kHonoured.contains(name)) + int(is_inert(name)) + int(is_unbuilt(name)), 1)
        << name << " is to be honoured, harmless or refused, and only one of these";
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

// Each endpoint names its own field for another one's, so that no request is lost silently.
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
