#include "serve/api/foreign_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr std::string_view kBookkeeping = "it is for the bookkeeping of OpenAI's service";
constexpr std::string_view kRouting = "it picks a worker, and every worker gives the same text";
constexpr std::string_view kNoImages = "only text is taken, so there is nothing that it could be about";
constexpr std::string_view kDrafting = "how tokens are drafted changes no text";
constexpr std::string_view kOfDry = "it says how dry_multiplier acts, which is refused";
constexpr std::string_view kOfXtc = "it says how xtc_probability acts, which is refused";
constexpr std::string_view kOfMirostat = "it says how mirostat acts, which is refused";
constexpr std::string_view kOfBudget = "it says how reasoning_budget_tokens acts, which is refused";
constexpr std::string_view kNoShift = "a context is never shifted here";
constexpr std::string_view kTimings = "it asks for times, not for another text; \"volley\" has \"blocks\"";

constexpr InertField kInert[] = {
    // OpenAI
    {"user", kBookkeeping},
    {"store", kBookkeeping},
    {"metadata", kBookkeeping},
    {"service_tier", kBookkeeping},
    {"safety_identifier", kBookkeeping},
    {"prompt_cache_key", "prefixes are found by their tokens"},
    {"prompt_cache_retention", "prefixes are kept while there is room"},
    {"prompt_cache_options", "prefixes are found by their tokens"},
    {"client_metadata", kBookkeeping},
    {"access_programs", kBookkeeping},
    {"prediction", "it may make an answer faster, and changes no text"},
    {"verbosity", "no model served here knows it"},
    // vLLM
    {"request_id", "send the header X-Request-Id instead"},
    {"session_id", kRouting},
    {"guided_decoding_backend", "there is one implementation"},
    {"spaces_between_special_tokens", "a tokenizer's decoder alone decides on spaces"},
    {"stream_interval", "it says how many tokens share an event, not which"},
    {"return_token_offsets", "vLLM too ignores it where text is generated"},
    {"return_mm_kwargs", kNoImages},
    {"routed_experts_prompt_start", "it says how return_routed_experts acts, which is refused"},
    // SGLang
    {"rid", "send the header X-Request-Id instead"},
    {"routed_experts_start_len", "it says how return_routed_experts acts, which is refused"},
    {"max_dynamic_patch", kNoImages},
    {"min_dynamic_patch", kNoImages},
    {"use_audio_in_video", kNoImages},
    {"images_config", kNoImages},
    {"ngram_corpus_id", kDrafting},
    {"custom_labels", "it labels SGLang's metrics"},
    {"bootstrap_host", kRouting},
    {"bootstrap_port", kRouting},
    {"bootstrap_room", kRouting},
    {"routed_dp_rank", kRouting},
    {"disagg_prefill_dp_rank", kRouting},
    {"data_parallel_rank", kRouting},
    // llama.cpp
    {"verbose", kTimings},
    {"timings_per_token", kTimings},
    {"return_progress", kTimings},
    {"sse_ping_interval", "it is about an idle connection"},
    {"cache_prompt", "a prefix from the cache gives the same text, bit for bit"},
    {"n_cache_reuse", "a prefix from the cache gives the same text, bit for bit"},
    {"id_slot", kRouting},
    {"n_keep", kNoShift},
    {"n_discard", kNoShift},
    {"backend_sampling", "it says where tokens are chosen, not which"},
    {"speculative.n_max", kDrafting},
    {"speculative.n_min", kDrafting},
    {"speculative.p_min", kDrafting},
    {"speculative.type", kDrafting},
    {"xtc_threshold", kOfXtc},
    {"dynatemp_exponent", "it says how dynatemp_range acts, which is refused"},
    {"dry_base", kOfDry},
    {"dry_allowed_length", kOfDry},
    {"dry_penalty_last_n", kOfDry},
    {"dry_sequence_breakers", kOfDry},
    {"mirostat_tau", kOfMirostat},
    {"mirostat_eta", kOfMirostat},
    {"adaptive_decay", "it says how adaptive_target acts, which is refused"},
    {"reasoning_budget_start_tag", kOfBudget},
    {"reasoning_budget_end_tag", kOfBudget},
    {"reasoning_budget_end_tags", kOfBudget},
    {"reasoning_budget_message", kOfBudget},
    {"reasoning_budget_arm_immediately", kOfBudget},
};

constexpr std::string_view kEmpty = "[[], {}]";
constexpr std::string_view kBlank = R"([""])";
constexpr std::string_view kFalse = "[false]";
constexpr std::string_view kTrue = "[true]";
constexpr std::string_view kZero = "[0]";
constexpr std::string_view kOne = "[1]";
constexpr std::string_view kMinusOne = "[-1]";
constexpr std::string_view kNever = "[]";

