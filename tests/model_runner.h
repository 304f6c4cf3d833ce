// A target (and a drafter) outside the engine, on the test program's device: one sequence, one page table,
// logits of every position.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "decode/dflash/network.h"
#include "decode/step_executor.h"
#include "harness.h"
#include "model/network.h"
#include "ops/step/step.h"

namespace volley::testing {

class ModelRunner {
 public:
  // Aborts the test program with the error when a model cannot be loaded. draft_dir may be empty. dummy: seed of random
  // weights. group: this is one rank of several, on the CPU; the others make the same calls on threads of their own.
  // by_expert: they divide the experts among them.
  ModelRunner(const std::string& target_dir, const std::string& draft_dir, ComputeType dtype, int32_t max_positions,
              std::optional<uint64_t> dummy = std::nullopt, const std::string& device = kTestDevice,
              comm::Communicator* group = nullptr, bool by_expert = false);

  // What the tokens of a prompt bring beside their ids.
  struct Brought {
    std::vector<decode::RopeAxes> axes;                    // of all tokens; empty: their indices
    std::vector<int32_t> places;                           // the tokens with vectors, ascending
    std::vector<std::vector<std::vector<float>>> vectors;  // [1 + added layers][places][hidden]
  };

  // The tower's vectors of a picture, [1 + added layers][tokens][hidden]. The work is cut after so many units.
  std::vector<std::vector<std::vector<float>>> see(const model::PictureView& picture, int32_t units = 1 << 20);

  // Logits after each of the ids, [ids][vocab], computed in passes of `chunk` rows.
  std::vector<std::vector<float>> logits(std::span<const TokenId> ids, int32_t chunk = 1 << 20,
                                         const Brought& brought = {});
  // The experts that each of the ids is sent to, highest score first: [layers][ids * experts of a row], -1 where
  // another rank has it. The entries of layers without experts are undefined.
  std::vector<std::vector<int32_t>> experts(std::span<const TokenId> ids, int32_t top_k);

  // The drafter's final hidden states of one block, [block][hidden], over a context of given features.
  // features: [context][columns]; block_ids: the known token, then masks.
  std::vector<std::vector<float>> draft_hidden(const std::vector<std::vector<float>>& features,
                                               std::span<const TokenId> block_ids);
  // Its logits of the same rows, [block][vocab].
  std::vector<std::vector<float>> draft_logits(const std::vector<std::vector<float>>& features,
                                               std::span<const TokenId> block_ids);

  // What its selector or Markov head chooses at temperature 0 for the tokens after the known one, and how sure it is.
  struct Choices {
    std::vector<TokenId> tokens;
    std::vector<float> confidence;
  };
  Choices draft_choices(const std::vector<std::vector<float>>& features, std::span<const TokenId> block_ids);

  const model::Decoder& spec() const { return target_->spec(); }

 private:
  // The result of `finish` for the drafter's residual stream x, at rows `index`: [block][width] of a dtype.
  std::vector<std::vector<float>> draft_rows(
      const std::vector<std::vector<float>>& features, std::span<const TokenId> block_ids, DType dtype, int64_t width,
      const std::function<void(const TensorView& x, const TensorView& index, const TensorView& out)>& finish);
  // Runs the target over ids from position `start` on; the residual stream after it, in scratch memory. chosen: as in
  // model::RoutingOptions.
  TensorView target_rows(int32_t start, std::span<const TokenId> ids, TensorView chosen, const Brought& brought = {});
  ops::Rows batch(int32_t start, std::span<const TokenId> ids, const ops::Visibility& visibility,
                  std::span<const decode::RopeAxes> axes = {});
  // Scratch memory of the device with these values, and the values of rows on the device.
  template <typename T>
  TensorView on_device(DType dtype, std::span<const T> values);
  std::vector<std::vector<float>> rows_of(const TensorView& tensor);
  std::vector<int32_t> counting(int32_t n) const;

  // The residual stream of a block after the drafter's layers, in scratch memory.
  TensorView draft_block(const std::vector<std::vector<float>>& features, std::span<const TokenId> block_ids);
  // Scratch memory of passes over so many rows, target and drafter together.
  int64_t measure_passes(int32_t rows);
  model::Pass target_pass(const ops::Rows& rows);
  model::Pass draft_pass(const ops::Rows& rows);

  std::unique_ptr<Device> device_;
  std::unique_ptr<model::Network> target_;
  std::unique_ptr<decode::dflash::Network> draft_;
  std::unique_ptr<model::KvMemory> kv_;
  std::optional<Arena> scratch_;
  std::unique_ptr<model::TowerPass> tower_;
  std::shared_ptr<const std::vector<float>> seen_;  // by the tower, the last time
  Buffer page_table_memory_;
  TensorView page_table_;  // of the one sequence, for all cache groups
};

}  // namespace volley::testing
