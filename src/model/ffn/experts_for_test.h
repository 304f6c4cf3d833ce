// A layer of experts alone, for tests.
#pragma once

#include <random>
#include <vector>

#include "model/pass.h"

namespace volley::model {

// A decoder of one layer with these experts.
inline Decoder decoder_of(int32_t hidden, const Experts& experts) {
  Decoder decoder;
  decoder.hidden = hidden;
  decoder.layers = {{Attention{}, experts}};
  return decoder;
}

// The layer's block, with made-up weights for the tensors of its list.
inline std::unique_ptr<FfnBlock> load_experts(Device& device, const Decoder& decoder, const std::vector<Param>& list,
                                              DType activation, const ops::WeightFormat& storage) {
  const auto checkpoint = weights::make_dummy_checkpoint(5);
  WeightLoader loader(device, *checkpoint, {activation, storage}, list);
  auto block = load_block(loader, *decoder.experts(0),
                          {.prefix = "layers.0.", .numerics = {activation, activation}, .ropes = {}});
  VOLLEY_CHECK_MSG(block.ok(), block.error().message);
  return std::move(*block);
}

inline std::vector<float> row_of(int64_t hidden, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(static_cast<size_t>(hidden));
  for (float& v : row) v = normal(random);
  return row;
}

}  // namespace volley::model
