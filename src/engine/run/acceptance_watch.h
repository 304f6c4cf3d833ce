// Checks whether a drafter is of use. One that does not belong to its target, or runs otherwise than it was trained,
// gives the right text at no gain in speed, and the user would not learn why. Threads: one, the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace volley::engine {

// Properties of a drafter that suggest what is wrong with it.
struct DrafterTraits {
  std::string name{};            // empty: it is the only one
  std::string likely_mistake{};  // a clause about its files, or empty
  bool windows = false;          // it has sliding-window layers
  bool quantised = false;        // its weights are stored as codes
};

class AcceptanceWatch {
 public:
  // The number of blocks to look at, and the share of them that must have an accepted token. A drafter for its target
  // gets the first token of most blocks right; meaningless proposals are right once in a vocabulary.
  static constexpr int32_t kBlocks = 256;
  static constexpr double kLeastShare = 0.05;

  explicit AcceptanceWatch(const DrafterTraits& drafter) : drafter_(drafter) {}

  // Counts a verified block. Leave out requests with simulated acceptance or with a grammar, which the drafter does not
  // know. At block kBlocks it returns a sentence if too few had an accepted token, otherwise nothing.
  std::optional<std::string> see(int32_t drafted, int32_t accepted);

 private:
  std::string warning() const;

  const DrafterTraits drafter_;
  int32_t blocks_ = 0, of_use_ = 0;
  int64_t accepted_ = 0;
};

}  // namespace volley::engine
