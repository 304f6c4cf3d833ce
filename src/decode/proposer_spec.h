// A drafter as its folder describes it, before any weight is read: the engine plans with it and then loads it, and
// knows no drafter's configuration. proposers.h finds the one for a folder.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "decode/proposer.h"
#include "model/network.h"
#include "weights/named.h"

namespace volley::decode {

// What the engine plans with. A kind of drafter that needs to know more of itself derives from it.
struct ProposerFacts {
  // A field of its config.json that its kind alone has, by its name there.
  struct Field {
    std::string name;
    std::variant<int32_t, std::vector<int32_t>> value;
  };

  std::string architecture;             // config.json "architectures"[0]
  model::Decoder decoder;               // its layers; vocabulary and embeddings are the target's
  int32_t proposals = 0;                // of a pass for a block, as it was trained
  std::vector<int32_t> feature_layers;  // of the target, whose outputs it reads, in the order of their columns
  bool borrows_head = false;            // it multiplies the target's output head, or a copy of it
  std::vector<model::Param> params;     // what it loads from its own folder
  weights::NameRules names;
  std::vector<Field> fields;   // to be shown
  std::string likely_mistake;  // in its files, where next to nothing is accepted: a clause, or empty
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
  int32_t proposals = 0;                   // of a pass for a block, >= 1
  int32_t context_window = 0;              // positions before the block that it sees; 0: all
  std::function<void(int64_t)> on_packed;  // may be empty; gets the bytes packed so far
  std::optional<ops::Mask> window_mask;    // of sliding-window layers, instead of what its files say
  // The ranks that have target and drafter together, or null. `target` is this rank's, `kv` as its part of the
  // drafter's layers (model::shard_of()) asks for.
  comm::Communicator* group = nullptr;
  int32_t slots = 0;  // rows of the slot table, the scrap slot's included
};

// Threads: immutable.
class ProposerSpec {
 public:
  virtual ~ProposerSpec() = default;

  virtual const ProposerFacts& facts() const = 0;
  // Whether it fits the target. kFailedPrecondition with both values. Needs no weights.
  virtual Status check_target(const model::Decoder& target) const = 0;
  // Weights that it takes from the target's folder to store them in `storage`, too; none where it borrows the target's.
  virtual std::vector<model::Param> copied_params(const model::Decoder& target,
                                                  const ops::WeightFormat& storage) const {
    return {};
  }
  // Errors as WeightLoader.
  virtual Result<std::unique_ptr<Proposer>> load(const ProposerLoad& load) const = 0;
};

// Whether it has layers with a sliding window.
bool has_windows(const ProposerFacts& facts);

// Tokens of a block, the known one that it begins with included, where --block-size asks for `requested` (0: what the
// drafter was trained for). Below 2 is an error; above what it was trained for adds a sentence to `warnings`.
Result<int32_t> resolve_block_size(const ProposerFacts& facts, int32_t requested, std::vector<std::string>* warnings);

}  // namespace volley::decode
