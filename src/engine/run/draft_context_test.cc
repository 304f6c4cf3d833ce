// The drafter's context must not depend on how steps were cut. Tests of texts cannot show it, because a text never
// depends on its drafts.
#include <gtest/gtest.h>

#include "engine/start/round_setup.h"

namespace volley::engine {
namespace {

constexpr int32_t kPagesASlot = 8;

class DraftContextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.device = "cpu";
    options.model_dir = "models/pocket";
    options.draft_dir = "models/pocket-dflash";
    options.threads = 2;
    options.kv_pages = 300;
    options.max_num_seqs = 4;
    auto resolved = resolve_models(options);
    ASSERT_TRUE(resolved.ok()) << resolved.error().message;
    models_ = std::make_unique<ResolvedModels>(std::move(resolved).value());
    auto device = make_device(models_->device, options.threads);
    ASSERT_TRUE(device.ok());
    device_ = std::move(device).value();
    auto loaded = load_models(*device_, *models_, 0, {});
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    loaded_.emplace(std::move(loaded).value());
    auto round = make_round(*device_, options, *models_, *loaded_, {});
    ASSERT_TRUE(round.ok()) << round.error().message;
    round_ = std::move(round).value();
  }

  void start(int32_t slot, const std::vector<TokenId>& prompt, int32_t first_page) {
    decode::SlotStart start;
    start.sampling.params.temperature = 0;
    start.sampling.prompt_length = static_cast<int32_t>(prompt.size());
    start.limits.max_tokens = 1000;
    start.prompt = prompt;
    ASSERT_TRUE(round_->execute(decode::StartSlot{slot, start}).ok());
    for (int32_t i = 0; i < kPagesASlot; ++i) {
      round_->execute(decode::SetPage{slot, 0, i, PageId(first_page + i)});
    }
  }

  std::vector<decode::RoundResult> step(const std::vector<decode::RoundSegment>& segments) {
    std::vector<decode::RoundResult> results;
    EXPECT_TRUE(round_->enqueue(segments).ok());
    round_->wait(results);
    return results;
  }

  static decode::RoundSegment prefill(int32_t slot, std::span<const TokenId> tokens, int32_t from = 0) {
    decode::RoundSegment segment;
    segment.slot = slot;
    segment.start = from;
    segment.known = tokens.subspan(from);
    segment.chooses = true;
    return segment;
  }

  static decode::RoundSegment decode(int32_t slot, int32_t draft) {
    decode::RoundSegment segment;
    segment.slot = slot;
    segment.draft = draft;
    segment.chooses = true;
    return segment;
  }

  // Drafts the block after `tokens`, whose context is computed in one pass.
  decode::RoundResult block_after(std::vector<TokenId> tokens, int32_t slot, int32_t first_page, int32_t draft = 15) {
    const TokenId last = tokens.back();
    tokens.pop_back();
    start(slot, tokens, first_page);
    const auto first = step({prefill(slot, tokens)});
    EXPECT_EQ(first[0].tokens, std::vector<TokenId>{last}) << "greedy text goes on as it did";
    auto results = step({decode(slot, draft)});
    round_->execute(decode::ClearSlot{slot});
    return std::move(results[0]);
  }

  static void expect_same_block(const decode::RoundResult& a, const decode::RoundResult& b) {
    EXPECT_FALSE(a.confidence.empty()) << "nothing was drafted";
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.accepted, b.accepted);
    EXPECT_EQ(a.confidence, b.confidence);  // bit for bit
  }

  static std::vector<TokenId> prompt(TokenId first) {
    std::vector<TokenId> ids;
    for (TokenId i = 0; i < 21; ++i) ids.push_back(first + 7 * i);
    return ids;
  }

  std::unique_ptr<ResolvedModels> models_;
  std::unique_ptr<Device> device_;
  std::optional<LoadedModels> loaded_;
  std::unique_ptr<decode::Round> round_;
};

TEST_F(DraftContextTest, BlockAfterPlainStepsIsTheSame) {
  std::vector<TokenId> a = prompt(100), b = prompt(300);
  start(0, a, 0);
  start(1, b, kPagesASlot);
  a.push_back(step({prefill(0, a)})[0].tokens.at(0));
  // The second request comes later, so that their rows wait side by side from different steps.
  for (int i = 0; i < 9; ++i) a.push_back(step({decode(0, 0)})[0].tokens.at(0));
  b.push_back(step({prefill(1, b)})[0].tokens.at(0));
  for (int i = 0; i < 30; ++i) {
    const auto results = step({decode(0, 0), decode(1, 0)});
    a.push_back(results[0].tokens.at(0));
    b.push_back(results[1].tokens.at(0));
  }
  const int32_t most = models_->block_size - 1;
  const auto late = step({decode(0, most), decode(1, most)});
  EXPECT_GT(std::ranges::max(late[0].confidence), 0);
  expect_same_block(late[0], block_after(a, 2, 2 * kPagesASlot));
  expect_same_block(late[1], block_after(b, 3, 3 * kPagesASlot));
}

// More rows than the buffer holds wait, with blocks between the plain steps.
TEST_F(DraftContextTest, BlocksBetweenPlainStepsAreTheSame) {
  std::vector<TokenId> a = prompt(200);
  start(0, a, 0);
  a.push_back(step({prefill(0, a)})[0].tokens.at(0));
  for (const int plain : {1, 16, 66}) {
    for (int i = 0; i < plain; ++i) a.push_back(step({decode(0, 0)})[0].tokens.at(0));
    const auto late = step({decode(0, 3)});
    expect_same_block(late[0], block_after(a, 1, kPagesASlot, 3));
    a.insert(a.end(), late[0].tokens.begin(), late[0].tokens.end());
  }
}

// Other requests may share its pages from then on.
TEST_F(DraftContextTest, SlotThatEndsLeavesItsContextInItsPages) {
  std::vector<TokenId> a = prompt(100);
  start(0, a, 0);
  a.push_back(step({prefill(0, a)})[0].tokens.at(0));
  for (int i = 0; i < 40; ++i) a.push_back(step({decode(0, 0)})[0].tokens.at(0));
  round_->execute(decode::ClearSlot{0});
  const std::vector<TokenId> known(a.begin(), a.end() - 1);
  start(0, known, 0);
  const auto shared = static_cast<int32_t>(known.size()) / models_->page_size * models_->page_size;
  EXPECT_EQ(step({prefill(0, known, shared)})[0].tokens.at(0), a.back());
  const auto late = step({decode(0, models_->block_size - 1)});
  expect_same_block(late[0], block_after(a, 1, kPagesASlot));
}

}  // namespace
}  // namespace volley::engine
