// A row's result must not depend on the batch, the threads, the instruction set, or on whether tokens before it were
// drafted or committed.
#include <gtest/gtest.h>

#include "ops/choice/choice_testing.h"

namespace volley::ops {
namespace {

class ChoiceInvariance : public ChoiceTest {};

SamplingParams random_params(std::mt19937& rng) {
  SamplingParams p;
  p.temperature = pick(rng, std::vector<float>{0.0f, 0.7f, 1.0f});
  p.top_p = pick(rng, std::vector<float>{1.0f, 1.0f, 0.9f});
  p.top_k = pick(rng, std::vector<int32_t>{0, 0, 50});
  p.min_p = pick(rng, std::vector<float>{0.0f, 0.0f, 0.05f});
  p.repetition_penalty = pick(rng, std::vector<float>{1.0f, 1.0f, 1.2f});
  p.frequency_penalty = pick(rng, std::vector<float>{0.0f, 0.0f, 0.5f});
  p.logprobs = pick(rng, std::vector<int32_t>{-1, 5});
  return p;
}

bool same_row(const Choices& a, size_t i, const Choices& b, size_t j) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && x.logprob == y.logprob;
  };
  const PositionLogprobs& x = a.logprobs[i];
  const PositionLogprobs& y = b.logprobs[j];
  return a.tokens[i] == b.tokens[j] && a.probability[i] == b.probability[j] && a.finite[i] == b.finite[j] &&
         same(x.chosen, y.chosen) && std::equal(x.top.begin(), x.top.end(), y.top.begin(), y.top.end(), same);
}

// Slots with all kinds of parameters, each with one segment: a verify block, a draft, or a single row.
struct Scene {
  Scene(Chooser& on, std::mt19937& rng, int32_t slots, int32_t vocab) : vocab(vocab), state(on.state(slots, vocab)) {
    for (int32_t slot = 0; slot < slots; ++slot) {
      std::vector<TokenId> prompt(20);
      for (TokenId& t : prompt) t = static_cast<TokenId>(rng() % vocab);
      SlotSampling s;
      s.params = random_params(rng);
      s.seed = rng();
      s.prompt_length = 20;
      s.min_tokens = 3;
      s.end_ids = {1};
      EXPECT_TRUE(state->start(slot, s, prompt, {}).ok());
      ChoiceSegment segment = {.slot = slot, .row_begin = rows, .rows = 1 + slot % 4, .first_index = 20};
      if (slot % 2 == 0) {
        prefixes.emplace_back(segment.rows);
        for (TokenId& t : prefixes.back()) t = static_cast<TokenId>(rng() % vocab);
        segment.prefix = prefixes.back().data();
      }
      segments.push_back(segment);
      rows += segment.rows;
    }
    logits = random_logits(rng, static_cast<size_t>(rows) * vocab, 3.0f);
  }

  int32_t vocab;
  int32_t rows = 0;
  std::unique_ptr<SamplerState> state;
  std::vector<std::vector<TokenId>> prefixes;
  std::vector<ChoiceSegment> segments;
  std::vector<float> logits;
};

// Small vocabularies give a row to a thread; large ones may share a row, and cut it into slices.
TEST_F(ChoiceInvariance, BatchThreadsAndInstructionSetDoNotMatter) {
  std::mt19937 rng(9);
  for (const int32_t vocab : {50, 5003, 40009}) {
    Chooser alone(1);
    const Scene scene(alone, rng, vocab > 10000 ? 9 : 24, vocab);
    const Choices whole = alone(scene.logits, vocab, scene.segments, *scene.state);
    for (const int threads : {1, 2, 3, 7}) {
      Chooser threaded(threads);
      const Choices all = threaded(scene.logits, vocab, scene.segments, *scene.state);
      for (int32_t row = 0; row < scene.rows; ++row) ASSERT_TRUE(same_row(all, row, whole, row)) << row;
      for (const ChoiceSegment& segment : scene.segments) {  // each block on its own, at another place
        ChoiceSegment moved = segment;
        moved.row_begin = 0;
        const auto first = scene.logits.begin() + int64_t{segment.row_begin} * vocab;
        const std::vector<float> part(first, first + int64_t{segment.rows} * vocab);
        const Choices one = threaded(part, vocab, {moved}, *scene.state);
        for (int32_t i = 0; i < segment.rows; ++i) ASSERT_TRUE(same_row(one, i, whole, segment.row_begin + i));
      }
    }
    for_each_target([&](const char* target) {
      const Choices all = alone(scene.logits, vocab, scene.segments, *scene.state);
      for (int32_t row = 0; row < scene.rows; ++row) ASSERT_TRUE(same_row(all, row, whole, row)) << target;
    });
  }
}

