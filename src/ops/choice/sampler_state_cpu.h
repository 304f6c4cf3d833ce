// The state of the sampling rule on the CPU.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ops/choice/slot_rule.h"

namespace volley::ops::choice {

// How a token occurred in the request so far.
struct TokenHistory {
  uint32_t in_prompt : 1;  // only kept when a repetition penalty asks
  uint32_t outputs : 31;   // times in the committed output
};

struct Slot {
  Slot(SlotSampling s, int32_t vocab);

  // Counts committed output tokens, or marks prompt tokens, if a penalty reads them.
  void count_outputs(std::span<const TokenId> tokens);
  void mark_prompt(std::span<const TokenId> tokens);

  const SlotSampling sampling;
  const SlotRule rule;
  std::vector<TokenHistory> history;  // [vocab], or empty when no penalty is set
  std::vector<TokenId> seen;          // the tokens with a history, each once

 private:
  TokenHistory& touch(TokenId token);
};

class CpuSamplerState final : public SamplerState {
 public:
  CpuSamplerState(int32_t slots, int32_t vocab) : slots_(slots), vocab_(vocab) {}

  Status start(int32_t slot, SlotSampling sampling, std::span<const TokenId> prompt,
               std::span<const TokenId> output) override;
  void append(int32_t slot, std::span<const TokenId> tokens) override;
  void append_committed(Stream& stream, const CommittedTokens& committed) override;
  void clear(int32_t slot) override;
  DeviceKind kind() const override { return DeviceKind::kCpu; }

  // REQUIRES: started.
  const Slot& slot(int32_t slot) const;

 private:
  std::vector<std::unique_ptr<Slot>> slots_;
  int32_t vocab_;
};

}  // namespace volley::ops::choice
