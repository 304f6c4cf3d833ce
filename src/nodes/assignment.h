// The first message of an engine to a process that computes for it (engine/device_process.h): what to load, and the
// facts that both must share.
#pragma once

#include <volley/engine.h>

#include <vector>

#include "nodes/calls.h"
#include "nodes/facts.h"

namespace volley::nodes {

inline constexpr size_t kMostAssignmentBytes = 1 << 20;

struct Assignment {
  EngineOptions options;        // for one replica, without the callbacks and device_command
  int64_t available_bytes = 0;  // bytes of memory that the engine had for this replica when it planned
  std::vector<Fact> facts;      // facts that must be the same there
  std::vector<int64_t> sizes;   // the plan that it must follow
};

void append_assignment(Bytes& out, Assignment assignment);
// kInvalidArgument: not an assignment.
Result<Assignment> read_assignment(const net::Frame& frame);

}  // namespace volley::nodes
