// For tests of the round, on the CPU: a tiny target whose answers one pass can recompute, and a proposer that is right
// or wrong as a test says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "decode/round.h"
#include "model/params.h"

namespace volley::decode {

inline constexpr int32_t kVocab = 64;
inline constexpr TokenId kPoison = kVocab - 1;  // the embedding of this token is NaN in a poisoned target
inline constexpr int32_t kPositions = 96;       // longest sequence

// Random weights; the poisoned token's embedding row is NaN if asked for. States of recurrent layers fade slowly, so
// that errors in them show.
class TinyWeights final : public weights::Checkpoint {
 public:
  explicit TinyWeights(bool poisoned) : random_(weights::make_dummy_checkpoint(11)), poisoned_(poisoned) {}
  bool has(std::string_view name) const override { return random_->has(name); }
  Result<weights::SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    VOLLEY_ASSIGN(weights::SourceTensor tensor, random_->get(name, shape));
    const bool fading = name.ends_with("A_log");
    if (!fading && (!poisoned_ || name != "embed_tokens.weight")) return tensor;
    const auto* from = reinterpret_cast<const BFloat16*>(tensor.data);
    auto values = std::make_shared<std::vector<BFloat16>>(from, from + (fading ? shape[0] : shape[0] * shape[1]));
    if (fading) {
      std::ranges::fill(*values, to_bfloat16(-3.0f));
    } else {
      for (int64_t i = 0; i < shape[1]; ++i) (*values)[kPoison * shape[1] + i] = {0x7fc0};
    }
    tensor.data = reinterpret_cast<const std::byte*>(values->data());
    tensor.owner = values;
    return tensor;
  }
  Result<weights::SourceTensor> get_part(std::string_view name, std::span<const int64_t> whole, int64_t first,
                                         std::span<const int64_t> shape) const override {
    return random_->get_part(name, whole, first, shape);
  }
  Status check(std::string_view, std::span<const int64_t>) const override { return {}; }
  Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const override {
    return random_->integers(name, count);
  }
  Status check_integers(std::string_view, int64_t) const override { return {}; }
  DType main_dtype() const override { return DType::kBF16; }

 private:
  std::unique_ptr<weights::Checkpoint> random_;
  const bool poisoned_;
};

inline model::Decoder tiny_decoder(int32_t window, bool recurrent) {
  model::Decoder decoder;
  decoder.family = "tiny";
  decoder.hidden = 32;
  decoder.vocab = kVocab;
  model::RopeSpec rope;
  rope.dim = 16;
  rope.axes = {4, 2, 2};
  decoder.added_layers = 1;
  decoder.ropes = {rope};
  model::Attention attention;
  attention.heads = 2, attention.kv_heads = 1, attention.head_dim = 16, attention.scale = 0.25f;
  model::Attention sliding = attention;
  sliding.window = window;
  decoder.layers = {{sliding, model::Dense{48}}, {attention, model::Dense{48}}};
  if (recurrent) decoder.layers.push_back({model::GatedDelta{{1, 2, 16, 16, 4}}, model::Dense{48}});
  return decoder;
}

struct TinyRequest {
  std::vector<TokenId> prompt;
  uint64_t seed = 1;
  float temperature = 1;
  int32_t max_tokens = 40;
  std::vector<TokenId> end_ids;
  int32_t logprobs = -1;
  int32_t rope_offset = 0;
};

// Proposes the slot's answer in `answers`, found by the slot's seed, but for the places that are_wrong(seed, place)
// names. Its confidence tells right from wrong. It records the passes that it was asked for.
class ScriptedProposer final : public Proposer {
 public:
  struct Asked {
    int32_t blocks = 0, length = 0, drafts = 0;
    size_t chunks = 0;
  };
  ScriptedProposer(int32_t proposals, int32_t hidden, std::vector<int32_t> layers)
      : proposals_(proposals), hidden_(hidden), layers_(std::move(layers)) {}

  std::map<uint64_t, std::vector<TokenId>> answers;
  std::function<bool(uint64_t seed, int32_t place)> are_wrong = [](uint64_t, int32_t) { return false; };
  std::vector<Asked> asked;
  std::map<int32_t, std::vector<int32_t>> committed;  // by slot: positions whose features came, in order
  std::map<int32_t, std::vector<std::vector<std::byte>>> first_features;  // theirs of the first layer

  int32_t proposals() const override { return proposals_; }
  std::span<const int32_t> feature_layers() const override { return layers_; }

