// Where a scheduler takes snapshots of recurrent states, and where requests then begin.
#include <gtest/gtest.h>

#include "sched/scheduler.h"
#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

// One slot; snapshots at multiples of 16.
SchedulerConfig recurrent(int64_t snapshots) {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 1;
  config.block_size = 1;
  config.groups.push_back({.life = kv::Life::kState, .pages = snapshots});
  config.snapshot_tokens = 16;
  return config;
}

// Computes the prompt and one token, and returns the position at which the request began.
int32_t run(Scheduler& scheduler, RequestId id, const Tokens& prompt) {
  EXPECT_TRUE(scheduler.add(id, "", prompt, 1).ok());
  int32_t start = -1;
  while (!scheduler.idle()) {
    const StepPlan plan = scheduler.plan({});
    if (!plan.started.empty()) start = plan.started[0].start;
    std::vector<StepResult> results = results_of(plan);
    for (StepResult& result : results) result.finished = true;
    scheduler.apply(results);
  }
  return start;
}

Tokens joined(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// With any number of snapshots, a prompt that needs more than all of them leaves its latest.
TEST(Snapshots, ALongPromptLeavesItsLastOne) {
  for (const int64_t snapshots : {2, 3, 4, 7}) {
    Scheduler scheduler(recurrent(snapshots));
    EXPECT_EQ(run(scheduler, 1, counting(0, 100)), 0);
    EXPECT_EQ(run(scheduler, 2, counting(0, 100)), 96) << snapshots;
    EXPECT_EQ(run(scheduler, 3, joined(counting(0, 100), counting(500, 20))), 100) << snapshots << ": the end's";
  }
}

// Where a prompt ends at a multiple, the last multiple that the same prompt can use is the one before.
TEST(Snapshots, APromptThatEndsAtAMultipleLeavesTheOneBefore) {
  Scheduler scheduler(recurrent(2));
  EXPECT_EQ(run(scheduler, 1, counting(0, 96)), 0);
  EXPECT_EQ(run(scheduler, 2, counting(0, 96)), 80);
}

// A third prompt is likely to branch off where a second one branched off from the first.
TEST(Snapshots, WhatPromptsHaveInCommonIsServedBehindManyMultiples) {
  SchedulerConfig config = recurrent(3);
  config.snapshot_tokens = 8;
  Scheduler scheduler(config);
  const Tokens common = counting(0, 76);
  EXPECT_EQ(run(scheduler, 1, joined(common, counting(200, 40))), 0);
  EXPECT_LT(run(scheduler, 2, joined(common, counting(300, 40))), 76);
  EXPECT_EQ(run(scheduler, 3, joined(common, counting(400, 40))), 76);
}

// The same holds for the common part of one request's choices.
TEST(Snapshots, WhatChoicesHaveInCommonIsServedBehindManyMultiples) {
  SchedulerConfig config = recurrent(3);
  config.max_num_seqs = 2;
  Scheduler scheduler(config);
  RequestTraits choice;
  choice.shares_prompt = true;
  choice.group = 1;
  for (RequestId id = 1; id <= 2; ++id) ASSERT_TRUE(scheduler.add(id, "", counting(0, 110), 4, choice).ok());
  StepPlan plan;
  for (int step = 0; step < 20 && segment_of(plan, 2) == nullptr; ++step) {
    plan = scheduler.plan({});
    if (segment_of(plan, 2) == nullptr) scheduler.apply(results_of(plan));
  }
  ASSERT_NE(segment_of(plan, 2), nullptr);
  EXPECT_EQ(segment_of(plan, 2)->start, 108);
}

// A request that is taken out in the middle of its prompt continues from there, even if its own snapshots are all there
// are.
TEST(Snapshots, WhoIsTakenOutLeavesItsState) {
  SchedulerConfig config = recurrent(1);
  config.prefill_chunk = 12;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 46), 1).ok());
  for (const int32_t computed : {12, 16, 28, 32, 44}) {  // at 32 it takes its last one
    const StepPlan plan = scheduler.plan({});
    ASSERT_EQ(plan.segments[0].start + plan.segments[0].known, computed);
    scheduler.apply({});
  }
  ASSERT_TRUE(scheduler.remove(1));
  EXPECT_EQ(run(scheduler, 2, counting(0, 46)), 44);
}

// The regular snapshots of a long prompt do not evict an earlier conversation.
TEST(Snapshots, ALongPromptLeavesOthersTheirs) {
  Scheduler scheduler(recurrent(6));
  EXPECT_EQ(run(scheduler, 1, counting(500, 10)), 0);
  EXPECT_EQ(run(scheduler, 2, counting(0, 120)), 0);
  EXPECT_EQ(run(scheduler, 3, counting(500, 20)), 10);
}

}  // namespace
}  // namespace volley::sched
