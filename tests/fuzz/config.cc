// config.json and generation_config.json of targets, config.json of drafters; then the list of tensors that they need.
#include "decode/dflash/config.h"
#include "families/family.h"
#include "fuzz.h"
#include "model/params.h"

using namespace volley;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [kind, text] = fuzz::choose(data, size, 3);
  fuzz::write_file("config.json", kind == 1 ? R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64,
    "vocab_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": true})"
                                            : text);
  fuzz::write_file("generation_config.json", kind == 1 ? text : "{}");
  if (kind == 2) {
    (void)decode::dflash::read_config(fuzz::folder());
    return 0;
  }
  const auto target = families::read_target(fuzz::folder());
  // Millions of tensors are a matter of memory, not of parsing.
  if (target.ok() && target->decoder.layers.size() < 100) (void)model::count(model::params(target->decoder));
  return 0;
}
