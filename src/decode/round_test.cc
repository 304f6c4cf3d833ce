// Tests the round by itself. For any drafts, and any split of rows into steps, chunks of logits and slots, the
// committed tokens equal those of a pass over the whole sequence.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "decode/round_testing.h"

namespace volley::decode {
namespace {

std::vector<TokenId> some_prompt(int32_t n, int32_t first) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < n; ++i) prompt.push_back((first + 13 * i + i * i) % (kVocab - 1));
  return prompt;
}

// The requests differ in every parameter. Their answers take a while, so they are computed once.
const std::vector<TinyRequest>& requests() {
  static const std::vector<TinyRequest> list = {{some_prompt(21, 5), 101, 1.0f},  {some_prompt(1, 40), 102, 0.0f},
                                                {some_prompt(33, 9), 103, 0.7f},  {some_prompt(16, 2), 104, 1.3f},
                                                {some_prompt(15, 60), 105, 1.0f}, {some_prompt(5, 17), 106, 1.0f}};
  return list;
}
const std::vector<TokenId>& answer(size_t i) {
  static const std::vector<std::vector<TokenId>> list = [] {
    std::vector<std::vector<TokenId>> made;
    for (const TinyRequest& request : requests()) made.push_back(recomputed(request));
    return made;
  }();
  return list[i];
}

void know_answers(TinyWorld& world) {
  for (size_t i = 0; i < requests().size(); ++i) world.proposer->answers[requests()[i].seed] = answer(i);
}

// Starts request i in a slot, computes its prompt in one piece, and returns the tokens so far.
std::vector<TokenId> prefill(TinyWorld& world, int32_t slot, size_t i) {
  world.start(slot, requests()[i]);
  return world.step({known(slot, requests()[i].prompt)})[0].tokens;
}

void append(std::vector<TokenId>& to, const RoundResult& result) {
  EXPECT_TRUE(result.finite);
  to.insert(to.end(), result.tokens.begin(), result.tokens.end());
}

// Checks that these tokens begin the answer to request i.
void expect_begins(const std::vector<TokenId>& tokens, size_t i) {
  ASSERT_LE(tokens.size(), answer(i).size());
  EXPECT_EQ(tokens, std::vector<TokenId>(answer(i).begin(), answer(i).begin() + std::ssize(tokens))) << "request " << i;
}

bool never(uint64_t, int32_t) {
  return false;
}
bool always(uint64_t, int32_t) {
  return true;
}
// Picks one place in four, different ones for each request.
bool sometimes(uint64_t seed, int32_t place) {
  return (seed * 7 + static_cast<uint64_t>(place) * 11) % 4 == 0;
}

// Protects: drafts decide only how many tokens a step commits, whether all are right, none, or some.
TEST(Round, DraftsChangeStepsAndNoTokens) {
  for (const auto& [wrong, least, most] : {std::tuple{&never, 6.5, 8.0}, {&always, 1.0, 1.0}, {&sometimes, 1.5, 4.5}}) {
    TinyWorld world({.block_size = 8});
    know_answers(world);
    world.proposer->are_wrong = wrong;
    std::vector<std::vector<TokenId>> tokens;
    for (size_t i = 0; i < 4; ++i) tokens.push_back(prefill(world, static_cast<int32_t>(i), i));
    std::vector<bool> done(4);
    int32_t blocks = 0, committed = 0;
    while (std::ranges::count(done, false) > 0) {
      std::vector<RoundSegment> segments;
      for (int32_t slot = 0; slot < 4; ++slot) {
        if (!done[slot]) segments.push_back(decoding(slot, 7));
      }
      const auto results = world.step(segments);
      for (size_t s = 0; s < results.size(); ++s) {
        append(tokens[segments[s].slot], results[s]);
        const auto committed_now = static_cast<int32_t>(results[s].tokens.size());
        EXPECT_TRUE(committed_now == results[s].accepted + 1 ||
                    (results[s].exhausted && committed_now == results[s].accepted));
        done[segments[s].slot] = results[s].exhausted;
        ++blocks;
        committed += committed_now;
      }
    }
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(tokens[i], answer(i)) << i;
    EXPECT_GE(1.0 * committed / blocks, least);
    EXPECT_LE(1.0 * committed / blocks, most);
  }
}

