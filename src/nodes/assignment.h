// What an engine says first to a process that computes for it (engine/device_process.h): what it is to load, and what
// both must have in common.
#pragma once

#include <vector>

#include "nodes/calls.h"
#include "nodes/engine_options.h"
#include "nodes/facts.h"

namespace volley::nodes {

inline constexpr size_t kMostAssignmentBytes = 1 << 20;

struct Assignment {
  EngineOptions options;        // of one replica, without those that put_options() leaves behind
  int64_t available_bytes = 0;  // of memory, that the engine had for this replica when it made its plan
  std::vector<Fact> facts;      // that must be the same there
  std::vector<int64_t> sizes;   // that it is to take
};

void append_assignment(Bytes& out, const Assignment& assignment);
// kInvalidArgument: it is none.
Result<Assignment> read_assignment(const net::Frame& frame);

}  // namespace volley::nodes