SlotSampling penalised(std::mt19937& rng) {
  SlotSampling s;
  s.params = random_params(rng);
  s.params.repetition_penalty = 1.15f;
  s.params.presence_penalty = 0.3f;
  s.params.frequency_penalty = 0.4f;
  s.seed = rng();
  s.prompt_length = 4;
  s.min_tokens = 3;
  s.end_ids = {0};
  return s;
}

// Speculation is invisible: row i of a verify block makes the same choice as plain decoding after the block's first i
// tokens, and a draft run in order makes the same choices as if each were committed at once. Repeats are frequent, also
// in the vocabulary that is large enough for threads to overtake each other.
TEST_F(ChoiceInvariance, DraftedTokensCountLikeCommittedOnes) {
  std::mt19937 rng(10);
  const std::vector<TokenId> prompt = {3, 1, 4, 1};
  for (int round = 0; round < 60; ++round) {
    const int32_t vocab = pick(rng, std::vector<int32_t>{4, 12, 60, 30000});
    constexpr int32_t kRows = 9;
    const SlotSampling sampling = penalised(rng);
    std::vector<float> logits = random_logits(rng, static_cast<size_t>(kRows) * vocab, 1.0f);
    std::vector<TokenId> block(kRows);
    for (int32_t i = 0; i < kRows; ++i) {
      block[i] = static_cast<TokenId>(rng() % std::min(vocab, 8));
      for (int32_t v = 0; v < std::min(vocab, 8); ++v) logits[static_cast<size_t>(i) * vocab + v] += 15.0f;
    }
    Chooser choose_on(1 + round % 3);
    for (const bool drafting : {false, true}) {
      const auto state = choose_on.state(1, vocab);
      ASSERT_TRUE(state->start(0, sampling, std::span(prompt).first(vocab > 4 ? 4 : 2), {}).ok());
      ChoiceSegment segment = {.slot = 0, .row_begin = 0, .rows = kRows, .first_index = 4};
      segment.prefix = drafting ? nullptr : block.data();
      const Choices together = choose_on(logits, vocab, {segment}, *state);
      for (int32_t i = 0; i < kRows; ++i) {
        const std::vector<float> row(logits.begin() + i * vocab, logits.begin() + (i + 1) * vocab);
        const ChoiceSegment plain = {.slot = 0, .row_begin = 0, .rows = 1, .first_index = 4 + i};
        const Choices one = choose_on(row, vocab, {plain}, *state);
        ASSERT_TRUE(same_row(one, 0, together, i)) << "round " << round << " row " << i;
        const TokenId committed = drafting ? one.tokens[0] : block[i];
        state->append(0, {&committed, 1});
      }
    }
  }
}

// A preempted request starts again with its outputs, and its choices must not change.
TEST_F(ChoiceInvariance, AResumedSlotEqualsOneThatRanThrough) {
  std::mt19937 rng(11);
  constexpr int32_t kVocab = 30;
  const std::vector<TokenId> prompt = {3, 1, 4, 1};
  const std::vector<TokenId> output = {5, 9, 5, 5, 2};
  Chooser choose_on(1);
  for (int round = 0; round < 50; ++round) {
    const SlotSampling sampling = penalised(rng);
    const auto state = choose_on.state(2, kVocab);
    ASSERT_TRUE(state->start(0, sampling, prompt, {}).ok());
    state->append(0, std::span(output).first(2));
    state->append(0, std::span(output).subspan(2));
    ASSERT_TRUE(state->start(1, penalised(rng), output, prompt).ok());
    ASSERT_TRUE(state->start(1, sampling, prompt, output).ok());  // a slot that is used again keeps nothing
    const std::vector<float> row = random_logits(rng, kVocab, 1.0f);
    std::vector<float> logits = row;
    logits.insert(logits.end(), row.begin(), row.end());
    const Choices got = choose_on(logits, kVocab,
                                  {{.slot = 0, .row_begin = 0, .rows = 1, .first_index = 9},
                                   {.slot = 1, .row_begin = 1, .rows = 1, .first_index = 9}},
                                  *state);
    ASSERT_TRUE(same_row(got, 0, got, 1));
  }
}

}  // namespace
}  // namespace volley::ops
