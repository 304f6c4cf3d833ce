#include "engine/run/acceptance_watch.h"

#include <cstdio>

namespace volley::engine {

std::optional<std::string> AcceptanceWatch::see(int32_t drafted, int32_t accepted) {
  if (drafted == 0 || blocks_ == kBlocks) return std::nullopt;
  ++blocks_;
  of_use_ += accepted > 0 ? 1 : 0;
  accepted_ += accepted;
  if (blocks_ < kBlocks || of_use_ >= kLeastShare * kBlocks) return std::nullopt;
  return warning();
}

std::string AcceptanceWatch::warning() const {
  char tokens[16];
  std::snprintf(tokens, sizeof(tokens), "%.2f", 1 + static_cast<double>(accepted_) / blocks_);
  std::string causes = "it was trained for another target, or for another version of it";
  if (!drafter_.likely_mistake.empty()) causes += "; " + drafter_.likely_mistake;
  if (drafter_.windows) {
    causes +=
        "; its sliding-window layers were trained with the other mask inside the block (--draft-window-mask "
        "causal or bidirectional)";
  }
  if (drafter_.quantised) causes += "; its weights do not bear being quantised (--draft-quantization none)";
  const bool one = drafter_.name.empty();
  return "The drafter " + (one ? "" : drafter_.name + " ") + "is of no use: its first " + std::to_string(kBlocks) +
         " verified blocks gave " + tokens + " tokens a step. The text is right either way. Likely causes: " + causes +
         (one ? ". --spec off saves the drafter's time and memory."
              : ". To leave it out of --draft saves its time and memory.");
}

}  // namespace volley::engine
