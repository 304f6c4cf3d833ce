// What a model is, as data. A family is a function from config.json to a DecoderSpec and a map of checkpoint names; the
// forward pass is written once over the spec.
#pragma once

#include <volley/result.h>
#include <volley/sampling.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace volley::model {

// config.json "rope_scaling" (Hugging Face): how the rotary frequencies are stretched.
struct RopeSpec {
  enum class Scaling { kNone, kLinear, kLlama3, kYarn };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double original_max_position = 0;                                // llama3, yarn
  double low_freq_factor = 1.0, high_freq_factor = 4.0;            // llama3
  double beta_fast = 32.0, beta_slow = 1.0;                        // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // yarn
  bool truncate = true;                                            // yarn
};

struct LayerSpec {
  enum class Attention { kFull, kSlidingWindow };
  Attention attention = Attention::kFull;
  int32_t window = 0;  // kSlidingWindow: a query at q sees no key k <= q - window (nor, bidirectional, k >= q + window)
  bool causal = true;  // false: a query also sees the later positions of its block (drafters)
};

// A pre-norm decoder with grouped-query attention, optional per-head q/k norms and a SwiGLU MLP.
struct DecoderSpec {
  std::string family;        // "qwen3"
  std::string architecture;  // config.json "architectures"[0]
  int32_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocab = 0;
  float norm_eps = 1e-6f;
  bool qk_norm = true;
  bool tied_embeddings = false;
  int32_t max_positions = 0;
  RopeSpec rope;
  std::vector<LayerSpec> layers;
  std::vector<TokenId> eos_ids;  // config.json and generation_config.json together
  SamplingParams
      default_sampling;  // generation_config.json over the library's defaults (do_sample false: temperature 0)
};

// A DFlash drafter: the decoder layers it shares with any Qwen3, and what is its own.
struct DraftSpec {
  DecoderSpec decoder;     // vocab and embeddings are the target's
  int32_t block_size = 0;  // tokens of a block, the known first one included
  int32_t num_target_layers = 0;
  TokenId mask_token = 0;
  std::vector<int32_t> target_layers;  // layers of the target whose outputs are its features, in fc's order
};

// Reads DIR/config.json (and generation_config.json). kUnimplemented names a family, activation, bias or scaling that
// is not built; kInvalidArgument or kDataLoss name the field that is wrong.
Result<DecoderSpec> read_decoder_spec(const std::string& dir);
Result<DraftSpec> read_draft_spec(const std::string& dir);

// Whether the drafter fits the target: hidden size, vocabulary, number of target layers, layer ids (duplicate, out of
// range), mask token. kFailedPrecondition with both values. Needs no weights.
Status check_pair(const DecoderSpec& target, const DraftSpec& draft);

// block_size that --block-size asks for (0: the drafter's). Below 2 is an error; above what the drafter was trained for
// adds a sentence to `warnings`.
Result<int32_t> resolve_block_size(const DraftSpec& draft, int32_t requested, std::vector<std::string>* warnings);

// Parameters of each model, for `inspect`. A drafter's embedding and head are the target's and do not count.
int64_t count_parameters(const DecoderSpec& spec);
int64_t count_parameters(const DraftSpec& spec);

// cos and sin for positions [0, positions): [positions][head_dim / 2] each, scaling and attention factor included,
// as `transformers` computes them: angles in fp32.
struct RopeValues {
  std::vector<float> cos, sin;
};
RopeValues rope_values(const RopeSpec& spec, int32_t head_dim, int64_t positions);

}  // namespace volley::model
