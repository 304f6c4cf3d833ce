// What a node does that is not the first: its ranks replay node 0's calls.
#pragma once

#include "engine/replica.h"
#include "nodes/follower.h"

namespace volley::engine {

// Engine::follow() from where the nodes have met. wrap: as Replica::create(). Tells node 0 of what fails here.
Status follow_links(const EngineOptions& options, const ResolvedModels& models, nodes::Links links,
                    const Progress& progress, const std::function<void()>& started,
                    const Replica::WrapDevice& wrap = {});

}  // namespace volley::engine
