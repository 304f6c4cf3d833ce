// Protects: the choices of one request compute their prompt once and find it in the cache; a choice that waits for the
// prompt delays no other request, and runs whatever happens to the choice that it waits for.
#include "sched/shared_prompts.h"

#include <gtest/gtest.h>

#include "sched/scheduler.h"
#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

const RequestTraits kChoice = {.shares_prompt = true, .group = 7};

std::vector<RequestId> started(const StepPlan& plan) {
  std::vector<RequestId> ids;
  for (const PlannedSegment& segment : plan.started) ids.push_back(segment.id);
  return ids;
}

void add_choices(Scheduler& scheduler, RequestId first, RequestId last, const Tokens& prompt, int32_t max_tokens = 4) {
  for (RequestId id = first; id <= last; ++id) ASSERT_TRUE(scheduler.add(id, "", prompt, max_tokens, kChoice).ok());
}

using Ids = std::vector<RequestId>;

// The next step, which starts these requests, the first of them at this position.
StepPlan expect_next(Scheduler& scheduler, const Ids& ids, int64_t start) {
  StepPlan plan = scheduler.plan({});
  EXPECT_EQ(started(plan), ids);
  if (!plan.started.empty()) {
    EXPECT_EQ(plan.started[0].start, start);
  }
  return plan;
}

TEST(SharedPrompts, TheFirstComputesAndTheOthersTakeItsPages) {
  Scheduler scheduler(roomy());
  add_choices(scheduler, 1, 4, counting(0, 30));  // in chunks of 16, and there would be rows for all four
  StepPlan plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(started(plan), (Ids{1}));
  EXPECT_EQ(plan.rows, 16);
  scheduler.apply({});
  plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(started(plan), Ids{});
  EXPECT_EQ(plan.rows, 14);
  scheduler.apply(results_of(plan));
  plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(started(plan), (Ids{2, 3, 4}));
  for (const PlannedSegment& segment : plan.started) EXPECT_EQ(segment.start, 28);
  EXPECT_EQ(segment_of(plan, 3)->known, 2);
  EXPECT_TRUE(segment_of(plan, 3)->chooses);
  EXPECT_EQ(scheduler.stats().waiting, 0);
}

TEST(SharedPrompts, ATailThatTheFirstStillComputesIsNotWaitedFor) {
  SchedulerConfig config = roomy();
  config.prefill_chunk = 28;
  Scheduler scheduler(config);
  add_choices(scheduler, 1, 2, counting(0, 30));
  scheduler.plan({});
  scheduler.apply({});  // 28 of 30
  expect_next(scheduler, {2}, 28);
}

TEST(SharedPrompts, OthersPass) {
  Scheduler scheduler(roomy());
  add_choices(scheduler, 1, 3, counting(0, 30));
  ASSERT_TRUE(scheduler.add(4, "", counting(500, 20), 4).ok());
  ASSERT_TRUE(scheduler.add(5, "", counting(0, 30), 4).ok()) << "the same prompt, of another request";
  EXPECT_EQ(started(scheduler.plan({})), (Ids{4, 1, 5})) << "the shorter prompt first";
}

TEST(SharedPrompts, WhatThereIsNothingToShareOfIsComputedAtOnce) {
  for (const bool prefix_cache : {false, true}) {
    SchedulerConfig config = roomy();
    config.prefix_cache = prefix_cache;
    Scheduler scheduler(config);
    add_choices(scheduler, 1, 3, counting(0, prefix_cache ? 4 : 30));  // 4 positions a page
    EXPECT_EQ(started(scheduler.plan({})), (Ids{1, 2, 3})) << prefix_cache;
  }
  SchedulerConfig config = roomy();
  config.groups.push_back({.life = kv::Life::kState, .pages = 0});
  config.snapshot_tokens = 8;
  Scheduler scheduler(config);
  add_choices(scheduler, 1, 3, counting(0, 30));
  EXPECT_EQ(started(scheduler.plan({})), (Ids{1, 2, 3})) << "no room for a snapshot";
}

TEST(SharedPrompts, TheNextComputesWhenTheFirstGoes) {
  Scheduler scheduler(roomy());
  add_choices(scheduler, 1, 3, counting(0, 30));
  scheduler.plan({});
  scheduler.apply({});
  ASSERT_TRUE(scheduler.remove(1));                              // cancelled, late or failed
  scheduler.apply(results_of(expect_next(scheduler, {2}, 16)));  // the first one's computed pages are not lost
  expect_next(scheduler, {3}, 28);
}

TEST(SharedPrompts, ADeviceThatRunsAheadIsWaitedFor) {
  SchedulerConfig config = roomy();
  config.prefill_chunk = 32;
  config.reserve_rounds = 2;
  Scheduler scheduler(config);
  add_choices(scheduler, 1, 2, counting(0, 30));
  const StepPlan first = scheduler.plan({});
  StepPlan plan = scheduler.plan({});
  EXPECT_EQ(started(plan), Ids{}) << "the prompt is under way, and not known to be there";
  scheduler.apply(results_of(first));
  scheduler.apply(results_of(plan));
  expect_next(scheduler, {2}, 28);
}

// The state is saved where the last page begins, before the step in which the other choices begin with it.
TEST(SharedPrompts, TheStateIsCopied) {
  SchedulerConfig config = roomy();
  config.groups.push_back({.life = kv::Life::kState, .pages = 8});
  config.snapshot_tokens = 64;
  Scheduler scheduler(config);
  add_choices(scheduler, 1, 3, counting(0, 15));
  StepPlan plan = scheduler.plan({});
  EXPECT_EQ(started(plan), (Ids{1}));
  EXPECT_EQ(plan.rows, 12);
  scheduler.apply({});
  plan = scheduler.plan({});
  EXPECT_EQ(started(plan), (Ids{2, 3}));
  ASSERT_EQ(plan.copies.size(), 3u);
  EXPECT_EQ(plan.copies[0].kind, MemoryCopy::Kind::kSave);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(plan.copies[i].kind, MemoryCopy::Kind::kRestore);
    EXPECT_EQ(plan.copies[i].from, plan.copies[0].to);
    EXPECT_EQ(plan.started[i - 1].start, 12);
  }
  EXPECT_EQ(plan.rows, 3 * 3) << "of the first one too";
}

}  // namespace
}  // namespace volley::sched
