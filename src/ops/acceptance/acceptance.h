// The acceptance rule, the only one there is: keep drafted tokens while they equal the target's choice at their
// position; the target's choice at the first difference (or after the last drafted token) is the bonus token. Then stop
// ids and the remaining budget cut the committed run. An empty block commits one token: plain decoding.
//
// Plain arithmetic on one block, the same source for the CPU and the GPU; ops/step applies it to every slot of a round.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace volley::ops {

// One block of one slot.
struct AcceptBlock {
  int32_t drafted = 0;              // k drafted tokens
  const int32_t* draft = nullptr;   // [k]
  const int32_t* choice = nullptr;  // [k + 1]: the target's choices at the drafted positions and after them
  int32_t forced_accept = -1;       // >= 0: simulated acceptance: accepts so many drafted tokens; choices are read only
                                    // for the bonus
  int32_t min_tokens_left = 0;      // outputs still owed before end ids may end the request
  int32_t budget = 0;               // tokens that the request may still produce, >= 1
  const int32_t* end_ids = nullptr;  // [end_count]: any of these ends the request; it is committed itself
  int32_t end_count = 0;
};

struct AcceptResult {
  int32_t accepted = 0;    // committed tokens that were drafted
  int32_t committed = 0;   // 1 … k + 1, cut by end ids and budget
  bool ended = false;      // the last committed token is an end id
  bool exhausted = false;  // the budget is used up (ended wins when both)
};

namespace acceptance {

VOLLEY_HOST_DEVICE inline bool is_end(const AcceptBlock& block, int32_t token) {
  for (int32_t i = 0; i < block.end_count; ++i) {
    if (block.end_ids[i] == token) return true;
  }
  return false;
}

VOLLEY_HOST_DEVICE inline int32_t matching_prefix(const AcceptBlock& block) {
  if (block.forced_accept >= 0) return block.forced_accept < block.drafted ? block.forced_accept : block.drafted;
  int32_t n = 0;
  while (n < block.drafted && block.draft[n] == block.choice[n]) ++n;
  return n;
}

}  // namespace acceptance

// tokens: [k + 1] out, the committed ones first.
VOLLEY_HOST_DEVICE inline AcceptResult accept_block(const AcceptBlock& block, int32_t* tokens) {
  const int32_t kept = acceptance::matching_prefix(block);
  AcceptResult result;
  while (result.committed <= kept && result.committed < block.budget && !result.ended) {
    const int32_t i = result.committed++;
    tokens[i] = i < kept ? block.draft[i] : block.choice[kept];
    // The token at i is the (i + 1)th from here: it may end the request if no output is owed after the i before it.
    result.ended = i >= block.min_tokens_left && acceptance::is_end(block, tokens[i]);
  }
  result.accepted = result.committed < kept ? result.committed : kept;
  result.exhausted = result.committed == block.budget && !result.ended;
  return result;
}

}  // namespace volley::ops
