// What a node answers to node 0.
#pragma once

#include <string>
#include <variant>

#include "nodes/calls.h"

namespace volley::nodes {

inline constexpr size_t kMostReplyBytes = 64 << 10;

// The models are loaded; all of this node's ranks together.
struct Ready {
  int32_t threads = 0;
  int64_t weight_bytes = 0, target_bytes = 0, state_bytes = 0;
};
// To StartSlot and Reserve.
struct Answer {
  Status status;
};
// To Wait: what the step came to.
struct Report {
  uint64_t digest = 0;  // digest_of()
  int64_t experts_touched = 0;
};
// The node ends.
struct Failed {
  std::string sentence;
};
using Reply = std::variant<Ready, Answer, Report, Failed>;

void append_reply(Bytes& out, const Reply& reply);
// kInvalidArgument: it is none of the above.
Result<Reply> read_reply(const net::Frame& frame);

// A digest of what ranks must have in common: the tokens, and how each request stands.
uint64_t digest_of(std::span<const spec::RoundResult> results);

}  // namespace volley::nodes
