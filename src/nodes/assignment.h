// What an engine says first to a process that computes for it (engine/device_process.h): which replica it is, and what
// both must have in common.
#pragma once

#include <vector>

#include "nodes/calls.h"
#include "nodes/facts.h"

namespace volley::nodes {

inline constexpr size_t kMostAssignmentBytes = 1 << 20;

struct Assignment {
  int32_t replica = 0;
  int32_t max_num_seqs = 0;    // the engine's option
  std::vector<Fact> facts;     // that must be the same there
  std::vector<int64_t> sizes;  // that it is to take
};

void append_assignment(Bytes& out, const Assignment& assignment);
// kInvalidArgument: it is none.
Result<Assignment> read_assignment(const net::Frame& frame);

}  // namespace volley::nodes
