// What the host has to say about a block's positions: which tokens a grammar allows there. It depends on the drafted
// tokens, which exist once the proposer is done, and nothing but the choice needs it.
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
  // v % 32 of word v / 32, 1 = allowed. A row behind a token that its own row refuses may hold anything: it is never
  // committed. Called for each step that the request takes part in, on a mask thread, one call at a time.
  virtual void fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) = 0;

  // The step goes on without the masks of fill(), which may be running: what it fills is thrown away, what the step
  // commits means nothing, and fill() should return soon. On the thread of the step; no other call follows.
  enum class Why {
    kLate,  // it took the time
    kBusy,  // the machine had no processor for it in time
  };
  virtual void give_up(Why why) = 0;

  // What the last fill() took; MaskThreads keeps it here.
  std::chrono::nanoseconds last_time = std::chrono::nanoseconds::max();
};

}  // namespace volley::decode
