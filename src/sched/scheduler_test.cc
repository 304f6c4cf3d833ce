#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include "sched/reservation.h"
#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

SchedulerConfig with_rows(int32_t rows) {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = rows;
  return config;
}

SchedulerConfig with_slots(int32_t slots) {
  SchedulerConfig config = roomy();
  config.max_num_seqs = slots;
  return config;
}

// Runs the prefill of everything that is queued, and one token each.
void prefill(Scheduler& scheduler, int steps = 1) {
  for (int i = 0; i < steps; ++i) scheduler.apply(results_of(scheduler.plan({})));
}

// Requests 1 to `last`, each of which decodes.
void start_decoding(Scheduler& scheduler, RequestId last) {
  for (RequestId id = 1; id <= last; ++id) ASSERT_TRUE(scheduler.add(id, "", {1, 2}, 20).ok());
  prefill(scheduler);
}

TEST(SchedulerAdd, RefusesWhatCanNeverFit) {
  SchedulerConfig config = roomy();
  config.groups[0].pages = 10;
  Scheduler scheduler(config);
  EXPECT_EQ(scheduler.add(1, "", {}, 5).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(scheduler.add(1, "", {1}, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(scheduler.add(1, "", counting(0, 100), 29).error().code, ErrorCode::kResourceExhausted);
  // 10 pages are 40 positions: 35 of context and 5 ahead.
  EXPECT_EQ(scheduler.add(1, "", counting(0, 20), 18).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(scheduler.add(1, "", counting(0, 36), 1).error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(scheduler.idle());
  EXPECT_TRUE(scheduler.add(1, "", counting(0, 20), 17).ok());
  EXPECT_TRUE(scheduler.add(2, "", counting(0, 35), 1).ok());
  EXPECT_DEATH((void)scheduler.add(2, "", {1}, 1), "request 2");
}

// Speculation must not delay a new request: drafts leave rows for a prompt that could start.
TEST(SchedulerPlan, DraftsLeaveRowsForPrompts) {
  Scheduler scheduler(with_rows(8));
  for (RequestId id = 1; id <= 2; ++id) ASSERT_TRUE(scheduler.add(id, "", {1}, 50).ok());
  scheduler.plan({.draft = 3});
  scheduler.apply(std::vector<StepResult>{{1, {5}, false}, {2, {5}, false}});
  StepPlan plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(plan.rows, 8) << "alone, two blocks of four fill the step";
  scheduler.apply(std::vector<StepResult>{{1, {6}, false}, {2, {6}, false}});
  ASSERT_TRUE(scheduler.add(3, "", counting(0, 30), 5).ok());
  plan = scheduler.plan({.draft = 3});
  ASSERT_EQ(plan.segments.size(), 3u);
  EXPECT_EQ(plan.segments[2].id, 3u);
  EXPECT_GE(plan.segments[2].known, 3);
  EXPECT_EQ(plan.rows, 8);
}

TEST(SchedulerPlan, ChunksAPromptAndChoosesAtItsEnd) {
  Scheduler scheduler(roomy());
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 20), 8).ok());
  StepPlan plan = scheduler.plan({.draft = 3});
  ASSERT_EQ(plan.started.size(), 1u);
  EXPECT_EQ(plan.started[0].start, 0);
  EXPECT_EQ(std::ssize(plan.page_edits), reserved_pages(roomy(), 20));  // the prompt and a round, at admission
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].known, 16);
  EXPECT_FALSE(plan.segments[0].chooses);
  scheduler.apply({});

  plan = scheduler.plan({.draft = 3});
  EXPECT_TRUE(plan.started.empty());
  EXPECT_EQ(plan.segments[0].start, 16);
  EXPECT_EQ(plan.segments[0].known, 4);
  EXPECT_EQ(plan.segments[0].draft, 0);
  EXPECT_TRUE(plan.segments[0].chooses);
  EXPECT_FALSE(plan.segments[0].decodes);
  scheduler.apply(results_of(plan));

  plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(plan.segments[0].start, 20);
  EXPECT_EQ(plan.segments[0].known, 1);
  EXPECT_EQ(plan.segments[0].draft, 3);
  EXPECT_TRUE(plan.segments[0].decodes);
  scheduler.apply(results_of(plan, {{1, 4}}));
  EXPECT_EQ(scheduler.tokens(1).size(), 25u);
  EXPECT_EQ(scheduler.tokens(1).back(), 1024);
  EXPECT_EQ(scheduler.prompt_length(1), 20);
  EXPECT_EQ(scheduler.plan({.draft = 3}).segments[0].start, 24);
}

