// A drafter as its folder describes it, before any weight is read. The engine plans with it and then loads it, and
// knows no drafter's configuration. proposers.h finds the spec of a folder.
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

// The facts that the engine plans with. A kind of drafter derives from it to add its own.
struct ProposerFacts {
  // A field of config.json that only this kind has, by its name there.
  struct Field {
    std::string name;
    std::variant<int32_t, std::vector<int32_t>> value;
  };

  std::string architecture;             // config.json "architectures"[0]
  model::Decoder decoder;               // the drafter's layers; vocabulary and embeddings are the target's
  int32_t proposals = 0;                // tokens of a pass for a block, as the drafter was trained
  std::vector<int32_t> feature_layers;  // target layers whose outputs it reads, in the order of their columns
  bool borrows_head = false;            // it multiplies with the target's output head, or with a copy of it in codes
  std::vector<model::Param> params;     // tensors in its own folder
  weights::NameRules names;
  std::vector<Field> fields;   // for people
  std::string likely_mistake;  // a clause about its files for when almost nothing is accepted, or empty
};

// Arguments of load(). References must outlive the proposer.
struct ProposerLoad {
  Device& device;
  std::shared_ptr<const weights::Checkpoint> checkpoint;  // by the model layer's names
  const model::Network& target;
  // The output head that a drafter without one of its own multiplies with: a copy, in codes; null: the target's. With
  // several ranks: this rank's part.
  std::shared_ptr<const ops::LinearWeight> head_copy;
  model::Numerics numerics;
  int64_t positions = 0;                   // positions that the rotary tables cover
  std::span<const ops::KvLayer> kv;        // the drafter's layers
  int32_t proposals = 0;                   // tokens of a pass for a block, >= 1
  int32_t context_window = 0;              // positions that a block sees before itself; 0: all
  std::function<void(int64_t)> on_packed;  // may be empty; gets the bytes packed so far
  std::optional<ops::Mask> window_mask;    // the mask of sliding-window layers, instead of the files'
  // The ranks that share target and drafter, or null. `target` and `kv` are this rank's parts (model::shard_of()).
  comm::Communicator* group = nullptr;
  int32_t slots = 0;          // rows of the slot table, the scrap slot's included
  int32_t longest_draft = 0;  // tokens that any drafter's pass proposes for a block
  int32_t rows = 0;           // of a pass of the target at most
};

// Threads: immutable.
class ProposerSpec {
 public:
  virtual ~ProposerSpec() = default;

  virtual const ProposerFacts& facts() const = 0;
  // Whether it fits the target. kFailedPrecondition names both values. Needs no weights.
  virtual Status check_target(const model::Decoder& target) const = 0;
  // Errors as WeightLoader.
  virtual Result<std::unique_ptr<Proposer>> load(const ProposerLoad& load) const = 0;
};

// A kind of drafter as a file calls it, and as papers do if it is known and not built.
std::string kind_text(const std::string& name);

// Whether it has layers with a sliding window.
bool has_windows(const ProposerFacts& facts);

// The block size for --block-size `requested`, its known first token included (0: as the drafter was trained). Below 2
// is an error; a larger size than it was trained for adds a sentence to `warnings`.
Result<int32_t> resolve_block_size(const ProposerFacts& facts, int32_t requested, std::vector<std::string>* warnings);

}  // namespace volley::decode