// A prompt with a picture of 3 x 4 in its tokens 4 to 15, which bring vectors and positions.
struct SeenPrompt {
  TinyRequest request{some_prompt(33, 9), 107, 0.7f};
  std::vector<RopeAxes> axes;  // of the prompt and of the answer
  std::vector<float> embeddings, added;

  SeenPrompt() {
    request.rope_offset = 4 - 12;
    for (int32_t i = 0; i < kPositions; ++i) {
      const int32_t cell = i - 4;
      if (cell >= 0 && cell < 12) {
        axes.push_back({4, 4 + cell / 4, 4 + cell % 4});
      } else {
        axes.emplace_back().fill(cell < 0 ? i : i + request.rope_offset);
      }
    }
    for (int32_t i = 0; i < 12 * 32; ++i) {
      embeddings.push_back(std::sin(static_cast<float>(i * i)));
      added.push_back(std::cos(static_cast<float>(3 * i)));
    }
  }
  // Tokens [from, from + n).
  RoundSegment piece(int32_t slot, std::span<const TokenId> tokens, int32_t from, int32_t n) const {
    RoundSegment segment = known(slot, tokens, from, n);
    segment.axes = std::span(axes).subspan(from, n);
    const int32_t begin = std::max(from, 4), rows = std::min(from + n, 16) - begin;
    if (rows <= 0) return segment;
    const auto part = [&](std::span<const float> all) { return all.subspan((begin - 4) * 32, rows * 32); };
    segment.given = {{begin - from, {part(embeddings), part(added)}}};
    return segment;
  }
  std::vector<TokenId> answer() const {
    TinyWorld world({});
    world.start(0, request);
    std::vector<TokenId> tokens = world.step({piece(0, request.prompt, 0, 33)})[0].tokens;
    while (std::ssize(tokens) < 20) tokens.push_back(world.step({decoding(0, 0)})[0].tokens.at(0));
    return tokens;
  }
};

// Protects: a picture may be cut anywhere, beside requests without one, and is computed again when its request resumes.
TEST(Round, PicturesComeInPieces) {
  const SeenPrompt seen;
  const std::vector<TokenId> want = seen.answer();
  for (const bool blind : {true, false}) {  // the vectors show, and the positions do
    SeenPrompt less;
    if (blind) std::ranges::fill(less.embeddings, 0.0f);
    if (!blind) std::reverse(less.axes.begin() + 4, less.axes.begin() + 33);
    EXPECT_NE(less.answer(), want) << blind;
  }
  for (const int32_t piece : {1, 5, 16, 17}) {
    TinyWorld world({.block_size = 4, .threads = 2});
    know_answers(world);
    world.proposer->answers[seen.request.seed] = want;
    world.proposer->are_wrong = sometimes;
    std::vector<TokenId> first = prefill(world, 1, 0), second;
    world.start(0, seen.request);
    for (int32_t from = 0; from < 33; from += piece) {
      const auto results =
          world.step({decoding(1, 3), seen.piece(0, seen.request.prompt, from, std::min(piece, 33 - from))});
      append(first, results[0]);
      append(second, results[1]);
    }
    while (std::ssize(second) < 20) append(second, world.step({decoding(0, 3)})[0]);
    second.resize(20);
    EXPECT_EQ(second, want) << piece;
    expect_begins(first, 0);
    const std::vector<int32_t>& features = world.proposer->committed[0];
    for (int32_t i = 0; i < 33; ++i) EXPECT_EQ(features[i], i) << "drafters count tokens";
  }
  std::vector<TokenId> all = seen.request.prompt;
  all.insert(all.end(), want.begin(), want.begin() + 6);
  TinyWorld world({});
  world.start(0, seen.request, std::span(want).first(6));
  EXPECT_EQ(world.step({seen.piece(0, all, 0, 39)})[0].tokens.at(0), want[6]);
}

