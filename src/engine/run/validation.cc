#include "engine/run/validation.h"

#include <cmath>
#include <string>

#include "comm/row_exchange.h"
#include "ops/choice/choice.h"

namespace volley::engine {
namespace {

std::string number(double value) {
  std::string text = std::to_string(value);
  while (text.find('.') != std::string::npos && (text.back() == '0' || text.back() == '.')) {
    const bool dot = text.back() == '.';
    text.pop_back();
    if (dot) break;
  }
  return text;
}

// Written so that NaN fails.
Status in_range(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(std::string(name) + " is " + number(value) + ": it must be between " + number(low) + " and " +
                          number(high) + ".");
}

Status check_token(const char* name, TokenId token, const EngineInfo& info) {
  if (token >= 0 && token < info.vocab_size) return {};
  return invalid_argument(std::string(name) + " holds token id " + std::to_string(token) +
                          ", but the vocabulary has ids 0 to " + std::to_string(info.vocab_size - 1) + ".");
}

static_assert(kMaxLogitBias == ops::kMaxLogitBias && kMaxEndIds == ops::kMaxEndIds);

// Masks look back at this many tokens, which are kept for each row of a block.
constexpr size_t kMaxBadWordTokens = 4096;
constexpr int32_t kMaxPattern = 1024;

Status check_token_rules(const GenerateRequest& request, const EngineInfo& info) {
  for (TokenId token : request.allowed_tokens) VOLLEY_RETURN_IF_ERROR(check_token("allowed_tokens", token, info));
  size_t tokens = 0;
  for (const auto& word : request.bad_words) {
    if (word.empty()) return invalid_argument("bad_words holds a word without tokens: leave it out.");
    for (TokenId token : word) VOLLEY_RETURN_IF_ERROR(check_token("bad_words", token, info));
    tokens += word.size();
  }
  if (tokens > kMaxBadWordTokens) {
    return invalid_argument("bad_words has " + std::to_string(tokens) + " tokens: it may have at most " +
                            std::to_string(kMaxBadWordTokens) + ".");
  }
  if (const auto& thinking = request.thinking) {
    VOLLEY_RETURN_IF_ERROR(check_token("thinking", thinking->begin, info));
    VOLLEY_RETURN_IF_ERROR(check_token("thinking", thinking->end, info));
    if (thinking->tokens < 0) return invalid_argument("The thinking budget must not be negative.");
    if (thinking->begin == thinking->end) {
      return invalid_argument("The thinking budget has token id " + std::to_string(thinking->end) +
                              " for both the begin and the end of thinking: it needs two.");
    }
  }
  if (const auto& repetition = request.repetition) {
    if (repetition->min_size < 1 || repetition->max_size < repetition->min_size || repetition->max_size > kMaxPattern) {
      return invalid_argument("Repetitions are looked for in patterns of 1 to " + std::to_string(kMaxPattern) +
                              " tokens, the least size not above the largest.");
    }
    if (repetition->min_count < 2)
      return invalid_argument("A pattern repeats from the second time on: min_count is 2.");
  }
  return {};
}

Status check_sampling(const SamplingParams& p, const EngineInfo& info) {
  VOLLEY_RETURN_IF_ERROR(in_range("temperature", p.temperature, 0, 100));
  if (!(p.top_p > 0 && p.top_p <= 1)) {
    return invalid_argument("top_p is " + number(p.top_p) + ": it must be above 0 and at most 1.");
  }
  if (p.top_k < -1) {
    return invalid_argument("top_k is " + std::to_string(p.top_k) +
                            ": use -1 or 0 for all tokens, or a positive count.");
  }
  VOLLEY_RETURN_IF_ERROR(in_range("min_p", p.min_p, 0, 1));
  // A logit is divided by it and then by the temperature, and must stay finite.
  VOLLEY_RETURN_IF_ERROR(in_range("repetition_penalty", p.repetition_penalty, 0.01f, 100));
  VOLLEY_RETURN_IF_ERROR(in_range("presence_penalty", p.presence_penalty, -2, 2));
  VOLLEY_RETURN_IF_ERROR(in_range("frequency_penalty", p.frequency_penalty, -2, 2));
  if (p.logprobs < -1 || p.logprobs > 20) {
    return invalid_argument("logprobs is " + std::to_string(p.logprobs) + ": it must be at most 20.");
  }
  if (p.logit_bias.size() > ops::kMaxLogitBias) {
    return invalid_argument("logit_bias has " + std::to_string(p.logit_bias.size()) + " entries: it may have at most " +
                            std::to_string(ops::kMaxLogitBias) + ".");
  }
  for (const auto& [token, bias] : p.logit_bias) {
    VOLLEY_RETURN_IF_ERROR(check_token("logit_bias", token, info));
    VOLLEY_RETURN_IF_ERROR(in_range("logit_bias", bias, -100, 100));
  }
  return {};
}

Status check_simulation(const SimulatedAcceptance& simulated) {
  const auto& phases = simulated.phases;
  if (phases.empty() || phases.front().from_step != 0) {
    return invalid_argument("Simulated acceptance needs a probability from step 0 on.");
  }
  for (size_t i = 0; i < phases.size(); ++i) {
    const auto is_chance = [](double p) { return p >= 0 && p <= 1; };
    if (!is_chance(phases[i].p) || !is_chance(phases[i].second.value_or(0))) {
      return invalid_argument("--simulate-acceptance needs a probability between 0 and 1.");
    }
    if (i > 0 && phases[i].from_step <= phases[i - 1].from_step) {
      return invalid_argument(
          "The phases of simulated acceptance must begin at ascending steps: " + std::to_string(phases[i].from_step) +
          " follows " + std::to_string(phases[i - 1].from_step) + ".");
    }
  }
  if (!(simulated.confidence_odds > 0 && std::isfinite(simulated.confidence_odds))) {
    return invalid_argument("The odds of simulated confidence must be multiplied by a number above 0.");
  }
  return {};
}

Status check_span(const PromptSpan& span, const EngineInfo& info) {
  const std::string of = "The prompt span of tokens " + std::to_string(span.begin) + " to " + std::to_string(span.end);
  const int64_t tokens = int64_t{span.end} - span.begin;
  const int64_t values = tokens * info.hidden_size * info.prompt_vectors;
  if (span.vectors != nullptr && std::ssize(*span.vectors) != values) {
    return invalid_argument(of + " brings " + std::to_string(span.vectors->size()) +
                            " values of vectors: " + std::to_string(info.prompt_vectors) + " for each token, " +
                            std::to_string(info.hidden_size) + " wide, are " + std::to_string(values) + ".");
  }
  if (span.positions.empty()) return {};
  if (!info.prompt_positions) {
    return invalid_argument(of + " has positions in time, height and width, which this model does not know.");
  }
  if (std::ssize(span.positions) != tokens) {
    return invalid_argument(of + " has " + std::to_string(span.positions.size()) +
                            " positions: it needs one for each token, or none.");
  }
  for (int64_t i = 0; i < tokens; ++i) {
    for (const int32_t position : span.positions[static_cast<size_t>(i)]) {
      if (position >= 0 && position <= span.begin + i) continue;
      return invalid_argument(of + " gives token " + std::to_string(span.begin + i) + " the position " +
                              std::to_string(position) + ": it must be between 0 and the token's index.");
    }
  }
  return {};
}

Status check_picture(const PromptPicture& picture, const GenerateRequest& request, int32_t before,
                     const PictureRules& rules) {
  const std::string size = std::to_string(picture.width) + " x " + std::to_string(picture.height);
  const int32_t side = rules.token_side();
  if (picture.width < side || picture.height < side || picture.width % side != 0 || picture.height % side != 0) {
    return invalid_argument("A picture of " + size +
                            " pixels does not fit this model: both sides must be multiples of " + std::to_string(side) +
                            ".");
  }
  const int64_t pixels = int64_t{picture.width} * picture.height, tokens = pixels / (int64_t{side} * side);
  if (pixels > rules.max_pixels) {
    return invalid_argument("A picture of " + size + " pixels is too large: it may have at most " +
                            std::to_string(rules.max_pixels) + ".");
  }
  if (picture.rgb == nullptr || std::ssize(*picture.rgb) != 3 * pixels) {
    return invalid_argument("A picture of " + size + " pixels needs three bytes for each.");
  }
  const std::string at = "A picture of " + std::to_string(tokens) + " tokens begins at token " +
                         std::to_string(picture.begin) + " of the prompt";
  if (picture.begin < before || picture.begin + tokens > std::ssize(request.prompt)) {
    return invalid_argument(at + ", where it overlaps another or the prompt's end.");
  }
  for (int64_t i = picture.begin; i < picture.begin + tokens; ++i) {
    if (request.prompt[static_cast<size_t>(i)] == rules.token) continue;
    return invalid_argument(at + ": all of these must be token id " + std::to_string(rules.token) + ".");
  }
  return {};
}

Status check_pictures(const GenerateRequest& request, const EngineInfo& info) {
  if (!info.pictures) {
    return unimplemented("Pictures in prompts are not built for " + info.architecture + ": send text alone.");
  }
  if (!request.prompt_keys.empty() || !request.prompt_spans.empty()) {
    return invalid_argument("A prompt with pictures has no prompt_keys and no prompt_spans: the engine makes them.");
  }
  int32_t before = 0;
  for (const PromptPicture& picture : request.pictures) {
    VOLLEY_RETURN_IF_ERROR(check_picture(picture, request, before, *info.pictures));
    const int32_t side = info.pictures->token_side();
    before = picture.begin + picture.width / side * (picture.height / side);
  }
  return {};
}

Status check_spans(const GenerateRequest& request, const EngineInfo& info) {
  if (!request.pictures.empty()) return check_pictures(request, info);
  if (request.prompt_spans.empty()) return {};
  if (request.prompt_keys.empty()) {
    return invalid_argument("prompt_spans needs prompt_keys: the prefix cache cannot tell vectors apart by token ids.");
  }
  // Without memory for their copies the host waits for the GPU, and must not where the pass waits for other replicas'.
  if (info.device != "cpu" && !info.pictures && info.data_parallel_size > 1 && info.expert_parallel) {
    return unimplemented(
        "prompt_spans is not built for replicas on GPUs that divide the experts: leave "
        "--enable-expert-parallel out.");
  }
  int32_t before = 0;
  for (const PromptSpan& span : request.prompt_spans) {
    if (span.begin < before || span.end <= span.begin || span.end > std::ssize(request.prompt)) {
      return invalid_argument("The prompt span of tokens " + std::to_string(span.begin) + " to " +
                              std::to_string(span.end) + " does not lie behind the one before and within the " +
                              std::to_string(request.prompt.size()) + " tokens of the prompt.");
    }
    before = span.end;
    VOLLEY_RETURN_IF_ERROR(check_span(span, info));
  }
  return {};
}

}  // namespace

Status check_verify(const VerifyPolicy& policy, int block_size) {
  if (policy.kind != VerifyPolicy::Kind::kFixed) return {};
  if (policy.tokens >= 0 && policy.tokens < block_size) return {};
  if (block_size == 1) {
    return invalid_argument("--verify is " + std::to_string(policy.tokens) +
                            ", but without speculation there is nothing to verify: leave it out, or turn "
                            "speculation on (with --draft, without --spec off).");
  }
  return invalid_argument("--verify is " + std::to_string(policy.tokens) + ", but a block of " +
                          std::to_string(block_size) + " drafts " + std::to_string(block_size - 1) +
                          (block_size == 2 ? " token" : " tokens") + ": use 0 to " + std::to_string(block_size - 1) +
                          ", auto or full.");
}

Status check_request(const GenerateRequest& request, const EngineInfo& info) {
  if (request.prompt.empty()) return invalid_argument("The prompt is empty: it needs at least one token.");
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt >= info.max_model_len) {
    return invalid_argument("The prompt has " + std::to_string(prompt) + " tokens, but the model's context holds " +
                            std::to_string(info.max_model_len) +
                            " with at least one for the answer: shorten the prompt.");
  }
  if (request.max_tokens != -1 && request.max_tokens < 1) {
    return invalid_argument("max_tokens is " + std::to_string(request.max_tokens) + ": it must be at least 1.");
  }
  if (request.min_tokens < 0) {
    return invalid_argument("min_tokens is " + std::to_string(request.min_tokens) + ": it must not be negative.");
  }
  if (request.max_tokens != -1 && request.min_tokens > request.max_tokens) {
    return invalid_argument("min_tokens (" + std::to_string(request.min_tokens) + ") is above max_tokens (" +
                            std::to_string(request.max_tokens) + ").");
  }
  constexpr double kLongestTimeout = 1e6;
  VOLLEY_RETURN_IF_ERROR(in_range("timeout", request.timeout_s, 0, kLongestTimeout));
  for (TokenId token : request.prompt) VOLLEY_RETURN_IF_ERROR(check_token("prompt", token, info));
  if (!request.prompt_keys.empty() && request.prompt_keys.size() != request.prompt.size()) {
    return invalid_argument("prompt_keys has " + std::to_string(request.prompt_keys.size()) +
                            " entries: it needs one for each of the prompt's " + std::to_string(prompt) +
                            " tokens, or none.");
  }
  VOLLEY_RETURN_IF_ERROR(check_spans(request, info));
  for (TokenId token : request.stop_token_ids) VOLLEY_RETURN_IF_ERROR(check_token("stop_token_ids", token, info));
  const size_t end_ids = request.stop_token_ids.size() + info.eos_token_ids.size();
  if (end_ids > ops::kMaxEndIds) {
    return invalid_argument("stop_token_ids has " + std::to_string(request.stop_token_ids.size()) +
                            " entries: with the model's own end-of-sequence ids there may be at most " +
                            std::to_string(ops::kMaxEndIds) + ".");
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return invalid_argument("A stop string is empty: leave it out.");
  }
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > ops::kMaxLogprobs) {
    return invalid_argument("prompt_logprobs is " + std::to_string(request.prompt_logprobs) +
                            ": it must be between 0 and " + std::to_string(ops::kMaxLogprobs) + ".");
  }
  VOLLEY_RETURN_IF_ERROR(check_token_rules(request, info));
  if (request.simulate_acceptance) VOLLEY_RETURN_IF_ERROR(check_simulation(*request.simulate_acceptance));
  return check_sampling(request.sampling, info);
}

