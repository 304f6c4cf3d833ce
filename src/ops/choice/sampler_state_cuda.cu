#include "ops/choice/sampler_state_cuda.h"

#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/choice/choose_rows_cuda.h"

namespace volley::ops::choice {
namespace {

constexpr uint32_t kMarkPrompt = 1;
constexpr uint32_t kCountOutput = 2;
constexpr int kThreads = 256;
constexpr size_t kTokensAtOnce = kSmallUpload / sizeof(TokenId);

__global__ void count_kernel(uint32_t* history, const TokenId* tokens, int32_t n, int32_t vocab, uint32_t step) {
  const int32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  const TokenId token = tokens[i];
  if (token < 0 || token >= vocab) __trap();  // our bug: the stream reports it at its next call
  if (step == kMarkPrompt) {
    atomicOr(history + token, step);
  } else {
    atomicAdd(history + token, step);
  }
}

// A block an entry.
__global__ void append_kernel(const DeviceSlot* slots, int32_t slot_count, int32_t vocab, CommittedTokens committed) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t count = committed.counts[blockIdx.x];
  if (count == 0) return;
  const int32_t slot = committed.slots[blockIdx.x];
  if (slot < 0 || slot >= slot_count || slots[slot].started == 0 || count > committed.stride) __trap();
  if (slots[slot].penalised == 0) return;
  const TokenId* tokens = committed.tokens + int64_t{blockIdx.x} * committed.stride;
  for (int32_t i = threadIdx.x; i < count; i += blockDim.x) {
    if (tokens[i] < 0 || tokens[i] >= vocab) __trap();
    atomicAdd(slots[slot].history + tokens[i], kCountOutput);
  }
}

DeviceSlot describe(const SlotSampling& sampling, const SlotRule& rule) {
  const SamplingParams& p = sampling.params;
  DeviceSlot s;
  s.started = 1;
  s.greedy = rule.greedy ? 1 : 0;
  s.divisor = rule.divisor;
  s.top_k = rule.greedy ? 0 : rule.top_k;
  s.top_p = rule.greedy ? 1.0f : p.top_p;
  s.has_min_p = !rule.greedy && p.min_p > 0.0f ? 1 : 0;
  s.log_min_p = rule.log_min_p;
  s.seed[0] = static_cast<uint32_t>(sampling.seed);
  s.seed[1] = static_cast<uint32_t>(sampling.seed >> 32);
  s.choice_index = p.choice_index;
  s.logprobs = p.logprobs;
  s.prompt_length = sampling.prompt_length;
  s.min_tokens = sampling.min_tokens;
  s.penalised = rule.penalised ? 1 : 0;
  s.repetition_penalty = p.repetition_penalty;
  s.presence_penalty = p.presence_penalty;
  s.frequency_penalty = p.frequency_penalty;
  std::vector<TokenId> ends = sampling.end_ids;
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  s.end_count = static_cast<int32_t>(ends.size());
  std::copy(ends.begin(), ends.end(), s.end_ids);
  s.bias_count = static_cast<int32_t>(p.logit_bias.size());
  std::transform(p.logit_bias.begin(), p.logit_bias.end(), s.bias, [](const auto& b) {
    return TokenBias{b.first, b.second};
  });
  std::stable_sort(s.bias, s.bias + s.bias_count,
                   [](const TokenBias& a, const TokenBias& b) { return a.token < b.token; });
  return s;
}

}  // namespace

Result<std::unique_ptr<SamplerState>> CudaSamplerState::create(Device& device, int32_t slots, int32_t vocab) {
  std::unique_ptr<CudaSamplerState> state(new CudaSamplerState(device, slots, vocab));
  VOLLEY_ASSIGN(state->slots_, device.allocate(static_cast<size_t>(slots) * sizeof(DeviceSlot)));
  VOLLEY_ASSIGN(state->tokens_, device.allocate(kTokensAtOnce * sizeof(TokenId)));
  state->teams_ = plan_teams(device.stream().gpu(), vocab);
  if (!state->teams_.in_shared) {
    const Teams& t = state->teams_;
    VOLLEY_ASSIGN(state->values_, device.allocate(size_t{sizeof(float)} * t.count * t.team * t.part));
    state->teams_.values = static_cast<float*>(state->values_.data());
  }
  return std::unique_ptr<SamplerState>(std::move(state));
}

DeviceSlot* CudaSamplerState::device_slot(int32_t slot) {
  VOLLEY_CHECK(slot >= 0 && slot < slot_count());
  return static_cast<DeviceSlot*>(slots_.data()) + slot;
}

Status CudaSamplerState::start(int32_t slot, SlotSampling sampling, std::span<const TokenId> prompt,
                               std::span<const TokenId> output) {
  clear(slot);
  const SlotRule rule = resolve(sampling, vocab_);
  DeviceSlot described = describe(sampling, rule);
  HostSlot& host = hosts_[slot];
  if (rule.penalised) {
    const size_t bytes = sizeof(uint32_t) * static_cast<size_t>(vocab_);
    if (host.history.data() == nullptr) {
      auto history = device_.allocate(bytes);
      if (!history.ok()) {
        return resource_exhausted(
            "There is no GPU memory left for the token counts that repetition, presence and frequency penalties need: "
            "leave the penalties out, or lower --memory-fraction.");
      }
      host.history = std::move(*history);
    }
    described.history = static_cast<uint32_t*>(host.history.data());
    VOLLEY_CUDA_CHECK(cudaMemsetAsync(described.history, 0, bytes, cuda::native(device_.stream())));
    if (rule.penalised && sampling.params.repetition_penalty != 1.0f) count(slot, prompt, kMarkPrompt);
    count(slot, output, kCountOutput);
  }
  host.started = true;
  host.counted = rule.penalised;
  device_.upload(
      device_slot(slot), &described,
      sizeof(described) - sizeof(described.bias) + sizeof(TokenBias) * static_cast<size_t>(described.bias_count));
  return {};
}

void CudaSamplerState::append(int32_t slot, std::span<const TokenId> tokens) {
  VOLLEY_CHECK(slot >= 0 && slot < slot_count() && hosts_[slot].started);
  if (hosts_[slot].counted) count(slot, tokens, kCountOutput);
}

void CudaSamplerState::count(int32_t slot, std::span<const TokenId> tokens, uint32_t step) {
  auto* history = static_cast<uint32_t*>(hosts_[slot].history.data());
  auto* staged = static_cast<TokenId*>(tokens_.data());
  while (!tokens.empty()) {
    const auto now = tokens.first(std::min(tokens.size(), kTokensAtOnce));
    const auto n = static_cast<int32_t>(now.size());
    device_.upload(staged, now.data(), now.size_bytes());
    cuda::launch(count_kernel, {.grid = dim3((n + kThreads - 1) / kThreads), .block = dim3(kThreads)}, device_.stream(),
                 history, static_cast<const TokenId*>(staged), n, vocab_, step);
    tokens = tokens.subspan(now.size());
  }
}

void CudaSamplerState::append_committed(Stream& stream, const CommittedTokens& committed) {
  if (committed.n == 0) return;
  cuda::launch(append_kernel, {.grid = cuda::dims(committed.n), .block = dim3(32), .early = true}, stream, slots(),
               slot_count(), vocab_, committed);
}

void CudaSamplerState::clear(int32_t slot) {
  DeviceSlot* at = device_slot(slot);
  HostSlot& host = hosts_[slot];
  if (!host.started) return;
  host.started = false;
  const int32_t started = 0;
  device_.upload(&at->started, &started, sizeof(started));
}

}  // namespace volley::ops::choice