// Protects: a prompt may come in pieces of any length, beside decoding requests, with page and chunk borders anywhere.
TEST(Round, PromptsComeInPieces) {
  for (const int32_t piece : {1, 5, 16, 17}) {
    TinyWorld world({.block_size = 4, .page_size = 16, .threads = 2});
    know_answers(world);
    world.proposer->are_wrong = sometimes;
    std::vector<TokenId> first = prefill(world, 1, 0), second;
    world.start(0, requests()[2]);
    const std::vector<TokenId>& prompt = requests()[2].prompt;
    for (int32_t from = 0; from < std::ssize(prompt); from += piece) {
      const int32_t n = std::min<int32_t>(piece, static_cast<int32_t>(prompt.size()) - from);
      const auto results = world.step({decoding(1, 3), known(0, prompt, from, n)});
      append(first, results[0]);
      append(second, results[1]);
      EXPECT_EQ(results[1].tokens.size(), from + n == std::ssize(prompt) ? 1u : 0u);
    }
    while (std::ssize(second) < 20) append(second, world.step({decoding(0, 3)})[0]);
    expect_begins(first, 0);
    expect_begins(second, 2);
  }
}

// Protects: a step asks the drafter for the least agreed length that suffices for all its requests, each request gets
// the number that it wanted, and chunks of logits hold whole blocks.
TEST(Round, DraftsComeInAgreedLengthsAndLogitsInChunks) {
  TinyWorld world({.block_size = 8, .logit_rows = 8, .draft_lengths = {{2, 5, 7}}});
  know_answers(world);
  std::vector<std::vector<TokenId>> tokens;
  for (size_t i = 0; i < 3; ++i) tokens.push_back(prefill(world, static_cast<int32_t>(i), i));
  const auto step = [&](const std::vector<int32_t>& drafts) {
    std::vector<RoundSegment> segments;
    for (size_t i = 0; i < drafts.size(); ++i) segments.push_back(decoding(static_cast<int32_t>(i), drafts[i]));
    const auto results = world.step(segments);
    for (size_t i = 0; i < drafts.size(); ++i) {
      EXPECT_EQ(results[i].drafted, drafts[i]);
      EXPECT_EQ(results[i].confidence.size(), static_cast<size_t>(drafts[i]));
      EXPECT_EQ(results[i].accepted, drafts[i]) << "all of them are right";
      append(tokens[i], results[i]);
    }
    return world.proposer->asked.back();
  };
  const auto mixed = step({3, 1, 0});
  EXPECT_EQ(mixed.blocks, 2);
  EXPECT_EQ(mixed.length, 5) << "five tokens are the least that was agreed on and is enough for three";
  EXPECT_EQ(mixed.drafts, 4);
  EXPECT_EQ(mixed.chunks, 1u);
  const auto full = step({7, 7, 7});
  EXPECT_EQ(full.length, 7);
  EXPECT_EQ(full.chunks, 3u) << "two blocks of seven rows do not fit into eight";
  const size_t before = world.proposer->asked.size();
  step({0, 0, 0});
  EXPECT_EQ(world.proposer->asked.size(), before) << "nobody drafts";
  for (size_t i = 0; i < 3; ++i) expect_begins(tokens[i], i);
}

