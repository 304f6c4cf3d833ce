// The acceptance rule, the only one there is: keep drafted tokens while they equal the target's choice at their
// position; the target's choice at the first difference (or after the last drafted token) is the bonus token. Then stop
// ids and the remaining budget cut the committed run. An empty block commits one token: plain decoding.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"

namespace volley::ops {

// One block of one slot.
struct AcceptSegment {
  int32_t slot = 0;
  int32_t drafted = 0;               // k drafted tokens
  const int32_t* draft = nullptr;    // [k]
  const int32_t* choice = nullptr;   // [k + 1]: the target's choices at the drafted positions and after them
  int32_t forced_accept = -1;        // >= 0: simulated acceptance: that many drafted tokens are taken, choices unread
                                     // but for the bonus
  int32_t min_tokens_left = 0;       // outputs still owed before end ids may end the request
  int32_t budget = 0;                // tokens that the request may still produce, >= 1
  std::span<const int32_t> end_ids;  // any of these ends the request; it is committed itself
};

struct AcceptResult {
  int32_t accepted = 0;    // committed tokens that were drafted
  int32_t committed = 0;   // 1 … k + 1, cut by end ids and budget
  bool ended = false;      // the last committed token is an end id
  bool exhausted = false;  // the budget is used up (ended wins when both)
};

// tokens: [segments][stride] int32 committed tokens; stride >= 1 + the largest `drafted`.
void accept(Stream& stream, std::span<const AcceptSegment> segments, std::span<AcceptResult> results, int32_t* tokens,
            int32_t stride);

}  // namespace volley::ops
