// What a node does that is not the first, and a process that computes for an engine: its ranks replay the calls.
#pragma once

#include "engine/run/replica.h"
#include "nodes/follower.h"

namespace volley::engine {

// Engine::follow() from where the nodes have met, and Engine::compute() from where it has been told what to load, as
// the only node there is. wrap: as Replica::create(). Tells node 0, or the engine, of what fails here.
Status follow_links(const EngineOptions& options, const ResolvedModels& models, nodes::Links links,
                    const Progress& progress, const std::function<void()>& started,
                    const Replica::WrapDevice& wrap = {});

}  // namespace volley::engine
