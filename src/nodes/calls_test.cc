// Protects: a node reads the command that node 0 wrote, and changed bytes become an error or a command within the
// limits.
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

Bytes written(Message message) {
  Bytes bytes;
  append_call(bytes, std::move(message));
  return bytes;
}

Call heard(const net::Frame& frame) {
  auto call = read_call(frame, limits());
  VOLLEY_CHECK_MSG(call.ok(), call.error().message);
  return std::move(*call);
}
// The command after writing and reading it.
Call heard(Message message) {
  const auto frames = frames_of(written(std::move(message)));
  VOLLEY_CHECK_EQ(frames.size(), 1u);
  return heard(frames[0]);
}

template <typename T>
const T& as(const Call& call) {
  return std::get<T>(std::get<decode::Command>(call.message));
}

std::string refusal(Message message) {
  const auto call = read_call(frames_of(written(std::move(message))).at(0), limits());
  if (call.ok()) return "";
  EXPECT_EQ(call.error().code, ErrorCode::kInvalidArgument);
  return call.error().message;
}

const std::vector<TokenId> kPrompt = {1, 2, 3, 4}, kOutput = {5, 6};
const std::vector<decode::RopeAxes> kAxes = {{1, 1, 1}, {2, 3, 2}, {99, 0, 4}};
const std::vector<float> kVectors = {1.5f, -2, 0, 3e30f, 4, -0.25f};

decode::SlotStart start() {
  decode::SlotStart start;
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
  start.rope_offset = -3;
  return start;
}

class Masked final : public decode::MaskSource {
  void fill(std::span<const TokenId>, uint32_t*, int32_t) override {}
  void give_up(Why) override {}
};

std::vector<decode::RoundSegment> segments() {
  std::vector<decode::RoundSegment> all(3);
  all[0].slot = 2;
  all[0].draft = 5;
  all[0].chooses = true;
  all[0].shift = -0.25f;
  all[0].simulate = decode::SimulatedAcceptance{0.5f, 0.75f};
  all[1].slot = 0;
  all[1].chooses = true;
  all[1].masks = std::make_shared<Masked>();
  all[2].slot = 3;
  all[2].start = 1;
  all[2].known = std::span(kPrompt).subspan(1);
  all[2].scored = std::span(kPrompt).subspan(2);
  all[2].axes = kAxes;
  const std::span<const float> first = std::span(kVectors).first(3), last = std::span(kVectors).last(3);
  all[2].given = {{0, {first, last}}, {2, {last, first}}};
  return all;
}

kv::MemoryCopy copy(kv::MemoryCopy::Kind kind, int32_t slot, int32_t group, int32_t from, int32_t to) {
  return {kind, SlotId(slot), group, PageId(from), PageId(to)};
}

Bytes every_call() {
  using Kind = kv::MemoryCopy::Kind;
  ops::SurvivalTable table;
  table.log_odds[3][4] = 1.25f;
  const std::vector<decode::RoundSegment> step = segments();
  Bytes bytes;
  const auto append = [&](Message message) { append_call(bytes, std::move(message)); };
  append(decode::StartSlot{3, start()});
  append(decode::ClearSlot{1});
  append(decode::SetPage{1, 1, 6, PageId(5)});
  append(decode::CopyMemory{copy(Kind::kSave, 1, 0, 0, 2)});
  append(decode::CopyMemory{copy(Kind::kRestore, 2, 0, 0, 0)});
  append(decode::CopyMemory{copy(Kind::kPage, 0, 0, 9, 3)});
  append(decode::Reserve{step});
  append(decode::Enqueue{step, {}});
  append(decode::Enqueue{step, {6, &table, 1}});
  append(decode::FillMasks{});
  append(decode::Wait{});
  append(Masks{{1, 2, 3}});
  append(End{});
  return bytes;
}

TEST(Calls, SayHowASlotStarts) {
  const decode::SlotStart said = start();
  const Call call = heard(decode::StartSlot{3, said});
  const decode::SlotStart& heard = as<decode::StartSlot>(call).start;
  EXPECT_EQ(as<decode::StartSlot>(call).slot, 3);
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
  EXPECT_EQ(heard.rope_offset, -3);
  EXPECT_TRUE(std::ranges::equal(heard.prompt, kPrompt) && std::ranges::equal(heard.output, kOutput));
}