// Protects: two drafters take turns at the blocks of a step, each within its own lengths; both learn the same rows,
// each from its own layers; and the tokens stay the same.
TEST(Round, TwoDraftersTakeTurns) {
  TinyWorld world({.block_size = 8, .second_block_size = 4, .draft_lengths = {{2, 7}, {1, 3}}});
  know_answers(world);
  world.second->answers = world.proposer->answers;
  world.proposer->are_wrong = world.second->are_wrong = sometimes;
  EXPECT_EQ(world.round->block_size(), 8);
  std::vector<std::vector<TokenId>> tokens;
  for (size_t i = 0; i < 3; ++i) tokens.push_back(prefill(world, static_cast<int32_t>(i), i));
  for (int32_t step = 0; step < 9; ++step) {
    VerifyBudget budget;
    budget.drafter = step % 3 == 2 ? 0 : 1;
    const ScriptedProposer& drafts = budget.drafter == 0 ? *world.proposer : *world.second;
    const size_t before = world.proposer->asked.size() + world.second->asked.size(), own = drafts.asked.size();
    const int32_t wanted = step % 2 == 0 ? 2 : 1;
    const auto results = world.step({decoding(0, wanted), decoding(1, 1), decoding(2, 0)}, budget);
    EXPECT_EQ(world.proposer->asked.size() + world.second->asked.size(), before + 1) << "one of them drafts";
    ASSERT_EQ(drafts.asked.size(), own + 1);
    const int32_t least = budget.drafter == 0 ? 2 : wanted == 2 ? 3 : 1;
    EXPECT_EQ(drafts.asked.back().length, least);
    for (size_t i = 0; i < 3; ++i) append(tokens[i], results[i]);
  }
  for (size_t i = 0; i < 3; ++i) expect_begins(tokens[i], i);
  EXPECT_EQ(world.proposer->committed, world.second->committed);
  EXPECT_EQ(world.proposer->first_features, world.second->first_features) << "both read layer 1 first";
  EXPECT_EQ(TinyWorld({.block_size = 4, .second_block_size = 8}).round->block_size(), 8);
}

// Protects: a verify budget is kept to the row, goes to the tokens most likely to survive, and changes no token.
TEST(Round, ABudgetIsSharedByConfidence) {
  ops::SurvivalTable table;
  for (auto& position : table.log_odds) {
    for (int32_t band = 0; band < ops::SurvivalTable::kBands; ++band) {
      position[band] = ops::SurvivalTable::kLowest + static_cast<float>(band) * ops::SurvivalTable::kWidth;
    }
  }
  for (int32_t rows = 3; rows <= 12; ++rows) {
    TinyWorld world({.block_size = 8});
    know_answers(world);
    world.proposer->are_wrong = [](uint64_t seed, int32_t) { return seed == 102; };
    std::vector<std::vector<TokenId>> tokens;
    for (size_t i = 0; i < 3; ++i) tokens.push_back(prefill(world, static_cast<int32_t>(i), i));
    for (int32_t round = 0; round < 3; ++round) {
      const auto results = world.step({decoding(0, 7), decoding(1, 7), decoding(2, 7)}, {rows, &table});
      EXPECT_EQ(results[0].drafted + results[1].drafted + results[2].drafted, rows - 3);
      EXPECT_EQ(results[1].drafted, 0) << "its drafts are unlikely, the others' are not";
      EXPECT_LE(std::abs(results[0].drafted - results[2].drafted), 1) << "these are equally likely";
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(results[i].confidence.size(), 7u) << "also of what was not verified";
        append(tokens[i], results[i]);
      }
    }
    for (size_t i = 0; i < 3; ++i) expect_begins(tokens[i], i);
  }
}

// Protects: no state of a request outlives its slot: neither what its pages hold past the new sequence's end, nor its
// wish for logprobs, nor that it was done.
TEST(Round, ASlotThatIsUsedAgainKnowsNothingOfBefore) {
  TinyWorld world({.block_size = 8, .slots = 1});
  know_answers(world);
  world.proposer->are_wrong = sometimes;
  for (const bool logprobs : {true, false}) {
    for (const size_t i : {2, 1, 0, 5}) {  // long ones before short ones
      TinyRequest request = requests()[i];
      request.logprobs = logprobs ? 3 : -1;
      world.proposer->committed.clear();
      world.start(0, request);
      std::vector<TokenId> tokens;
      RoundResult result = world.step({known(0, request.prompt)})[0];
      append(tokens, result);
      while (!result.exhausted) {
        result = world.step({decoding(0, 7)})[0];
        append(tokens, result);
        EXPECT_EQ(result.logprobs.size(), logprobs ? result.tokens.size() : 0u);
      }
      EXPECT_EQ(tokens, answer(i));
      // The drafter saw every position of the sequence but the last, each once and in order.
      std::vector<int32_t> positions(request.prompt.size() + tokens.size() - 1);
      std::iota(positions.begin(), positions.end(), 0);
      EXPECT_EQ(world.proposer->committed[0], positions);
      world.round->execute(ClearSlot{0});
    }
  }
}