  void draft(Stream& stream, const DraftPass& pass, const ops::SamplerState&, Arena&) override {
    if (stream.dry()) return;
    asked.push_back({pass.step.blocks, pass.length, pass.drafts, pass.chunks.size()});
    for (int32_t s = 0; s < pass.step.n; ++s) {
      const ops::StepSegment& segment = pass.step.segments[s];
      if (segment.block_index < 0) continue;
      const ops::SlotRow& slot = pass.step.slots[segment.slot];
      const std::vector<TokenId>& answer = answers.at(slot.seed);
      for (int32_t i = 0; i < segment.draft; ++i) {
        const int32_t place = slot.length - slot.prompt_length + i;
        const bool known = place < static_cast<int32_t>(answer.size());
        const TokenId right = known ? answer[place] : 0;
        const bool wrong = !known || are_wrong(slot.seed, place);
        pass.tokens[segment.draft_begin + i] = wrong ? (right + 1) % kPoison : right;
        pass.confidence[segment.draft_begin + i] = wrong ? 0.1f : 0.9f;
      }
    }
  }

  void commit(Stream& stream, const ops::Rows& rows, TensorView features, Arena&) override {
    if (stream.dry()) return;
    const auto row = [&](int64_t i) {
      const auto* begin =
          static_cast<const std::byte*>(features.data) + i * features.dim(1) * dtype_size(features.dtype);
      return std::vector<std::byte>(begin, begin + hidden_ * dtype_size(features.dtype));
    };
    ASSERT_EQ(features.dim(0), rows.rows);
    ASSERT_EQ(features.dim(1), static_cast<int64_t>(layers_.size()) * hidden_);
    for (int32_t i = 0; i < rows.rows; ++i) {
      committed[rows.slots.as<int32_t>()[i]].push_back(rows.cache_positions.as<int32_t>()[i]);
      first_features[rows.slots.as<int32_t>()[i]].push_back(row(i));
    }
  }

 private:
  const int32_t proposals_, hidden_;
  const std::vector<int32_t> layers_;
};

struct TinyOptions {
  int32_t block_size = 1;         // 1: no proposer
  int32_t second_block_size = 1;  // of a second proposer; 1: there is none
  int32_t slots = 4, max_rows = 64, logit_rows = 64, page_size = 16, threads = 1, depth = 0;
  int32_t window = 8;     // the first layer's window
  bool recurrent = true;  // adds a third layer, with the gated delta rule
  bool poisoned = false;
  std::vector<std::vector<int32_t>> draft_lengths;
};

class TinyWorld {
  template <typename T>
  static T must(Result<T> result) {
    VOLLEY_CHECK_MSG(result.ok(), result.ok() ? "" : result.error().message);
    return std::move(result).value();
  }

  const int32_t pages_a_slot_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<model::Network> target_;
  std::unique_ptr<model::KvMemory> kv_;

 public:
  std::unique_ptr<Round> round;
  ScriptedProposer *proposer = nullptr, *second = nullptr;  // null: no such proposer

  explicit TinyWorld(const TinyOptions& options) : pages_a_slot_(kPositions / options.page_size) {
    device_ = must(make_cpu_device(options.threads));
    const model::Decoder decoder = tiny_decoder(options.window, options.recurrent);
    const model::Numerics numerics = {DType::kF32, DType::kBF16};
    const auto weights = std::make_shared<TinyWeights>(options.poisoned);
    const std::vector<model::Param> params = model::params(decoder);
    model::WeightLoader loader(*device_, *weights, numerics, params);
    target_ = must(model::Network::load(loader, weights, decoder, numerics, kPositions));
    model::KvLayout layout = model::kv_layout(model::kv_shapes(decoder), options.page_size, DType::kF32);
    for (kv::Group& group : layout.groups) group.pages = int64_t{options.slots} * pages_a_slot_;
    const int32_t block_size = std::max(options.block_size, options.second_block_size);
    model::add_states(decoder, options.slots, block_size - 1, numerics.activation, layout);
    layout.snapshots = layout.states.empty() ? 0 : options.slots;
    kv_ = must(model::KvMemory::allocate(*device_, layout));
    std::vector<Drafter> drafters;
    const auto add = [&](int32_t block, std::vector<int32_t> features, ScriptedProposer*& made) {
      if (block == 1) return;
      auto scripted = std::make_unique<ScriptedProposer>(block - 1, decoder.hidden, std::move(features));
      made = scripted.get();
      drafters.push_back({std::move(scripted), target_->kv_layers(), 0});
    };
    add(options.block_size, {1, 0}, proposer);
    add(options.second_block_size, {1}, second);
    RoundConfig config;
    config.slots = options.slots;
    config.max_rows = options.max_rows;
    config.max_positions = kPositions;
    config.page_size = options.page_size;
    config.logit_rows = options.logit_rows;
    config.depth = options.depth;
    config.draft_lengths = options.draft_lengths;
    round = must(Round::create(*device_, *target_, *kv_, std::move(drafters), config));
  }