Status check_nodes(const EngineOptions& o) {
  if (o.nnodes == 1 && (o.node_rank > 0 || !o.master_addr.empty())) {
    return invalid_argument(
        "--node-rank and --master-addr are for an engine of several nodes: say how many there are with --nnodes, or "
        "leave them out.");
  }
  if (o.node_rank >= o.nnodes) {
    return invalid_argument("--node-rank is " + std::to_string(o.node_rank) + ": of --nnodes " +
                            std::to_string(o.nnodes) + " it is from 0 to " + std::to_string(o.nnodes - 1) + ".");
  }
  if (o.nnodes == 1) return {};
  if (o.tensor_parallel_size % o.nnodes != 0) {
    return invalid_argument("--tensor-parallel-size " + std::to_string(o.tensor_parallel_size) +
                            " cannot be divided among --nnodes " + std::to_string(o.nnodes) +
                            ": each node has equally many ranks, at least one.");
  }
  if (o.master_addr.empty()) {
    return invalid_argument("--nnodes " + std::to_string(o.nnodes) +
                            " needs --master-addr: the address of node 0, by which the others reach it.");
  }
  if (o.data_parallel_size > 1) {
    return unimplemented(
        "--data-parallel-size is not built with --nnodes above 1: start servers of several nodes behind a router.");
  }
  if (o.restart_on_device_error) {
    return unimplemented(
        "--restart-on-device-error is not built with --nnodes above 1: let the service manager start all nodes again.");
  }
  return {};
}

Status check_expert_parallel(const EngineOptions& options, DeviceKind device, bool has_experts) {
  if (!has_experts) {
    return invalid_argument(
        "--enable-expert-parallel divides the experts of a mixture among ranks or replicas, and the target has none: "
        "leave it out.");
  }
  if (options.tensor_parallel_size > 1 || options.data_parallel_size == 1) return {};
  const std::string divided = " with --enable-expert-parallel and --data-parallel-size " +
                              std::to_string(options.data_parallel_size) + ", where replicas divide the experts";
  if (device != DeviceKind::kCpu && options.data_parallel_size > comm::kMostGpuReplicas) {
    return unimplemented("More than " + std::to_string(comm::kMostGpuReplicas) + " GPUs are not built" + divided +
                         ": use fewer, or leave it out.");
  }
  if (options.restart_on_device_error) {
    return unimplemented("--restart-on-device-error is not built" + divided + ": leave one of them out.");
  }
  return {};
}

}  // namespace volley::engine