// Protects: the next step may be enqueued before the host sees this one's results. The device goes on from the
// committed tokens. A slot that turns out to have ended runs one wasted step and commits nothing.
TEST(Round, RunsAheadOfItsResults) {
  EXPECT_EQ(TinyWorld({}).round->depth(), 1);
  TinyWorld world({.block_size = 8, .depth = 2});
  ASSERT_EQ(world.round->depth(), 2);
  know_answers(world);
  world.proposer->are_wrong = sometimes;
  world.start(0, requests()[0]);
  world.start(1, requests()[3]);
  std::vector<std::vector<TokenId>> tokens(2);
  const auto take = [&] {
    const auto results = world.wait();
    for (size_t i = 0; i < 2; ++i) {
      const bool done = std::ssize(tokens[i]) == requests()[0].max_tokens;
      EXPECT_TRUE(!done || (results[i].tokens.empty() && results[i].accepted == 0));
      append(tokens[i], results[i]);
    }
  };
  world.enqueue({known(0, requests()[0].prompt), known(1, requests()[3].prompt)});
  while (std::min(tokens[0].size(), tokens[1].size()) < answer(0).size()) {
    world.enqueue({decoding(0, 7), decoding(1, 7)});
    EXPECT_EQ(world.round->under_way(), 2);
    take();
  }
  take();  // the wasted one
  EXPECT_EQ(world.round->under_way(), 0);
  EXPECT_EQ(tokens[0], answer(0));
  EXPECT_EQ(tokens[1], answer(3));
}

// Protects: an answer ends with its end id or at its limit, also inside an accepted block, and the round says which.
TEST(Round, EndsAtAnEndIdOrALimit) {
  for (int32_t at = 1; at < 12; ++at) {
    const TokenId end = answer(0)[at];
    const auto first = static_cast<int32_t>(std::ranges::find(answer(0), end) - answer(0).begin());
    for (const bool by_id : {true, false}) {
      TinyRequest request = requests()[0];
      if (by_id) {
        request.end_ids = {end, kPoison};
      } else {
        request.max_tokens = at + 1;
      }
      TinyWorld world({.block_size = 16});
      know_answers(world);
      world.start(2, request);
      std::vector<TokenId> tokens;
      RoundResult result = world.step({known(2, request.prompt)})[0];
      append(tokens, result);
      while (!result.ended && !result.exhausted) {
        result = world.step({decoding(2, 15)})[0];
        ASSERT_FALSE(result.tokens.empty());
        append(tokens, result);
      }
      EXPECT_EQ(result.ended, by_id);
      EXPECT_EQ(result.exhausted, !by_id);
      const int32_t length = (by_id ? first : at) + 1;
      EXPECT_EQ(tokens, std::vector<TokenId>(answer(0).begin(), answer(0).begin() + length)) << at;
      EXPECT_TRUE(world.step({decoding(2, 15)})[0].tokens.empty()) << "what is done stays done";
    }
  }
}

