// Simulated acceptance, for measuring with random weights: how many drafted tokens of a block "match".
#pragma once

#include <cstdint>

namespace volley::spec {

// Each drafted token whose predecessors were accepted is accepted with probability p, so position i survives with p^i.
// A pure function of its arguments: the same run repeats.
int32_t simulated_acceptance(double p, int32_t drafted, uint64_t seed, int32_t start);

}  // namespace volley::spec
