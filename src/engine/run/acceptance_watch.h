// Looks whether a drafter does what drafters are for. One that does not belong to its target, or runs otherwise than it
// was trained, gives the right text and no speed, and nobody would know why. Threads: one, the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace volley::engine {

// What may be wrong with a drafter depends on what it is.
struct DrafterTraits {
  std::string likely_mistake{};  // in its files: a clause, or empty
  bool windows = false;          // it has sliding-window layers
  bool quantised = false;        // its weights are stored as codes
};

class AcceptanceWatch {
 public:
  // Blocks that decide, and the share of them that must have an accepted token. A drafter that was made for its target
  // is right about the first token of most blocks; proposals that mean nothing are right once in a vocabulary.
  static constexpr int32_t kBlocks = 256;
  static constexpr double kLeastShare = 0.05;

  explicit AcceptanceWatch(const DrafterTraits& drafter) : drafter_(drafter) {}

  // A verified block of a request that was decoded as it is: not with simulated acceptance, nor with a grammar, which
  // the drafter does not know. Gives a sentence at block kBlocks if too few were of use, else nothing.
  std::optional<std::string> see(int32_t drafted, int32_t accepted);

 private:
  std::string warning() const;

  const DrafterTraits drafter_;
  int32_t blocks_ = 0, of_use_ = 0;
  int64_t accepted_ = 0;
};

}  // namespace volley::engine