// Protects: a request whose logits are no numbers is reported as such, and harms neither its neighbour in the step nor
// the next user of its slot and pages.
TEST(Round, LogitsThatAreNoNumbersStayWithTheirRequest) {
  TinyWorld world({.block_size = 8, .poisoned = true});
  know_answers(world);
  world.proposer->are_wrong = sometimes;
  TinyRequest poisoned = requests()[1];
  poisoned.prompt = some_prompt(40, 3);
  poisoned.prompt[25] = kPoison;
  std::vector<TokenId> beside = prefill(world, 0, 0);
  world.start(1, poisoned);
  const auto results = world.step({decoding(0, 7), known(1, poisoned.prompt)});
  append(beside, results[0]);
  EXPECT_FALSE(results[1].finite);
  EXPECT_TRUE(world.step({decoding(1, 7)})[0].tokens.empty()) << "it is done";
  world.round->execute(ClearSlot{1});
  std::vector<TokenId> after = prefill(world, 1, 4);
  for (int32_t i = 0; i < 4; ++i) {
    const auto both = world.step({decoding(0, 7), decoding(1, 7)});
    append(beside, both[0]);
    append(after, both[1]);
  }
  expect_begins(beside, 0);
  expect_begins(after, 4);
}

// Protects: a request that lost its slot goes on in another one, from its tokens alone.
TEST(Round, AResumedRequestGoesOn) {
  TinyWorld world({.block_size = 8});
  know_answers(world);
  world.proposer->are_wrong = sometimes;
  std::vector<TokenId> tokens = prefill(world, 0, 0);
  for (int32_t i = 0; i < 3; ++i) append(tokens, world.step({decoding(0, 7)})[0]);
  world.round->execute(ClearSlot{0});
  world.start(3, requests()[0], tokens);
  std::vector<TokenId> all = requests()[0].prompt;
  all.insert(all.end(), tokens.begin(), tokens.end());
  RoundSegment rest = known(3, all, 0, static_cast<int32_t>(all.size()) - 1);
  EXPECT_FALSE(rest.chooses);
  EXPECT_TRUE(world.step({rest})[0].tokens.empty());
  while (std::ssize(tokens) < requests()[0].max_tokens) append(tokens, world.step({decoding(3, 7)})[0]);
  EXPECT_EQ(tokens, answer(0));
}

// Protects: a prompt's logprobs are those of the tokens that follow each row, beside requests that decode and for any
// split of the prompt.
TEST(Round, ScoresAPromptHoweverItIsCut) {
  const std::vector<TokenId>& prompt = requests()[2].prompt;
  std::vector<PositionLogprobs> whole;
  for (const int32_t piece : {33, 7}) {
    TinyWorld world({.block_size = 4, .logit_rows = 5});
    know_answers(world);
    prefill(world, 1, 0);
    world.start(0, requests()[2]);
    std::vector<PositionLogprobs> scores;
    for (int32_t from = 0; from < std::ssize(prompt); from += piece) {
      const int32_t n = std::min<int32_t>(piece, static_cast<int32_t>(prompt.size()) - from);
      RoundSegment segment = known(0, prompt, from, n);
      const int32_t scored = std::min<int32_t>(n, static_cast<int32_t>(prompt.size()) - 1 - from);
      segment.scored = std::span(prompt).subspan(from + 1, scored);
      const auto results = world.step({decoding(1, 3), segment});
      ASSERT_EQ(std::ssize(results[1].scores), scored);
      scores.insert(scores.end(), results[1].scores.begin(), results[1].scores.end());
    }
    ASSERT_EQ(scores.size(), prompt.size() - 1);
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(scores[i].chosen.token, prompt[i + 1]);
      double sum = 0;
      EXPECT_EQ(scores[i].top.size(), static_cast<size_t>(ops::kMaxLogprobs));
      for (const TokenLogprob& top : scores[i].top) sum += std::exp(top.logprob);
      EXPECT_LT(sum, 1.0 + 1e-5);
      if (!whole.empty()) EXPECT_EQ(scores[i].chosen.logprob, whole[i].chosen.logprob) << "to the bit";
    }
    if (whole.empty()) whole = scores;
  }
}