// Every command that passes validation comes back unchanged.
TEST(Calls, SayExtremes) {
  decode::SlotStart said = start();
  SamplingParams& p = said.sampling.params;
  for (const int32_t top_k : {-1, 0, INT32_MAX}) {
    for (const float least : {std::numeric_limits<float>::denorm_min(), 1.0f}) {
      p.temperature = p.top_p = p.repetition_penalty = least;
      p.top_k = top_k;
      const Call call = heard(decode::StartSlot{3, said});
      const SamplingParams& back = as<decode::StartSlot>(call).start.sampling.params;
      EXPECT_TRUE(back.top_k == top_k && back.top_p == least && back.repetition_penalty == least);
    }
  }
}

TEST(Calls, SayWhoTakesPartInAStep) {
  ops::SurvivalTable table;
  table.log_odds[15][31] = -3;
  const auto said = segments();
  const Call call = heard(decode::Enqueue{said, {6, &table, 1}});
  const auto& [back, budget] = as<decode::Enqueue>(call);
  EXPECT_EQ(budget.rows, 6);
  EXPECT_EQ(budget.drafter, 1);
  ASSERT_TRUE(budget.table != nullptr && budget.table != &table);
  EXPECT_EQ(std::memcmp(budget.table->log_odds, table.log_odds, sizeof(table.log_odds)), 0);
  ASSERT_EQ(back.size(), said.size());
  for (size_t i = 0; i < said.size(); ++i) {
    const decode::RoundSegment &a = said[i], &b = back[i];
    EXPECT_TRUE(a.slot == b.slot && a.start == b.start && a.draft == b.draft && a.chooses == b.chooses) << i;
    EXPECT_TRUE(a.shift == b.shift && (a.masks == nullptr) == (b.masks == nullptr)) << i;
    ASSERT_EQ(a.simulate.has_value(), b.simulate.has_value()) << i;
    if (a.simulate) {
      EXPECT_TRUE(a.simulate->p == b.simulate->p && a.simulate->confidence == b.simulate->confidence);
    }
    EXPECT_TRUE(std::ranges::equal(a.known, b.known) && std::ranges::equal(a.scored, b.scored)) << i;
    EXPECT_TRUE(std::ranges::equal(a.axes, b.axes)) << i;
    ASSERT_EQ(a.given.size(), b.given.size()) << i;
    for (size_t j = 0; j < a.given.size(); ++j) {
      EXPECT_EQ(a.given[j].begin, b.given[j].begin);
      ASSERT_EQ(b.given[j].vectors.size(), 2u);
      for (int k = 0; k < 2; ++k) EXPECT_TRUE(std::ranges::equal(a.given[j].vectors[k], b.given[j].vectors[k]));
    }
  }
  const Call whole = heard(decode::Enqueue{said, {}});
  const decode::VerifyBudget& all = as<decode::Enqueue>(whole).budget;
  EXPECT_TRUE(all.rows == decode::VerifyBudget::kAll && all.table == nullptr);
}

