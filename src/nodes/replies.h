// What a node answers to node 0, and a process that computes for an engine (engine/device_process.h) to that.
#pragma once

#include <string>
#include <variant>

#include "nodes/calls.h"

namespace volley::nodes {

inline constexpr size_t kMostReplyBytes = 64 << 10;                // of a node
inline constexpr size_t kMostProcessReplyBytes = size_t{1} << 30;  // of a process that alone has the results

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

// A process alone says this and what follows. What it loads, and how far: before it is ready.
struct Loading {
  std::string phase;
  double fraction = 0;
};
// Once it is ready, before Ready: what spec::StepExecutor says of itself.
struct Traits {
  int32_t depth = 1, block_size = 1, most_shared_rows = 0;
  std::vector<int32_t> row_buckets, draft_lengths;
  std::string device;
};
// What the step that runs has drafted for each of its segments with masks, in order: nodes::Masks answers it, with the
// rows of all of them, drafted + 1 each.
struct MaskQuestion {
  std::vector<std::vector<TokenId>> drafted;
};
// To Wait, instead of Report.
struct StepResults {
  std::vector<spec::RoundResult> results;
  spec::StepTimes times;    // by the clock of the machine
  spec::PhaseTimes phases;  // so far
  int64_t experts_touched = 0;
};
using Reply = std::variant<Ready, Answer, Report, Failed, Loading, Traits, MaskQuestion, StepResults>;

void append_reply(Bytes& out, const Reply& reply);
// kInvalidArgument: it is none of the above.
Result<Reply> read_reply(const net::Frame& frame);

// A digest of what ranks must have in common: the tokens, and how each request stands.
uint64_t digest_of(std::span<const spec::RoundResult> results);

}  // namespace volley::nodes