// Protects: a caller's mistake in planning steps is caught at once.
TEST(RoundDeath, RefusesWhatMakesNoSense) {
  TinyWorld world({.block_size = 4, .slots = 2});
  know_answers(world);
  prefill(world, 0, 0);
  std::vector<RoundResult> results;
  EXPECT_DEATH(world.round->wait(results), "under_way");
  EXPECT_DEATH(world.step({decoding(1, 0)}), "running");
  EXPECT_DEATH(world.step({decoding(0, 4)}), "draft");
  EXPECT_DEATH(prefill(world, 0, 1), "running");
  TinyWorld plain({.slots = 1});
  prefill(plain, 0, 0);
  EXPECT_DEATH(plain.step({decoding(0, 1)}), "drafters_");
}

// Protects: the state behind n tokens is a function of the tokens, bit for bit. It depends neither on the split into
// steps, nor on rejected drafts, nor on snapshots, which another slot may load while the saved one goes on.
TEST(Round, AStateIsAFunctionOfItsTokens) {
  std::mt19937 random(9);
  const auto below = [&](int32_t bound) { return static_cast<int32_t>(random() % static_cast<uint32_t>(bound)); };
  int32_t rejected = 0, restored = 0;
  for (int run = 0; run < 24; ++run) {
    const size_t i = static_cast<size_t>(run) % 4;
    std::vector<TokenId> all = requests()[i].prompt;
    all.insert(all.end(), answer(i).begin(), answer(i).end());
    const int32_t n = static_cast<int32_t>(std::ssize(all)) - 1 - below(20);
    TinyWorld cold({.max_rows = kPositions});
    cold.start(0, requests()[i]);
    cold.step({known(0, all, 0, n - 1)});
    cold.step({known(0, all, n - 1, 1)});

    TinyWorld world({.block_size = 2 + below(7), .threads = 1 + below(2)});
    know_answers(world);
    world.proposer->are_wrong = sometimes;
    int32_t slot = 0, computed = 0;
    world.start(slot, requests()[i]);
    // Imitates a prefix hit: the snapshot goes on in another slot, and this slot serves another request.
    const auto move_on = [&](std::span<const TokenId> output) {
      if (below(3) > 0 || slot == 2) return;
      world.round->execute(CopyMemory{{kv::MemoryCopy::Kind::kSave, SlotId(slot), 0, {}, PageId(slot)}});
      const int32_t from = slot++;
      world.start(slot, requests()[i], output);
      world.share_pages(slot, 0);
      world.round->execute(ClearSlot{from});
      world.start(from, requests()[5]);
      if (from > 0) world.step({known(from, requests()[5].prompt)});
      world.round->execute(CopyMemory{{kv::MemoryCopy::Kind::kRestore, SlotId(slot), 0, PageId(from), {}}});
      ++restored;
    };
    const auto prompt = static_cast<int32_t>(requests()[i].prompt.size());
    std::vector<TokenId> output;
    while (computed < prompt) {
      const int32_t rows = 1 + below(std::min(prompt - computed, 12));
      const RoundSegment segment = known(slot, std::span(all).first(prompt), computed, rows);
      const std::vector<RoundResult> results = world.step({segment});
      computed += rows;
      if (segment.chooses) append(output, results[0]);
      move_on(output);
    }
    while (computed + world.round->block_size() < n) {
      const int32_t draft = below(world.round->block_size());
      const RoundResult result = world.step({decoding(slot, draft)})[0];
      append(output, result);
      computed += static_cast<int32_t>(result.tokens.size());
      rejected += result.drafted - result.accepted;
      move_on(output);
    }
    expect_begins(output, i);
    if (computed < n - 1) world.step({known(slot, all, computed, n - 1 - computed)});
    world.step({known(slot, all, n - 1, 1)});
    EXPECT_EQ(world.state(slot), cold.state(0)) << "request " << i << ", " << n << " tokens";
  }
  EXPECT_GT(rejected, 50);
  EXPECT_GT(restored, 12);
}

}  // namespace
}  // namespace volley::decode
