// The processes of one engine agree on what they are: models, options, pages.
#pragma once

#include "engine/start/models.h"
#include "nodes/calls.h"
#include "nodes/meeting.h"

namespace volley::engine {

// What must be the same in all processes: everything that a step's calls mean something by, and every bit depends on.
// `models` without its pages. Reads the models' folders; errors as base/file.h.
Result<std::vector<nodes::Fact>> node_facts(const EngineOptions& options, const ResolvedModels& models);

// Waits for the other nodes; `models` then has as many pages, snapshots, slots and rows of a step as the node with the
// fewest. Errors as nodes::meet() and node_facts().
Result<nodes::Links> meet_nodes(const EngineOptions& options, ResolvedModels& models);

// What memory decides: pages, snapshots, slots and rows of a step. And back, into models of the same facts.
std::vector<int64_t> sizes_of(const ResolvedModels& models);
void take_sizes(std::span<const int64_t> sizes, ResolvedModels& models);

// What calls from node 0 may say.
nodes::CallLimits call_limits(const ResolvedModels& models);

}  // namespace volley::engine
