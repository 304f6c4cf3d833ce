// The replies of a node to node 0, and of a process that computes for an engine (engine/device_process.h) to that
// engine.
#pragma once

#include <string>
#include <variant>

#include "nodes/calls.h"

namespace volley::nodes {

inline constexpr size_t kMostReplyBytes = 64 << 10;                // most bytes of a node's reply
inline constexpr size_t kMostProcessReplyBytes = size_t{1} << 30;  // from a process that alone has the results

// The models are loaded; totals over this node's ranks.
struct Ready {
  int32_t threads = 0;
  int64_t weight_bytes = 0, target_bytes = 0, state_bytes = 0;  // target_bytes: the target's part of weight_bytes
  decode::StepTraits traits;
  std::string device;  // Device::name()
};
// The reply to a command with decode::is_answered(); a node answers Wait with Report instead.
struct Answer {
  decode::Answer answer;
};
// The reply to Wait: the results of the step.
struct Report {
  uint64_t digest = 0;  // digest_of()
  int64_t experts_touched = 0;
};
// The node ends.
struct Failed {
  std::string sentence;
};

// Only a process of an engine sends this and the following. Progress of loading, before Ready.
struct Loading {
  std::string phase;
  double fraction = 0;
};
// The drafts of the running step for each of its segments with masks, in order. nodes::Masks answers with the rows of
// all of them, drafted + 1 each.
struct MaskQuestion {
  std::vector<std::vector<TokenId>> drafted;
};
using Reply = std::variant<Ready, Answer, Report, Failed, Loading, MaskQuestion>;

void append_reply(Bytes& out, Reply reply);
// kInvalidArgument: not a reply.
Result<Reply> read_reply(const net::Frame& frame);

// A digest of the state that ranks must share: the tokens, and how each request stands.
uint64_t digest_of(std::span<const decode::RoundResult> results);

}  // namespace volley::nodes