TEST(Calls, SayTheRest) {
  const auto frames = frames_of(every_call());
  std::vector<Call> calls;
  for (const net::Frame& frame : frames) calls.push_back(heard(frame));
  ASSERT_EQ(calls.size(), 13u);
  EXPECT_EQ(as<decode::ClearSlot>(calls[1]).slot, 1);
  const auto& page = as<decode::SetPage>(calls[2]);
  EXPECT_TRUE(page.slot == 1 && page.group == 1 && page.index == 6 && page.page == PageId(5));
  const auto& saved = as<decode::CopyMemory>(calls[3]).copy;
  EXPECT_TRUE(saved.kind == kv::MemoryCopy::Kind::kSave && saved.slot == SlotId(1) && saved.to == PageId(2));
  const auto& restored = as<decode::CopyMemory>(calls[4]).copy;
  EXPECT_TRUE(restored.kind == kv::MemoryCopy::Kind::kRestore && restored.slot == SlotId(2));
  EXPECT_EQ(restored.from, PageId(0));
  const auto& copied = as<decode::CopyMemory>(calls[5]).copy;
  EXPECT_TRUE(copied.kind == kv::MemoryCopy::Kind::kPage && copied.group == 0);
  EXPECT_TRUE(copied.from == PageId(9) && copied.to == PageId(3));
  EXPECT_EQ(as<decode::Reserve>(calls[6]).segments.size(), 3u);
  (void)as<decode::FillMasks>(calls[9]);
  (void)as<decode::Wait>(calls[10]);
  EXPECT_EQ(std::get<Masks>(calls[11].message).words, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_TRUE(std::holds_alternative<End>(calls[12].message));
}

TEST(Calls, BeyondTheLimitsAreRefused) {
  using Kind = kv::MemoryCopy::Kind;
  EXPECT_THAT(refusal(decode::ClearSlot{4}), HasSubstr("the slot is 4, not within 0 and 3"));
  EXPECT_THAT(refusal(decode::SetPage{0, 2, 0, PageId(0)}), HasSubstr("the cache group is 2"));
  EXPECT_THAT(refusal(decode::SetPage{0, 0, 7, PageId(0)}), HasSubstr("the place of a page is 7"));
  EXPECT_THAT(refusal(decode::SetPage{0, 1, 0, PageId(6)}), HasSubstr("the page is 6"));
  EXPECT_THAT(refusal(decode::CopyMemory{copy(Kind::kSave, 0, 0, 0, 3)}), HasSubstr("the snapshot is 3"));
  EXPECT_THAT(refusal(decode::CopyMemory{copy(Kind::kPage, 0, 1, 0, 6)}), HasSubstr("the page is 6"));
  EXPECT_DEATH(written(decode::TakePart{}), "of one process");
  const std::vector<uint8_t> pixels(24);
  EXPECT_EQ(refusal(decode::See{4, 2, pixels, 0, 3}), "");
  EXPECT_EQ(refusal(decode::See{4, 2, {}, 3, 4}), "");
  EXPECT_THAT(refusal(decode::See{3, 2, pixels, 0, 3}), HasSubstr("pixels do not fit"));
  EXPECT_THAT(refusal(decode::See{4, 2, {}, 0, 3}), HasSubstr("pixels do not fit"));
  EXPECT_THAT(refusal(decode::See{8, 8, {}, 1, 3}), HasSubstr("pixels do not fit"));
  EXPECT_THAT(refusal(decode::See{4, 2, pixels, 0, 0}), HasSubstr("the end of a picture's units is 0"));
  const auto started = [](const auto& change) {
    auto wrong = start();
    change(wrong);
    return refusal(decode::StartSlot{0, wrong});
  };
  EXPECT_THAT(started([](auto& start) { start.sampling.params.top_p = 0; }), HasSubstr("top_p is 0"));
  EXPECT_THAT(started([](auto& start) { start.limits.max_tokens = 97; }),
              HasSubstr("the sequence is longer than it may be"));
  const std::vector<TokenId> unknown = {50};
  EXPECT_THAT(started([&](auto& start) { start.prompt = unknown; }), HasSubstr("the prompt has the token 50"));
  const auto step = [&](const auto& change) {
    auto wrong = segments();
    change(wrong);
    return refusal(decode::Enqueue{wrong, {}});
  };
  using Segments = std::vector<decode::RoundSegment>;
  EXPECT_EQ(step([](Segments&) {}), "");
  EXPECT_THAT(step([](Segments& s) { s[1].slot = 2; }), HasSubstr("a slot takes part twice"));
  EXPECT_THAT(step([](Segments& s) { s[0].draft = 8; }), HasSubstr("the number of drafted tokens is 8"));
  EXPECT_THAT(step([](Segments& s) { std::swap(s[1], s[2]); }), HasSubstr("decodes comes after one that does not"));
  EXPECT_THAT(step([](Segments& s) { s[2].start = 98; }), HasSubstr("a segment reaches too far"));
  EXPECT_THAT(step([](Segments& s) { s[2].scored = kPrompt; }), HasSubstr("the tokens to score has 4 values"));
  EXPECT_THAT(step([](Segments& s) { s.clear(); }), HasSubstr("nobody takes part"));
  const std::vector<TokenId> many(60, 1);
  EXPECT_THAT(step([&](Segments& s) { s[2].known = many, s[2].axes = {}; }), HasSubstr("more rows than it may have"));
  const auto shared = segments();
  EXPECT_THAT(refusal(decode::Enqueue{shared, {6, nullptr}}), HasSubstr("the rows to share out do not fit"));
  net::Frame passes = frames_of(written(decode::Wait{})).at(0);
  passes.payload[1] = static_cast<std::byte>(decode::Command(decode::TakePart{}).index());
  EXPECT_THAT(read_call(passes, limits()).error().message, HasSubstr("of one process"));
  EXPECT_THAT(read_call({999, {}}, limits()).error().message, HasSubstr("unknown kind"));
}

// Every command with changed, cut off or added bytes, many times.
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
    const auto* command = call.ok() ? std::get_if<decode::Command>(&call->message) : nullptr;
    if (command == nullptr) continue;
    if (const auto* step = std::get_if<decode::Enqueue>(command)) {
      ASSERT_LE(step->segments.size(), 4u);
      for (const decode::RoundSegment& segment : step->segments) {
        ASSERT_TRUE(segment.slot >= 0 && segment.slot < 4 && segment.draft < 8);
        for (const TokenId token : segment.known) ASSERT_TRUE(token >= 0 && token < 50);
      }
    }
    if (const auto* page = std::get_if<decode::SetPage>(command)) {
      ASSERT_TRUE(page->group >= 0 && page->group < 2 && page->index >= 0 && page->index < 7 && page->page.value >= 0);
    }
  }
  EXPECT_GT(refused, 10'000);
  EXPECT_GT(taken, 10'000);
}

TEST(Replies, ComeBackAsTheyWere) {
  Bytes bytes;
  append_reply(bytes, Ready{3, 100, 60, 5, {2, 16, 1024, {8, 16}, {{3, 15}, {1, 3}}}, "NVIDIA H200"});
  append_reply(bytes, Answer{Status()});
  append_reply(bytes, Answer{resource_exhausted("No room.")});
  append_reply(bytes, Report{0xfedc'ba98'7654'3210, 77});
  append_reply(bytes, Failed{std::string(20'000, 'x')});
  const auto frames = frames_of(bytes);
  const auto at = [&](size_t i) { return *read_reply(frames.at(i)); };
  const auto ready = std::get<Ready>(at(0));
  EXPECT_TRUE(ready.threads == 3 && ready.weight_bytes == 100 && ready.target_bytes == 60 && ready.state_bytes == 5);
  const decode::StepTraits& traits = ready.traits;
  EXPECT_TRUE(traits.depth == 2 && traits.block_size == 16 && traits.most_shared_rows == 1024);
  EXPECT_EQ(traits.row_buckets, (std::vector<int32_t>{8, 16}));
  EXPECT_EQ(traits.draft_lengths, (std::vector<std::vector<int32_t>>{{3, 15}, {1, 3}}));
  EXPECT_EQ(ready.device, "NVIDIA H200");
  const auto status = [&](size_t i) { return std::get<Status>(std::get<Answer>(at(i)).answer); };
  EXPECT_TRUE(status(1).ok());
  EXPECT_EQ(status(2).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(status(2).error().message, "No room.");
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
  decode::RoundResult result;
  result.tokens = {5, 6, 7};
  result.drafted = 4;
  result.confidence = {0.5f, 0.25f, 1.0f, 0.0f};
  result.accepted = 2;
  result.ended = true;
  result.logprobs = {position(5), position(6), position(7)};
  result.scores = {position(8)};
  decode::RoundResult other;
  other.exhausted = true;
  other.finite = false;
  decode::StepResults step{{result, other}, {1.5, 2.5, {}}, {1, 2, 3, 4, 5, 6}, 9};
  step.times.arrived = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(123'456'789));
  Bytes bytes;
  append_reply(bytes, Loading{"Loading weights", 0.25});
  append_reply(bytes, MaskQuestion{{{1, 2, 3}, {}, {4}}});
  append_reply(bytes, Answer{step});
  const auto frames = frames_of(bytes);
  const auto at = [&](size_t i) { return *read_reply(frames.at(i)); };
  const auto loading = std::get<Loading>(at(0));
  EXPECT_TRUE(loading.phase == "Loading weights" && loading.fraction == 0.25);
  EXPECT_EQ(std::get<MaskQuestion>(at(1)).drafted, (std::vector<std::vector<TokenId>>{{1, 2, 3}, {}, {4}}));
  const auto back = std::get<decode::StepResults>(std::get<Answer>(at(2)).answer);
  ASSERT_EQ(back.results.size(), 2u);
  const decode::RoundResult& one = back.results[0];
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
    net::Frame frame = frames[random() % 3];
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
  options.verify = {VerifyPolicy::Kind::kFixed, 3};
  append_assignment(bytes, {options, 1 << 30, {{"--dtype", "bfloat16"}, {"the files", "ab"}}, {400, 0, 17}});
  const auto frame = frames_of(bytes).at(0);
  const auto back = *read_assignment(frame);
  EXPECT_TRUE(back.available_bytes == 1 << 30 && back.sizes == (std::vector<int64_t>{400, 0, 17}));
  EXPECT_EQ(back.options.model_dir, "models/one");
  EXPECT_TRUE(back.options.kv_cache_dtype == KvCacheType::kFp8 && back.options.max_num_seqs == 17);
  EXPECT_TRUE(back.options.memory_fraction == 0.25 && !back.options.prefix_cache && back.options.dummy_weights == 0u);
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
  std::vector<decode::RoundResult> one(2);
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