constexpr std::string_view kLeaveOut = "leave it out";
constexpr std::string_view kTextOnly = "only text is available";
constexpr std::string_view kBias = "use \"logit_bias\"";
constexpr std::string_view kOnlyFalse = "only false is available";
constexpr std::string_view kTokenIds = "use \"return_token_ids\"";
constexpr std::string_view kFilters = "tokens are filtered by \"top_k\", \"top_p\" and \"min_p\"";
constexpr std::string_view kPenalties =
    "use \"repetition_penalty\", \"presence_penalty\" or \"frequency_penalty\", which look at the whole text";
constexpr std::string_view kTemplate = "the chat template decides; \"chat_template_kwargs\" is available";

constexpr UnbuiltField kUnbuilt[] = {
    // OpenAI
    {"functions", kEmpty, "use \"tools\""},
    {"function_call", R"(["none", "auto"])", "use \"tool_choice\""},
    {"suffix", kBlank, "text is only continued, never filled in"},
    {"audio", kNever, kTextOnly},
    {"modalities", R"([["text"]])", kTextOnly},
    {"web_search_options", kNever, kLeaveOut},
    {"moderation", kEmpty, "nothing is moderated here"},
    {"reasoning", kEmpty, "use \"reasoning_effort\" or \"chat_template_kwargs\""},
    // vLLM
    {"guided_whitespace_pattern", kNever, "\"structured_outputs\" has \"disable_any_whitespace\""},
    {"structural_tag", kNever, "use \"structured_outputs\" with a grammar"},
    {"mm_processor_kwargs", kEmpty, kTextOnly},
    {"media_io_kwargs", kEmpty, kTextOnly},
    {"prompt_embeds", kNever, "send the prompt as text or token ids"},
    {"use_beam_search", kFalse, kOnlyFalse},
    {"length_penalty", kOne, "it is for beam search only"},
    {"early_stopping", kFalse, "it is for beam search only"},
    {"watermarking", kFalse, kOnlyFalse},
    {"logits_processors", kEmpty, kBias},
    {"logprob_token_ids", kEmpty, "\"top_logprobs\" has the likeliest tokens of each position"},
    {"truncation_side", R"(["left"])", "only left is available, which keeps the end of a prompt"},
    {"chat_template", kNever, "the model's own template is used; \"chat_template_kwargs\" is available"},
    {"return_prompt_text", kFalse, kTokenIds},
    {"kv_transfer_params", kEmpty, kLeaveOut},
    {"ec_transfer_params", kEmpty, kLeaveOut},
    {"vllm_xargs", kEmpty, kLeaveOut},
    // SGLang
    {"stop_regex", kEmpty, "use \"stop\""},
    {"custom_logit_processor", kNever, kBias},
    {"custom_params", kEmpty, kLeaveOut},
    {"return_hidden_states", kFalse, kOnlyFalse},
    {"return_routed_experts", kFalse, kOnlyFalse},
    {"return_cached_tokens_details", kFalse, "\"usage\" has \"prompt_tokens_details\""},
    {"return_prompt_token_ids", kFalse, kTokenIds},
    {"return_meta_info", kFalse, kOnlyFalse},
    {"stream_reasoning", kTrue, "only true is available"},
    {"lora_path", kBlank, kLeaveOut},
    {"session_params", kEmpty, kLeaveOut},
    {"extra_key", kBlank, "use \"cache_salt\""},
    {"task", kNever, kTemplate},
    {"input_ids", kNever, "send token ids to /v1/completions"},
    // llama.cpp
    {"n_predict", kMinusOne, "use \"max_tokens\""},
    {"n_cmpl", kOne, "use \"n\""},
    {"n_probs", kZero, "use \"logprobs\""},
    {"post_sampling_probs", kFalse, "log-probabilities are those of the model"},
    {"n_indent", kZero, kLeaveOut},
    {"t_max_predict_ms", "[-1, 0]", "use \"max_tokens\""},
    {"t_max_prompt_ms", "[-1, 0]", kLeaveOut},
    {"response_fields", kEmpty, "an answer has all its fields"},
    {"return_tokens", kFalse, kTokenIds},
    {"typical_p", kOne, kFilters},
    {"tfs_z", kOne, kFilters},
    {"top_n_sigma", "[-1, 0]", kFilters},
    {"xtc_probability", kZero, kFilters},
    {"min_keep", kZero, kFilters},
    {"dynatemp_range", kZero, "use \"temperature\""},
    {"mirostat", kZero, "use \"temperature\""},
    {"adaptive_target", kMinusOne, "use \"temperature\""},
    {"samplers", kNever, "the order is penalties, bias, temperature, min_p, top_k, top_p"},
    {"repeat_penalty", kOne, "use \"repetition_penalty\""},
    {"repeat_last_n", kMinusOne, kPenalties},
    {"dry_multiplier", kZero, kPenalties},
    {"penalize_nl", kFalse, kPenalties},
    {"lora", kEmpty, kLeaveOut},
    {"grammar_lazy", kFalse, "a grammar holds from the first token on; \"tools\" may be \"strict\""},
    {"grammar_triggers", kEmpty, "a grammar holds from the first token on; \"tools\" may be \"strict\""},
    {"preserved_tokens", kEmpty, "use \"skip_special_tokens\""},
    {"chat_format", kNever, "the server is started with --tool-call-parser"},
    {"chat_parser", kNever, "the server is started with --tool-call-parser"},
    {"parse_tool_calls", kTrue, "use \"tool_choice\""},
    {"reasoning_format", R"(["auto", "deepseek"])", "use \"separate_reasoning\""},
    {"reasoning_control", kFalse, kOnlyFalse},
    {"reasoning_budget_tokens", kMinusOne, "use \"thinking_token_budget\""},
    {"thinking_forced_open", kFalse, kTemplate},
    {"generation_prompt", kBlank, kTemplate},
    {"image_data", kEmpty, kTextOnly},
    // Fields for other services, sent beside these.
    {"enable_thinking", kNever, "put it into \"chat_template_kwargs\""},
};

