// What the config.json of DeepSeek's models words in its own way, and families after it likewise: latent attention, and
// experts behind a router with groups and biases, beside one that every row goes through.
#pragma once

#include "families/common.h"

namespace volley::families {

// read_dense() of a family with latent attention in every layer.
Result<DenseConfig> read_latent(const ConfigFields& config, const std::string& family);

// The experts of a family whose router has sigmoid scores, a bias for each expert, and groups.
Result<model::Experts> read_biased_experts(const ConfigFields& config);
// Their number and widths, and that of the shared expert. For families with another router.
Result<model::Experts> read_shared_experts(const ConfigFields& config, bool renormalise);

// A target whose layers from number dense_layers on have these experts. Files may hold layers after the last, which
// predict further tokens and are not read.
TargetConfig target_with_experts(DenseConfig dense, const model::Experts& experts, int32_t dense_layers);

}  // namespace volley::families
