// A grammar's masks: which tokens it allows at each position of a block. Masks depend on the drafted tokens, which
// exist once the proposer is done. Only the choice of tokens needs them, so they can be filled while the target runs.
#pragma once

#include <volley/sampling.h>

#include <chrono>
#include <cstdint>
#include <span>

namespace volley::decode {

class MaskSource {
 public:
  virtual ~MaskSource() = default;

  // Fills every row of words, [drafted + 1][mask_words]: row i is the position after `drafted[0 .. i)`, token v is bit
  // v % 32 of word v / 32, 1 = allowed. A row behind a refused token may hold anything, because it is never committed.
  // Called for each step that the request takes part in, on a mask thread, one call at a time.
  virtual void fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) = 0;

  // Tells the source that the step goes on without its masks. fill() may still be running: its result is thrown away,
  // and it should return soon. The step's tokens mean nothing for this request. Called on the step's thread; no other
  // call follows.
  enum class Why {
    kLate,  // fill() took too long
    kBusy,  // the machine had no free processor in time
  };
  virtual void give_up(Why why) = 0;

  // Duration of the last fill(), which MaskThreads stores here.
  std::chrono::nanoseconds last_time = std::chrono::nanoseconds::max();
};

}  // namespace volley::decode