// A drafted token past the end of the request would be wasted work, and a row past max_model_len.
TEST(SchedulerPlan, DraftsNoMoreThanTheRequestMayStillSay) {
  Scheduler scheduler(roomy());
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 8), 4).ok());
  prefill(scheduler);
  StepPlan plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(plan.segments[0].draft, 2);  // three tokens remain; the bonus is one of them
  scheduler.apply(results_of(plan, {{1, 2}}));
  plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(plan.segments[0].draft, 0);
  auto results = results_of(plan);
  EXPECT_DEATH(scheduler.apply(results), "remaining");  // no token remains: the request must be finished
  results[0].finished = true;
  scheduler.apply(results);
  EXPECT_TRUE(scheduler.idle());
}

TEST(SchedulerPlan, DecodesBySlotThenPrefillsInTheOrderOfShares) {
  Scheduler scheduler(roomy());
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.add(id, "", counting(0, 4), 20).ok());
  prefill(scheduler);
  ASSERT_TRUE(scheduler.remove(1));
  ASSERT_TRUE(scheduler.add(4, "", counting(50, 40), 4).ok());  // into slot 0
  ASSERT_TRUE(scheduler.add(5, "", counting(150, 40), 4).ok());
  StepPlan plan = scheduler.plan({.draft = 3});
  ASSERT_EQ(plan.segments.size(), 4u);
  EXPECT_EQ(plan.segments[0].id, 2u);
  EXPECT_EQ(plan.segments[1].id, 3u);
  EXPECT_EQ(plan.segments[2].id, 4u);
  EXPECT_EQ(plan.segments[2].slot, SlotId(0));
  EXPECT_EQ(plan.segments[3].id, 5u);
  EXPECT_EQ(plan.rows, 4 + 4 + 16 + 16);
}

// Even where only one row can be spared.
TEST(SchedulerPlan, APromptMovesOnWhenOneRowIsToSpare) {
  SchedulerConfig config = roomy();
  config.max_num_seqs = config.max_num_batched_tokens = 2;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 1), 60).ok());
  scheduler.apply(results_of(scheduler.plan({.draft = 3})));
  ASSERT_TRUE(scheduler.add(2, "", counting(50, 6), 4).ok());
  for (int step = 0; step < 6; ++step) {
    const StepPlan plan = scheduler.plan({.draft = 3});
    ASSERT_NE(segment_of(plan, 2), nullptr) << "step " << step;
    scheduler.apply(results_of(plan));
  }
}

// Every decoding request advances in each step, and drafts divide the remaining rows.
TEST(SchedulerPlan, SharesScarceRows) {
  Scheduler scheduler(with_rows(8));
  start_decoding(scheduler, 3);
  StepPlan plan = scheduler.plan({.draft = 3});
  ASSERT_EQ(plan.segments.size(), 3u);
  EXPECT_EQ(plan.segments[0].draft, 2);
  EXPECT_EQ(plan.segments[1].draft, 2);
  EXPECT_EQ(plan.segments[2].draft, 1);
  EXPECT_EQ(plan.rows, 8);
  scheduler.apply(results_of(plan));

  ASSERT_TRUE(scheduler.add(4, "", counting(0, 40), 4).ok());
  plan = scheduler.plan({.draft = 1});
  ASSERT_EQ(plan.segments.size(), 4u);
  EXPECT_EQ(plan.segments[3].known, 2);  // the chunk takes the remaining rows
  EXPECT_EQ(plan.rows, 8);
}

