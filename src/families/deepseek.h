// What the config.json of DeepSeek's models words in its own way, and families after it likewise: latent attention, and
// experts behind a router with groups and biases, beside one that every row goes through.
#pragma once

#include "families/common.h"

namespace volley::families {

// A field of the file that must have this value, if it is there.
Status expect_text(const ConfigFields& config, const char* key, const std::string& built);

// read_dense() of a family with latent attention in every layer.
Result<DenseConfig> read_latent(const ConfigFields& config, const std::string& family);

// The experts of a family whose router has sigmoid scores, a bias for each expert, and groups.
Result<model::Experts> read_biased_experts(const ConfigFields& config);
// Their number and widths, and that of the shared expert. For families with another router.
Result<model::Experts> read_shared_experts(const ConfigFields& config, bool renormalise);

// The number of dense layers at the begin: "first_k_dense_replace", or by "mlp_layer_types", which lists every layer;
// `usual` without both.
Result<int32_t> read_dense_layers(const ConfigFields& config, size_t layers, int32_t usual);

// A target whose layers from number dense_layers on have these experts. Files may hold layers after the last, which
// predict further tokens and are not read.
TargetConfig target_with_experts(DenseConfig dense, const model::Experts& experts, int32_t dense_layers);

}  // namespace volley::families
