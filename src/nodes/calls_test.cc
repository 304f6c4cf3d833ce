// Protects that a node hears what node 0 has said, and that bytes that were changed on the way become a sentence or a
// call within the limits, never anything else.
#include "nodes/calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "base/check.h"
#include "nodes/assignment.h"
#include "nodes/limits_for_test.h"
#include "nodes/replies.h"

namespace volley::nodes {
namespace {

using ::testing::HasSubstr;

std::vector<net::Frame> frames_of(const Bytes& bytes) {
  std::vector<net::Frame> frames;
  for (size_t at = 0; at < bytes.size();) {
    uint32_t head[2];
    std::memcpy(head, bytes.data() + at, sizeof(head));
    net::Frame frame;
    frame.kind = head[1];
    const auto begin = bytes.begin() + static_cast<int64_t>(at + sizeof(head));
    frame.payload.assign(begin, begin + head[0]);
    frames.push_back(std::move(frame));
    at += sizeof(head) + head[0];
  }
  return frames;
}

template <typename T>
T read(const Bytes& bytes) {
  const auto frames = frames_of(bytes);
  VOLLEY_CHECK_EQ(frames.size(), 1u);
  auto call = read_call(frames[0], limits());
  VOLLEY_CHECK_MSG(call.ok(), call.error().message);
  VOLLEY_CHECK(std::holds_alternative<T>(*call));
  return std::get<T>(std::move(*call));
}

std::string refusal(const Bytes& bytes) {
  const auto call = read_call(frames_of(bytes).at(0), limits());
  if (call.ok()) return "";
  EXPECT_EQ(call.error().code, ErrorCode::kInvalidArgument);
  return call.error().message;
}

const std::vector<TokenId> kPrompt = {1, 2, 3, 4}, kOutput = {5, 6};

spec::SlotStart start() {
  spec::SlotStart start;
  SamplingParams& p = start.sampling.params;
  p.temperature = 0.5f, p.top_p = 0.9f, p.top_k = 7, p.min_p = 0.1f;
  p.repetition_penalty = 1.1f, p.presence_penalty = -1, p.frequency_penalty = 2;
  p.logit_bias = {{3, 1.5f}, {49, -100}};
  p.choice_index = 2;
  p.logprobs = 5;
  start.sampling.seed = 0x123456789abcdef0;
  start.sampling.prompt_length = 4;
  start.sampling.min_tokens = 1;
  start.sampling.end_ids = {9};
  start.limits.end_ids = {9, 10};
  start.limits.min_tokens = 1;
  start.limits.max_tokens = 30;
  start.prompt = kPrompt;
  start.output = kOutput;
  start.draft_context = 3;
  return start;
}

class Masked final : public spec::MaskSource {
  void fill(std::span<const TokenId>, uint32_t*, int32_t) override {}
  void give_up(Why) override {}
};

std::vector<spec::RoundSegment> segments() {
  std::vector<spec::RoundSegment> all(3);
  all[0].slot = 2;
  all[0].draft = 5;
  all[0].chooses = true;
  all[0].shift = -0.25f;
  all[0].simulate = spec::SimulatedAcceptance{0.5f, 0.75f};
  all[1].slot = 0;
  all[1].chooses = true;
  all[1].masks = std::make_shared<Masked>();
  all[2].slot = 3;
  all[2].start = 1;
  all[2].known = std::span(kPrompt).subspan(1);
  all[2].scored = std::span(kPrompt).subspan(2);
  return all;
}

Bytes every_call() {
  ops::SurvivalTable table;
  table.log_odds[3][4] = 1.25f;
  Bytes bytes;
  append_start_slot(bytes, 3, start());
  append_clear_slot(bytes, 1);
  append_set_page(bytes, 1, 1, 6, PageId(5));
  append_save_state(bytes, 1, PageId(2));
  append_restore_state(bytes, PageId(0), 2);
  append_copy_page(bytes, 0, PageId(9), PageId(3));
  append_reserve(bytes, segments());
  append_enqueue(bytes, segments(), {}, true);
  append_enqueue(bytes, segments(), {6, &table}, false);
  append_wait(bytes);
  append_masks(bytes, std::vector<uint32_t>{1, 2, 3});
  append_end(bytes);
  return bytes;
}

TEST(Calls, SayHowASlotStarts) {
  Bytes bytes;
  const spec::SlotStart said = start();
  append_start_slot(bytes, 3, said);
  const auto call = read<StartSlot>(bytes);
  const spec::SlotStart heard = call.whole();
  EXPECT_EQ(call.slot, 3);
  const SamplingParams &a = said.sampling.params, &b = heard.sampling.params;
  EXPECT_TRUE(a.temperature == b.temperature && a.top_p == b.top_p && a.top_k == b.top_k && a.min_p == b.min_p);
  EXPECT_TRUE(a.repetition_penalty == b.repetition_penalty && a.presence_penalty == b.presence_penalty &&
              a.frequency_penalty == b.frequency_penalty);
  EXPECT_EQ(a.logit_bias, b.logit_bias);
  EXPECT_TRUE(a.choice_index == b.choice_index && a.logprobs == b.logprobs);
  EXPECT_EQ(heard.sampling.seed, said.sampling.seed);
  EXPECT_TRUE(heard.sampling.prompt_length == 4 && heard.sampling.min_tokens == 1);
  EXPECT_EQ(heard.sampling.end_ids, said.sampling.end_ids);
  EXPECT_EQ(heard.limits.end_ids, said.limits.end_ids);
  EXPECT_TRUE(heard.limits.min_tokens == 1 && heard.limits.max_tokens == 30 && heard.draft_context == 3);
  EXPECT_TRUE(std::ranges::equal(heard.prompt, kPrompt) && std::ranges::equal(heard.output, kOutput));
}

// All that validation lets through comes back.
TEST(Calls, SayExtremes) {
  spec::SlotStart said = start();
  SamplingParams& p = said.sampling.params;
  for (const int32_t top_k : {-1, 0, INT32_MAX}) {
    for (const float least : {std::numeric_limits<float>::denorm_min(), 1.0f}) {
      p.temperature = p.top_p = p.repetition_penalty = least;
      p.top_k = top_k;
      Bytes bytes;
      append_start_slot(bytes, 3, said);
      const SamplingParams heard = read<StartSlot>(bytes).whole().sampling.params;
      EXPECT_TRUE(heard.top_k == top_k && heard.top_p == least && heard.repetition_penalty == least);
    }
  }
}

TEST(Calls, SayWhoTakesPartInAStep) {
  ops::SurvivalTable table;
  table.log_odds[15][31] = -3;
  Bytes bytes;
  append_enqueue(bytes, segments(), {6, &table}, true);
  const auto call = read<Enqueue>(bytes);
  EXPECT_EQ(call.budget_rows, 6);
  EXPECT_TRUE(call.waits);
  ASSERT_TRUE(call.table);
  EXPECT_EQ(std::memcmp(call.table->log_odds, table.log_odds, sizeof(table.log_odds)), 0);
  const auto said = segments();
  ASSERT_EQ(call.of.segments.size(), said.size());
  for (size_t i = 0; i < said.size(); ++i) {
    const spec::RoundSegment &a = said[i], &b = call.of.segments[i];
    EXPECT_TRUE(a.slot == b.slot && a.start == b.start && a.draft == b.draft && a.chooses == b.chooses) << i;
    EXPECT_TRUE(a.shift == b.shift && (a.masks == nullptr) == (b.masks == nullptr)) << i;
    ASSERT_EQ(a.simulate.has_value(), b.simulate.has_value()) << i;
    if (a.simulate) {
      EXPECT_TRUE(a.simulate->p == b.simulate->p && a.simulate->confidence == b.simulate->confidence);
    }
    EXPECT_TRUE(std::ranges::equal(a.known, b.known) && std::ranges::equal(a.scored, b.scored)) << i;
  }
  bytes.clear();
  append_enqueue(bytes, segments(), {}, false);
  const auto whole = read<Enqueue>(bytes);
  EXPECT_TRUE(whole.budget_rows == spec::VerifyBudget::kAll && !whole.table && !whole.waits);
}

TEST(Calls, SayTheRest) {
  const auto frames = frames_of(every_call());
  std::vector<Call> calls;
  for (const net::Frame& frame : frames) calls.push_back(*read_call(frame, limits()));
  ASSERT_EQ(calls.size(), 12u);
  EXPECT_EQ(std::get<ClearSlot>(calls[1]).slot, 1);
  const auto& page = std::get<SetPage>(calls[2]);
  EXPECT_TRUE(page.slot == 1 && page.group == 1 && page.index == 6 && page.page == PageId(5));
  EXPECT_TRUE(std::get<SaveState>(calls[3]).slot == 1 && std::get<SaveState>(calls[3]).snapshot == PageId(2));
  EXPECT_TRUE(std::get<RestoreState>(calls[4]).slot == 2 && std::get<RestoreState>(calls[4]).snapshot == PageId(0));
  const auto& copy = std::get<CopyPage>(calls[5]);
  EXPECT_TRUE(copy.group == 0 && copy.from == PageId(9) && copy.to == PageId(3));
  EXPECT_EQ(std::get<Reserve>(calls[6]).of.segments.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<Wait>(calls[9]));
  EXPECT_EQ(std::get<Masks>(calls[10]).words, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_TRUE(std::holds_alternative<End>(calls[11]));
}

TEST(Calls, BeyondTheLimitsAreRefused) {
  const auto of = [](const auto& append) {
    Bytes bytes;
    append(bytes);
    return refusal(bytes);
  };
  EXPECT_THAT(of([](Bytes& b) { append_clear_slot(b, 4); }), HasSubstr("the slot is 4, not within 0 and 3"));
  EXPECT_THAT(of([](Bytes& b) { append_set_page(b, 0, 2, 0, PageId(0)); }), HasSubstr("the cache group is 2"));
  EXPECT_THAT(of([](Bytes& b) { append_set_page(b, 0, 0, 7, PageId(0)); }), HasSubstr("the place of a page is 7"));
  EXPECT_THAT(of([](Bytes& b) { append_set_page(b, 0, 1, 0, PageId(6)); }), HasSubstr("the page is 6"));
  EXPECT_THAT(of([](Bytes& b) { append_save_state(b, 0, PageId(3)); }), HasSubstr("the snapshot is 3"));
  EXPECT_THAT(of([](Bytes& b) {
                auto wrong = start();
                wrong.sampling.params.top_p = 0;
                append_start_slot(b, 0, wrong);
              }),
              HasSubstr("top_p is 0"));
  EXPECT_THAT(of([](Bytes& b) {
                auto wrong = start();
                wrong.limits.max_tokens = 97;
                append_start_slot(b, 0, wrong);
              }),
              HasSubstr("the sequence is longer than it may be"));
  const std::vector<TokenId> unknown = {50};
  EXPECT_THAT(of([&](Bytes& b) {
                auto wrong = start();
                wrong.prompt = unknown;
                append_start_slot(b, 0, wrong);
              }),
              HasSubstr("the prompt has the token 50"));
  const auto step = [&](const auto& change) {
    auto wrong = segments();
    change(wrong);
    Bytes bytes;
    append_enqueue(bytes, wrong, {}, false);
    return refusal(bytes);
  };
  using Segments = std::vector<spec::RoundSegment>;
  EXPECT_EQ(step([](Segments&) {}), "");
  EXPECT_THAT(step([](Segments& s) { s[1].slot = 2; }), HasSubstr("a slot takes part twice"));
  EXPECT_THAT(step([](Segments& s) { s[0].draft = 8; }), HasSubstr("the number of drafted tokens is 8"));
  EXPECT_THAT(step([](Segments& s) { std::swap(s[1], s[2]); }), HasSubstr("decodes comes after one that does not"));
  EXPECT_THAT(step([](Segments& s) { s[2].start = 98; }), HasSubstr("a segment reaches too far"));
  EXPECT_THAT(step([](Segments& s) { s[2].scored = kPrompt; }), HasSubstr("the tokens to score has 4 values"));
  EXPECT_THAT(step([](Segments& s) { s.clear(); }), HasSubstr("nobody takes part"));
  const std::vector<TokenId> many(60, 1);
  EXPECT_THAT(step([&](Segments& s) { s[2].known = many; }), HasSubstr("more rows than it may have"));
  Bytes bytes;
  append_enqueue(bytes, segments(), {6, nullptr}, false);
  EXPECT_THAT(refusal(bytes), HasSubstr("the rows to share out do not fit"));
  EXPECT_THAT(read_call({999, {}}, limits()).error().message, HasSubstr("unknown kind"));
}

// Every call with bytes that were changed, cut off or added, a lot of times.
TEST(Calls, ChangedBytesDoNoHarm) {
  const auto frames = frames_of(every_call());
  std::minstd_rand random(3);
  int refused = 0, taken = 0;
  for (int i = 0; i < 60'000; ++i) {
    net::Frame frame = frames[random() % frames.size()];
    for (auto n = random() % 3; n > 0 && !frame.payload.empty(); --n) {
      std::byte& b = frame.payload[random() % frame.payload.size()];
      b = random() % 2 == 0 ? static_cast<std::byte>(random()) : b ^ std::byte{0x80};
    }
    if (random() % 4 == 0) frame.payload.resize(random() % (frame.payload.size() + 3));
    const auto call = read_call(frame, limits());
    ++(call.ok() ? taken : refused);
    if (!call.ok()) continue;
    if (const auto* step = std::get_if<Enqueue>(&*call)) {
      ASSERT_LE(step->of.segments.size(), 4u);
      for (const spec::RoundSegment& segment : step->of.segments) {
        ASSERT_TRUE(segment.slot >= 0 && segment.slot < 4 && segment.draft < 8);
        for (const TokenId token : segment.known) ASSERT_TRUE(token >= 0 && token < 50);
      }
    }
    if (const auto* page = std::get_if<SetPage>(&*call)) {
      ASSERT_TRUE(page->group < 2 && page->index >= 0 && page->index < 7 && page->page.value >= 0);
    }
  }
  EXPECT_GT(refused, 10'000);
  EXPECT_GT(taken, 10'000);
}

TEST(Replies, ComeBackAsTheyWere) {
  Bytes bytes;
  append_reply(bytes, Ready{3, 100, 60, 5});
  append_reply(bytes, Answer{});
  append_reply(bytes, Answer{resource_exhausted("No room.")});
  append_reply(bytes, Report{0xfedc'ba98'7654'3210, 77});
  append_reply(bytes, Failed{std::string(20'000, 'x')});
  const auto frames = frames_of(bytes);
  const auto at = [&](size_t i) { return *read_reply(frames.at(i)); };
  const auto ready = std::get<Ready>(at(0));
  EXPECT_TRUE(ready.threads == 3 && ready.weight_bytes == 100 && ready.target_bytes == 60 && ready.state_bytes == 5);
  EXPECT_TRUE(std::get<Answer>(at(1)).status.ok());
  const auto answer = std::get<Answer>(at(2));
  EXPECT_EQ(answer.status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(answer.status.error().message, "No room.");
  EXPECT_EQ(std::get<Report>(at(3)).digest, 0xfedc'ba98'7654'3210);
  EXPECT_EQ(std::get<Report>(at(3)).experts_touched, 77);
  EXPECT_EQ(std::get<Failed>(at(4)).sentence.size(), 8192u);
  std::minstd_rand random(4);
  for (int i = 0; i < 20'000; ++i) {
    net::Frame frame = frames[random() % 4];
    if (!frame.payload.empty()) frame.payload[random() % frame.payload.size()] = static_cast<std::byte>(random());
    const auto reply = read_reply(frame);
    if (!reply.ok()) {
      EXPECT_EQ(reply.error().code, ErrorCode::kInvalidArgument);
    }
  }
}

PositionLogprobs position(TokenId token) {
  return {{token, -0.5f}, {{token + 1, -0.25f}, {token + 2, -std::numeric_limits<float>::infinity()}}};
}

TEST(Replies, OfAProcessComeBackAsTheyWere) {
  spec::RoundResult result;
  result.tokens = {5, 6, 7};
  result.drafted = 4;
  result.confidence = {0.5f, 0.25f, 1.0f, 0.0f};
  result.accepted = 2;
  result.ended = true;
  result.logprobs = {position(5), position(6), position(7)};
  result.scores = {position(8)};
  spec::RoundResult other;
  other.exhausted = true;
  other.finite = false;
  StepResults step{{result, other}, {1.5, 2.5, {}}, {1, 2, 3, 4, 5, 6}, 9};
  step.times.arrived = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(123'456'789));
  Bytes bytes;
  append_reply(bytes, Loading{"Loading weights", 0.25});
  append_reply(bytes, Traits{2, 16, 1024, {8, 16}, {3, 15}, "NVIDIA H200"});
  append_reply(bytes, MaskQuestion{{{1, 2, 3}, {}, {4}}});
  append_reply(bytes, step);
  const auto frames = frames_of(bytes);
  const auto at = [&](size_t i) { return *read_reply(frames.at(i)); };
  const auto loading = std::get<Loading>(at(0));
  EXPECT_TRUE(loading.phase == "Loading weights" && loading.fraction == 0.25);
  const auto traits = std::get<Traits>(at(1));
  EXPECT_TRUE(traits.depth == 2 && traits.block_size == 16 && traits.most_shared_rows == 1024);
  EXPECT_EQ(traits.row_buckets, (std::vector<int32_t>{8, 16}));
  EXPECT_EQ(traits.draft_lengths, (std::vector<int32_t>{3, 15}));
  EXPECT_EQ(traits.device, "NVIDIA H200");
  EXPECT_EQ(std::get<MaskQuestion>(at(2)).drafted, (std::vector<std::vector<TokenId>>{{1, 2, 3}, {}, {4}}));
  const auto back = std::get<StepResults>(at(3));
  ASSERT_EQ(back.results.size(), 2u);
  const spec::RoundResult& one = back.results[0];
  EXPECT_TRUE(one.tokens == result.tokens && one.drafted == 4 && one.confidence == result.confidence);
  EXPECT_TRUE(one.accepted == 2 && one.ended && !one.exhausted && one.finite);
  ASSERT_TRUE(one.logprobs.size() == 3 && one.scores.size() == 1);
  for (const auto& [logprobs, token] : {std::pair(one.logprobs[2], 7), std::pair(one.scores[0], 8)}) {
    EXPECT_TRUE(logprobs.chosen.token == token && logprobs.chosen.logprob == -0.5f && logprobs.top.size() == 2);
    EXPECT_TRUE(logprobs.top[1].token == token + 2 && logprobs.top[1].logprob < -1e38f);
  }
  EXPECT_TRUE(back.results[1].exhausted && !back.results[1].finite && back.results[1].tokens.empty());
  EXPECT_TRUE(back.times.draft == 1.5 && back.times.rest == 2.5 && back.times.arrived == step.times.arrived);
  EXPECT_TRUE(back.phases.draft == 1 && back.phases.commit == 4 && back.phases.idle == 6);
  EXPECT_EQ(back.experts_touched, 9);
  std::minstd_rand random(5);
  for (int i = 0; i < 20'000; ++i) {
    net::Frame frame = frames[random() % 4];
    frame.payload[random() % frame.payload.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) frame.payload.resize(random() % (frame.payload.size() + 3));
    const auto reply = read_reply(frame);
    if (!reply.ok()) {
      EXPECT_EQ(reply.error().code, ErrorCode::kInvalidArgument);
    }
  }
}

TEST(Assignments, ComeBackAsTheyWereAndTellWhatDiffers) {
  Bytes bytes;
  EngineOptions options;
  options.model_dir = "models/one";
  options.kv_cache_dtype = KvCacheType::kFp8;
  options.max_num_seqs = 17;
  options.memory_fraction = 0.25;
  options.prefix_cache = false;
  options.dummy_weights = 0;
  options.simulate_acceptance = SimulatedAcceptance{{{0, 0.5}, {30, 0.75}}, 2};
  options.verify = {VerifyPolicy::Kind::kFixed, 3};
  append_assignment(bytes, {options, 1 << 30, {{"--dtype", "bfloat16"}, {"the files", "ab"}}, {400, 0, 17}});
  const auto frame = frames_of(bytes).at(0);
  const auto back = *read_assignment(frame);
  EXPECT_TRUE(back.available_bytes == 1 << 30 && back.sizes == (std::vector<int64_t>{400, 0, 17}));
  EXPECT_EQ(back.options.model_dir, "models/one");
  EXPECT_TRUE(back.options.kv_cache_dtype == KvCacheType::kFp8 && back.options.max_num_seqs == 17);
  EXPECT_TRUE(back.options.memory_fraction == 0.25 && !back.options.prefix_cache && back.options.dummy_weights == 0u);
  const auto& phases = back.options.simulate_acceptance->phases;
  EXPECT_TRUE(phases.size() == 2 && phases[1].from_step == 30 && phases[1].p == 0.75);
  EXPECT_EQ(back.options.simulate_acceptance->confidence_odds, 2);
  EXPECT_TRUE(back.options.verify.kind == VerifyPolicy::Kind::kFixed && back.options.verify.tokens == 3);
  Bytes again;
  append_assignment(again, back);
  EXPECT_EQ(again, bytes);
  EXPECT_FALSE(first_difference(back.facts, {{"the files", "ab"}, {"--dtype", "bfloat16"}}));
  const auto other = first_difference(back.facts, {{"--dtype", "float32"}, {"the files", "ab"}});
  EXPECT_TRUE(other && other->name == "--dtype" && other->here == "bfloat16" && other->there == "float32");
  const auto less = first_difference(back.facts, {{"--dtype", "bfloat16"}});
  EXPECT_TRUE(less && less->name == "the files" && less->there == "nothing");
  const auto more = first_difference({}, {{"--dtype", "bfloat16"}});
  EXPECT_TRUE(more && more->name == "--dtype" && more->here == "nothing");
  EXPECT_FALSE(read_assignment({frame.kind + 1, frame.payload}).ok());
  EXPECT_FALSE(read_assignment({frame.kind, {frame.payload.begin(), frame.payload.end() - 1}}).ok());
}

TEST(Digest, TellsResultsApart) {
  std::vector<spec::RoundResult> one(2);
  one[0].tokens = {1, 2};
  auto other = one;
  EXPECT_EQ(digest_of(one), digest_of(other));
  other[0].tokens = {1};
  other[1].tokens = {2};
  EXPECT_NE(digest_of(one), digest_of(other));
  other = one;
  other[1].ended = true;
  EXPECT_NE(digest_of(one), digest_of(other));
  other = one;
  other[0].finite = false;
  EXPECT_NE(digest_of(one), digest_of(other));
}

}  // namespace
}  // namespace volley::nodes
