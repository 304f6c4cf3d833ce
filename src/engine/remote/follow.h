// Runs a node other than the first, or a process that computes for an engine: its ranks replay the calls.
#pragma once

#include "engine/run/replica.h"
#include "nodes/follower.h"

namespace volley::engine {

// Engine::follow() after the nodes have met, and Engine::compute() after its assignment, as the only node. wrap: as
// Replica::create(). Reports failures to node 0, or to the engine.
Status follow_links(const EngineOptions& options, const ResolvedModels& models, nodes::Links links,
                    const Progress& progress, const std::function<void()>& started,
                    const Replica::WrapDevice& wrap = {});

}  // namespace volley::engine