constexpr std::string_view kMessages = "send it as one of \"messages\"";
constexpr std::string_view kChats = "only /v1/chat/completions has it";

constexpr UnbuiltField kNotInChats[] = {
    // in completions
    {"prompt", kNever, "use \"messages\""},
    // in responses
    {"input", kNever, "use \"messages\""},
    {"instructions", kBlank, kMessages},
    {"max_output_tokens", kNever, "use \"max_completion_tokens\""},
    {"previous_response_id", kNever, "send all earlier \"messages\""},
    {"text", kEmpty, "use \"response_format\""},
    // in messages
    {"system", kEmpty, kMessages},
    {"stop_sequences", kEmpty, "use \"stop\""},
    {"output_format", kEmpty, "use \"response_format\""},
};

constexpr UnbuiltField kNotInCompletions[] = {
    // in chats
    {"messages", kEmpty, kChats},
    {"tools", kEmpty, kChats},
    {"chat_template_kwargs", kEmpty, kChats},
    {"reasoning_effort", kNever, kChats},
    {"max_completion_tokens", kNever, "use \"max_tokens\""},
    {"top_logprobs", kZero, "use \"logprobs\", a number"},
    // in responses and messages
    {"input", kNever, "use \"prompt\""},
    {"max_output_tokens", kNever, "use \"max_tokens\""},
    {"stop_sequences", kEmpty, "use \"stop\""},
};

constexpr std::string_view kOneAnswer = "an answer here is one, without what belongs to its prompt";
constexpr std::string_view kNoTokens = "answers here have no token ids";

constexpr UnbuiltField kOnlyInChats[] = {
    {"n", kOne, kOneAnswer},
    {"best_of", kOne, kOneAnswer},
    {"echo", kFalse, kOneAnswer},
    {"prompt_logprobs", kNever, kOneAnswer},
    {"return_token_ids", kFalse, kNoTokens},
    {"return_tokens_as_token_ids", kFalse, kNoTokens},
};

}  // namespace

std::span<const InertField> inert_fields() {
  return kInert;
}

std::span<const UnbuiltField> unbuilt_fields() {
  return kUnbuilt;
}

std::span<const UnbuiltField> not_in_chats() {
  return kNotInChats;
}

std::span<const UnbuiltField> not_in_completions() {
  return kNotInCompletions;
}

std::span<const UnbuiltField> only_in_chats() {
  return kOnlyInChats;
}

void refuse_fields(FieldReader& in, std::span<const UnbuiltField> fields) {
  for (const UnbuiltField& field : fields) {
    const json* value = in.get(field.name);
    if (!value) continue;
    const json neutral = json::parse(field.neutral);
    if (std::find(neutral.begin(), neutral.end(), *value) != neutral.end()) continue;
    in.fail(unsupported_field(field.name,
                              in_quotes(field.name) + " is not supported: " + std::string(field.instead) + "."));
  }
}

std::vector<std::string> read_inert_fields(FieldReader& in) {
  std::vector<std::string> inert;
  for (const InertField& field : kInert) {
    if (in.get(field.name)) inert.emplace_back(field.name);
  }
  return inert;
}

}  // namespace volley::serve