// Drafts that exceed the rows stay whole where the device can choose which tokens are worth a row.
TEST(SchedulerPlan, LeavesTheChoiceOfRowsToTheDevice) {
  Scheduler scheduler(roomy());
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.add(id, "", {1, 2}, id == 3 ? 3 : 20).ok());
  prefill(scheduler);
  const auto drafts = [](const StepPlan& plan) {
    Tokens drafts;
    for (const PlannedSegment& segment : plan.segments) drafts.push_back(segment.draft);
    return drafts;
  };
  StepPlan plan = scheduler.plan({.draft = 3, .rows = 6, .most_shared_rows = 6});
  EXPECT_TRUE(plan.shared);
  EXPECT_EQ(plan.decode_rows, 6);
  EXPECT_EQ(plan.rows, 6);
  EXPECT_EQ(drafts(plan), (Tokens{3, 3, 1})) << "the last request has two tokens left";
  scheduler.apply(results_of(plan));

  plan = scheduler.plan({.draft = 3, .rows = 6, .most_shared_rows = 5});
  EXPECT_FALSE(plan.shared) << "more than can be shared out: cut instead";
  EXPECT_EQ(drafts(plan), (Tokens{2, 1, 0}));
  EXPECT_EQ(plan.decode_rows, 6);
  auto results = results_of(plan);
  results[2].finished = true;
  scheduler.apply(results);

  plan = scheduler.plan({.draft = 3, .rows = 8, .most_shared_rows = 100});
  EXPECT_FALSE(plan.shared) << "enough for all";
  EXPECT_EQ(plan.rows, 8);
  scheduler.apply(results_of(plan));

  plan = scheduler.plan({.draft = 3, .rows = 1, .most_shared_rows = 100});
  EXPECT_EQ(drafts(plan), (Tokens{0, 0})) << "last tokens need their rows in any case, and nothing else has one";
  EXPECT_FALSE(plan.shared);
  scheduler.apply(results_of(plan));
}

// Prompts take their rows before drafts do, from shared ones too.
TEST(SchedulerPlan, PromptsTakeRowsFromSharedOnes) {
  Scheduler scheduler(with_rows(10));
  start_decoding(scheduler, 2);
  ASSERT_TRUE(scheduler.add(3, "", counting(50, 30), 4).ok());
  const StepPlan plan = scheduler.plan({.draft = 3, .most_shared_rows = 100});
  EXPECT_TRUE(plan.shared);
  EXPECT_EQ(plan.decode_rows, 6);
  ASSERT_EQ(plan.segments.size(), 3u);
  EXPECT_EQ(plan.segments[0].draft, 3);
  EXPECT_EQ(plan.segments[2].known, 4);
  EXPECT_EQ(plan.rows, 10);
}

TEST(SchedulerDecoding, TellsWhoDecodesNext) {
  Scheduler scheduler(with_slots(4));
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 10), 20).ok());
  ASSERT_TRUE(scheduler.add(2, "", counting(50, 5), 3).ok());
  ASSERT_TRUE(scheduler.add(3, "", counting(60, 5), 20, {.speculation = false}).ok());
  EXPECT_TRUE(scheduler.decoding().requests.empty());
  EXPECT_EQ(scheduler.decoding().prompt_rows, 16) << "of 20, what drafts leave to prompts";
  EXPECT_EQ(scheduler.decoding().prompts_ending, 2) << "one row of the third is left";
  prefill(scheduler);
  ASSERT_TRUE(scheduler.add(4, "", counting(100, 40), 4).ok());
  ASSERT_TRUE(scheduler.add(5, "", counting(150, 40), 4).ok());
  const DecodingOutlook outlook = scheduler.decoding();
  ASSERT_EQ(outlook.requests.size(), 3u);
  EXPECT_EQ(outlook.requests[0].id, 2u) << "by slot: short prompts came first";
  EXPECT_EQ(outlook.requests[0].most_draft, 1) << "two tokens remain, and one is the bonus";
  EXPECT_EQ(outlook.requests[1].most_draft, 0);
  EXPECT_EQ(outlook.requests[2].most_draft, 3);
  EXPECT_EQ(outlook.positions, 11 + 6 + 6);
  EXPECT_EQ(outlook.prompt_rows, 16) << "one slot is free, and a chunk has 16 rows";
  EXPECT_EQ(outlook.prompts_ending, 0);
}

TEST(SchedulerPlan, NoOneStartsBeforeTheOneThatIsNext) {
  SchedulerConfig config = roomy();
  config.groups[0].pages = 20;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 40), 2).ok());  // 12 pages
  ASSERT_TRUE(scheduler.add(2, "", counting(50, 40), 2).ok());
  RequestTraits later;
  later.priority = 1;
  ASSERT_TRUE(scheduler.add(3, "", counting(100, 1), 2, later).ok());
  EXPECT_EQ(scheduler.plan({}).started.size(), 1u);
  EXPECT_EQ(scheduler.stats().waiting, 2);
}

