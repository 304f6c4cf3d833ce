// A drafter as its folder describes it, before any weight is read: the engine plans with it and then loads it, and
// knows no drafter's configuration. proposers.h finds the one for a folder.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/network.h"
#include "spec/proposer.h"
#include "weights/named.h"

namespace volley::spec {

struct ProposerFacts {
  std::string name;                     // of the algorithm
  std::string architecture;             // config.json "architectures"[0]
  model::Decoder decoder;               // its layers; vocabulary and embeddings are the target's
  int32_t block_size = 0;               // tokens of a block that it was trained for, the known first one included
  int32_t target_layers = 0;            // that its target has; 0 where its files do not say
  TokenId mask_token = 0;               // of the positions to fill
  int32_t draft_vocab = 0;              // > 0: its output head is its own and gives logits of so many of the tokens
  float logit_softcap = 0;              // > 0: its logits are softcap(…) of the head's (ops/logits/logits.h)
  std::vector<int32_t> feature_layers;  // of the target, whose outputs it reads, in the order of their columns
  std::vector<model::Param> params;     // what it loads from its own folder
  weights::NameRules names;
};

// What a drafter is loaded with. References must outlive the proposer.
struct ProposerLoad {
  Device& device;
  std::shared_ptr<const weights::Checkpoint> checkpoint;  // the drafter's, by the model layer's names
  const model::Network& target;
  const weights::Checkpoint& target_checkpoint;
  model::Numerics numerics;
  int64_t positions = 0;                   // how many the rotary tables cover
  std::span<const ops::KvLayer> kv;        // of the drafter's layers
  int32_t block_size = 0;                  // >= 2
  int32_t context_window = 0;              // positions before the block that it sees; 0: all
  std::function<void(int64_t)> on_packed;  // may be empty; gets the bytes packed so far
  std::optional<ops::Mask> window_mask;    // of sliding-window layers, instead of what its files say
  // The ranks that have target and drafter together, or null. `target` is this rank's, `kv` as its part of the
  // drafter's layers (model::shard_of()) asks for.
  comm::Communicator* group = nullptr;
};

// Threads: immutable.
class ProposerSpec {
 public:
  explicit ProposerSpec(ProposerFacts facts) : facts_(std::move(facts)) {}
  virtual ~ProposerSpec() = default;

  const ProposerFacts& facts() const { return facts_; }
  // Whether it fits the target. kFailedPrecondition with both values. Needs no weights.
  virtual Status check_target(const model::Decoder& target) const = 0;
  // Weights that it takes from the target's folder to store them in `storage`, too; none where it borrows the target's.
  virtual std::vector<model::Param> copied_params(const model::Decoder& target,
                                                  const ops::WeightFormat& storage) const = 0;
  // Errors as WeightLoader.
  virtual Result<std::unique_ptr<Proposer>> load(const ProposerLoad& load) const = 0;

 private:
  ProposerFacts facts_;
};

// Whether it has layers with a sliding window.
bool has_windows(const ProposerFacts& facts);

// block_size that --block-size asks for (0: the drafter's). Below 2 is an error; above what the drafter was trained for
// adds a sentence to `warnings`.
Result<int32_t> resolve_block_size(const ProposerFacts& facts, int32_t requested, std::vector<std::string>* warnings);

}  // namespace volley::spec
