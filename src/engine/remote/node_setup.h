// Makes the processes of one engine agree on models, options and pages.
#pragma once

#include "engine/start/models.h"
#include "nodes/calls.h"
#include "nodes/meeting.h"

namespace volley::engine {

// Facts that must be equal in all processes, because calls and results depend on them. `models` needs no pages yet.
// Reads the models' folders; errors as base/file.h.
Result<std::vector<nodes::Fact>> node_facts(const EngineOptions& options, const ResolvedModels& models);

// Waits for the other nodes. Then `models` has the pages, snapshots, slots and rows of a step of the node with the
// fewest. Errors as nodes::meet() and node_facts().
Result<nodes::Links> meet_nodes(const EngineOptions& options, ResolvedModels& models);

// The numbers that memory decides: pages, snapshots, slots and rows. take_sizes() puts them into models of equal facts.
std::vector<int64_t> sizes_of(const ResolvedModels& models);
void take_sizes(std::span<const int64_t> sizes, ResolvedModels& models);

// Bounds of what node 0's calls may contain.
nodes::CallLimits call_limits(const ResolvedModels& models);

}  // namespace volley::engine
