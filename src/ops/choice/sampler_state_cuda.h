// The state of the sampling rule on a GPU.
#pragma once

#include <vector>

#include "ops/choice/slot_rule.h"

namespace volley::ops::choice {

struct TokenBias {
  TokenId token = 0;
  float bias = 0.0f;
};

// A slot's parameters as the kernels read them.
struct DeviceRule {
  int32_t started = 0;
  int32_t greedy = 0;
  float divisor = 1.0f;
  int32_t top_k = 0;  // 0: off
  float top_p = 1.0f;
  int32_t has_min_p = 0;
  double log_min_p = 0.0;
  uint32_t seed[2] = {};
  uint32_t choice_index = 0;
  int32_t logprobs = -1;
  int32_t prompt_length = 0;
  int32_t min_tokens = 0;
  int32_t penalised = 0;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  // [vocab] when penalised: bit 0: the prompt holds the token (kept only for a repetition penalty); above it: how often
  // the committed output does.
  uint32_t* history = nullptr;
  int32_t end_count = 0;
  int32_t bias_count = 0;
};
static_assert(sizeof(DeviceRule) % sizeof(uint32_t) == 0);

struct DeviceSlot : DeviceRule {
  TokenId end_ids[kMaxEndIds] = {};    // ascending, each once
  TokenBias bias[kMaxLogitBias] = {};  // sorted by token; several entries of one token in the request's order
};
static_assert(sizeof(DeviceSlot) <= kSmallUpload);

class CudaSamplerState final : public SamplerState {
 public:
  // How the kernel for whole rows (choose_rows_cuda.cu) runs on this GPU: `team` blocks share a row, `part` tokens
  // each.
  struct Teams {
    int32_t team = 1;
    int32_t count = 1;
    int32_t part = 0;
    bool in_shared = true;    // a part fits into a block's shared memory;
    float* values = nullptr;  // otherwise here: [count][team][part]
  };

  static Result<std::unique_ptr<SamplerState>> create(Device& device, int32_t slots, int32_t vocab);

  Status start(int32_t slot, SlotSampling sampling, std::span<const TokenId> prompt,
               std::span<const TokenId> output) override;
  void append(int32_t slot, std::span<const TokenId> tokens) override;
  void append_committed(Stream& stream, const CommittedTokens& committed) override;
  void clear(int32_t slot) override;
  DeviceKind kind() const override { return DeviceKind::kCuda; }

  const DeviceSlot* slots() const { return static_cast<const DeviceSlot*>(slots_.data()); }
  int32_t slot_count() const { return static_cast<int32_t>(hosts_.size()); }
  int32_t vocab() const { return vocab_; }
  const Teams& teams() const { return teams_; }

 private:
  // The host's record of a slot.
  struct HostSlot {
    Buffer history;
    bool started = false;
    bool counted = false;  // penalised
  };

  CudaSamplerState(Device& device, int32_t slots, int32_t vocab) : device_(device), hosts_(slots), vocab_(vocab) {}
  DeviceSlot* device_slot(int32_t slot);
  // Adds `step` to, or for 1 sets the lowest bit of, the history of each token.
  void count(int32_t slot, std::span<const TokenId> tokens, uint32_t step);

  Device& device_;
  std::vector<HostSlot> hosts_;
  int32_t vocab_;
  Buffer slots_;   // DeviceSlot[slots]
  Buffer tokens_;  // on their way into a history
  Buffer values_;
  Teams teams_;
};

}  // namespace volley::ops::choice