TEST(SchedulerPrefix, AFinishedRequestLeavesItsFullPages) {
  Scheduler scheduler(roomy());
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 6), 20).ok());
  prefill(scheduler);
  StepPlan plan = scheduler.plan({.draft = 3});
  auto results = results_of(plan, {{1, 3}});
  results[0].finished = true;
  scheduler.apply(results);
  // 10 tokens, of which the last has no K and V: two full pages.
  EXPECT_EQ(scheduler.stats().pages[0].cached, 2);
  EXPECT_EQ(scheduler.stats().pages[0].used, 2);

  Tokens turn = counting(0, 6);
  for (const TokenId token : {1006, 1007, 1008, 1009, 5, 5}) turn.push_back(token);
  ASSERT_TRUE(scheduler.add(2, "", turn, 4).ok());
  ASSERT_TRUE(scheduler.add(3, "salt", turn, 4).ok());
  plan = scheduler.plan({});
  EXPECT_EQ(plan.started[0].start, 8);
  EXPECT_EQ(plan.segments[0].start, 8);
  EXPECT_EQ(plan.segments[0].known, 4);
  EXPECT_EQ(plan.started[1].start, 0);  // another namespace
}

// Where a prompt has keys, they and the tokens that follow say what is cached.
TEST(SchedulerPrefix, GoesByKeysOfThePrompt) {
  Scheduler scheduler(roomy());
  Tokens turn(9, 7), keys = counting(-20, 9);
  ASSERT_TRUE(scheduler.add(1, "", turn, 20, {.prompt_keys = keys}).ok());
  prefill(scheduler);
  auto results = results_of(scheduler.plan({.draft = 3}), {{1, 3}});
  results[0].finished = true;
  scheduler.apply(results);
  for (const TokenId token : {1009, 1010, 1011, 1012, 5}) {
    turn.push_back(token);
    keys.push_back(token);
  }
  ASSERT_TRUE(scheduler.add(2, "", turn, 4, {.prompt_keys = keys}).ok());
  keys[5] = -99;
  ASSERT_TRUE(scheduler.add(3, "", turn, 4, {.prompt_keys = keys}).ok());
  ASSERT_TRUE(scheduler.add(4, "", turn, 4).ok());
  const StepPlan plan = scheduler.plan({});
  ASSERT_EQ(plan.started.size(), 3u);
  EXPECT_EQ(plan.started[0].start, 12);
  EXPECT_EQ(plan.started[1].start, 4) << "the second page differs";
  EXPECT_EQ(plan.started[2].start, 0);
  EXPECT_EQ(scheduler.tokens(2)[0], 7);
}

// A prompt that is cached to its last token still computes that token: its row chooses the first output.
TEST(SchedulerPrefix, KeepsARowToChoose) {
  Scheduler scheduler(roomy());
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 8), 4).ok());
  prefill(scheduler);
  ASSERT_TRUE(scheduler.add(2, "", counting(0, 8), 4).ok());  // the first still runs: its pages are shared at once
  const StepPlan plan = scheduler.plan({});
  EXPECT_EQ(plan.started[0].start, 4);
  EXPECT_EQ(segment_of(plan, 2)->known, 4);
  EXPECT_TRUE(segment_of(plan, 2)->chooses);
}

// When two requests computed one prompt side by side, the second switches to the first one's pages.
TEST(SchedulerPrefix, DuplicatesMergeWhenThePromptIsComputed) {
  Scheduler scheduler(roomy());
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 9), 8).ok());
  ASSERT_TRUE(scheduler.add(2, "", counting(0, 9), 8).ok());
  StepPlan plan = scheduler.plan({});
  const std::vector<PageEdit> first = plan.page_edits;
  ASSERT_EQ(first.size(), 8u);
  EXPECT_EQ(scheduler.stats().pages[0].used, 8);
  scheduler.apply(results_of(plan));
  EXPECT_EQ(scheduler.stats().pages[0].used, 6);
  plan = scheduler.plan({});
  ASSERT_GE(plan.page_edits.size(), 2u);
  for (int32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.page_edits[static_cast<size_t>(i)].slot, SlotId(1));
    EXPECT_EQ(plan.page_edits[static_cast<size_t>(i)].index, i);
    EXPECT_EQ(plan.page_edits[static_cast<size_t>(i)].page, first[static_cast<size_t>(i)].page);
  }
}

TEST(SchedulerPrefix, OffMeansNothingIsKept) {
  SchedulerConfig config = roomy();
  config.prefix_cache = false;
  Scheduler scheduler(config);
  for (RequestId id = 1; id <= 2; ++id) {
    ASSERT_TRUE(scheduler.add(id, "", counting(0, 8), 4).ok());
    const StepPlan plan = scheduler.plan({});
    EXPECT_EQ(plan.started[0].start, 0);
    scheduler.apply(results_of(plan));
    scheduler.remove(id);
    EXPECT_EQ(scheduler.stats().pages[0].used, 0);
  }
}