  // Starts a slot on pages of its own, which lie in no order. output: a resumed request's tokens.
  void start(int32_t slot, const TinyRequest& request, std::span<const TokenId> output = {}) {
    SlotStart start;
    start.sampling.params.temperature = request.temperature;
    start.sampling.params.logprobs = request.logprobs;
    start.sampling.params.logit_bias = {{kPoison, -100.0f}};  // keeps the token from being chosen
    start.sampling.seed = request.seed;
    start.sampling.prompt_length = static_cast<int32_t>(request.prompt.size());
    start.sampling.end_ids = start.limits.end_ids = request.end_ids;
    start.limits.max_tokens = request.max_tokens;
    start.prompt = request.prompt;
    start.output = output;
    start.rope_offset = request.rope_offset;
    ASSERT_TRUE(round->execute(StartSlot{slot, start}).ok());
    for (int32_t group = 0; group < std::ssize(kv_->groups()); ++group) {
      for (int32_t i = 0; i < pages_a_slot_; ++i) {
        round->execute(SetPage{slot, group, i, PageId((slot + 1) * pages_a_slot_ - 1 - i)});
      }
    }
  }

  // Makes the slot use another one's pages, from that one's position on.
  void share_pages(int32_t slot, int32_t with) {
    for (int32_t group = 0; group < std::ssize(kv_->groups()); ++group) {
      for (int32_t i = 0; i < pages_a_slot_; ++i) {
        round->execute(SetPage{slot, group, i, PageId((with + 1) * pages_a_slot_ - 1 - i)});
      }
    }
  }
  // Returns what the recurrent layer keeps: its position, its state and the rows before it, without the tape.
  std::vector<std::byte> state(int32_t slot) const {
    const ops::DeltaState& states = kv_->states()[0];
    const ops::DeltaShape shape = *target_->spec().layers.back().mixer_facts().state;
    const auto stride = ops::delta_state_bytes(shape, states.tape_rows, states.dtype);
    const int64_t cursor = 64, state = shape.v_width() * shape.k_dim * int64_t{sizeof(float)};
    const int64_t rows = (shape.taps - 1) * shape.channels() * static_cast<int64_t>(dtype_size(states.dtype));
    const std::byte* begin = states.base + slot * stride;
    std::vector<std::byte> bytes(begin, begin + 4);  // the position; the length of the tape may differ
    bytes.insert(bytes.end(), begin + cursor, begin + cursor + state + rows);
    return bytes;
  }

  void enqueue(const std::vector<RoundSegment>& segments, const VerifyBudget& budget = {}) {
    ASSERT_TRUE(round->enqueue(segments, budget).ok());
  }
  std::vector<RoundResult> wait() {
    std::vector<RoundResult> results;
    round->wait(results);
    return results;
  }
  std::vector<RoundResult> step(const std::vector<RoundSegment>& segments, const VerifyBudget& budget = {}) {
    enqueue(segments, budget);
    return wait();
  }
};

// Returns the segment of tokens [from, from + n), n = -1: all that follow. A prompt's last part chooses.
inline RoundSegment known(int32_t slot, std::span<const TokenId> tokens, int32_t from = 0, int32_t n = -1) {
  RoundSegment segment;
  segment.slot = slot;
  segment.start = from;
  segment.known = n < 0 ? tokens.subspan(from) : tokens.subspan(from, n);
  segment.chooses = from + std::ssize(segment.known) == std::ssize(tokens);
  return segment;
}

inline RoundSegment decoding(int32_t slot, int32_t draft) {
  RoundSegment segment;
  segment.slot = slot;
  segment.draft = draft;
  segment.chooses = true;
  return segment;
}

// Computes the answer token by token, each by a pass over the whole sequence from empty pages. It uses only one
// function of the round, the choice after a prompt.
inline std::vector<TokenId> recomputed(const TinyRequest& request, const TinyOptions& options = {}) {
  TinyOptions plain = options;
  plain.block_size = plain.second_block_size = 1;
  plain.max_rows = kPositions;
  plain.draft_lengths = {};
  std::vector<TokenId> output;
  while (std::ssize(output) < request.max_tokens) {
    TinyWorld world(plain);
    std::vector<TokenId> all = request.prompt;
    all.insert(all.end(), output.begin(), output.end());
    world.start(0, request, output);
    output.push_back(world.step({known(0, all)})[0].tokens.at(0));
    if (std::ranges::count(request.end_ids, output.back()) > 0) break;
  }
  return output;
}

}  // namespace volley::decode