TEST(SchedulerPrefix, DropKeepsWhatRunningRequestsUse) {
  Scheduler scheduler(roomy());
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 8), 4).ok());
  ASSERT_TRUE(scheduler.add(2, "", counting(50, 8), 4).ok());
  prefill(scheduler);
  scheduler.remove(1);
  EXPECT_EQ(scheduler.stats().pages[0].cached, 2);
  scheduler.drop_prefix_cache();
  EXPECT_EQ(scheduler.stats().pages[0].cached, 0);
  EXPECT_EQ(scheduler.stats().pages[0].used, reserved_pages(roomy(), 8));
  scheduler.apply(results_of(scheduler.plan({.draft = 3})));
}

TEST(SchedulerRemove, WorksInEveryState) {
  Scheduler scheduler(with_slots(2));
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 8), 4).ok());
  ASSERT_TRUE(scheduler.add(2, "", counting(50, 40), 4).ok());
  ASSERT_TRUE(scheduler.add(3, "", counting(0, 60), 4).ok());
  prefill(scheduler);
  EXPECT_TRUE(scheduler.remove(3));  // waiting
  EXPECT_TRUE(scheduler.remove(2));  // prefilling: its 16 computed tokens stay cached
  EXPECT_TRUE(scheduler.remove(1));  // decoding
  EXPECT_FALSE(scheduler.remove(1));
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.stats().pages[0].used, 2 + 4);
  EXPECT_EQ(scheduler.stats().pages[0].cached, 2 + 4);
  EXPECT_TRUE(scheduler.plan({}).empty());
}

// A request whose numbers are wrong leaves no pages that others would continue from.
TEST(SchedulerRemove, DropsAPrefixThatIsWrong) {
  for (const Prefix prefix : {Prefix::kKept, Prefix::kDropped}) {
    Scheduler scheduler(roomy());
    ASSERT_TRUE(scheduler.add(1, "", counting(0, 40), 4).ok());
    prefill(scheduler);  // a part of it
    EXPECT_TRUE(scheduler.remove(1, prefix));
    EXPECT_EQ(scheduler.stats().pages[0].used > 0, prefix == Prefix::kKept);
    ASSERT_TRUE(scheduler.add(2, "", counting(0, 40), 4).ok());
    EXPECT_EQ(scheduler.plan({}).started[0].start > 0, prefix == Prefix::kKept);
  }
}

// A step that failed on the device: its requests go without results, and the next step is planned as usual.
TEST(SchedulerRemove, TakesAPlannedSegmentOut) {
  Scheduler scheduler(roomy());
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 8), 4).ok());
  ASSERT_TRUE(scheduler.add(2, "", counting(50, 8), 4).ok());
  StepPlan plan = scheduler.plan({});
  EXPECT_TRUE(scheduler.remove(1));
  EXPECT_EQ(scheduler.stats().pages[0].cached, 0);  // none of its tokens are known to be computed
  std::erase_if(plan.segments, [](const PlannedSegment& segment) { return segment.id == 1; });
  scheduler.apply(results_of(plan));
  EXPECT_EQ(scheduler.plan({}).segments.size(), 1u);
}

TEST(SchedulerApply, WantsExactlyTheResultsOfThePlan) {
  Scheduler scheduler(roomy());
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 4), 4).ok());
  ASSERT_TRUE(scheduler.add(2, "", counting(0, 40), 4).ok());
  const StepPlan plan = scheduler.plan({});
  EXPECT_DEATH(scheduler.plan({}), "reserve_rounds");
  EXPECT_DEATH(scheduler.apply({}), "no result of request 1");
  EXPECT_DEATH(scheduler.apply(std::vector<StepResult>(2, {.id = 1, .tokens = {5}})), "two results of 1");
  EXPECT_DEATH(scheduler.apply(std::vector<StepResult>{{.id = 1, .tokens = {5}}, {.id = 2, .tokens = {5}}}),
               "results.size");
  EXPECT_DEATH(scheduler.apply(std::vector<StepResult>{{.id = 1, .tokens = {5, 6}}}), "draft");
  scheduler.apply(results_of(plan));
}

TEST(SchedulerConfigCheck, EverySlotNeedsARow) {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = config.max_num_seqs - 1;
  EXPECT_DEATH(Scheduler{config}, "max_num_batched_tokens");
}

}  // namespace
}  // namespace volley::sched
