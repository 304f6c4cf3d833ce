#include <gtest/gtest.h>

#include "sched/reservation.h"
#include "sched/scheduler.h"
#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

// Three requests that fit until the first of them grows: 8 tokens of prompt each, 4 pages each.
SchedulerConfig tight(bool prefix_cache) {
  SchedulerConfig config = roomy();
  config.groups[0].pages = 12;
  config.prefix_cache = prefix_cache;
  return config;
}

void start_three(Scheduler& scheduler) {
  for (RequestId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(scheduler.add(id, "", counting(100 * static_cast<TokenId>(id), 8), 24).ok());
  }
  scheduler.apply(results_of(scheduler.plan({.draft = 3})));
  ASSERT_EQ(scheduler.stats().running, 3);
}

TEST(Preemption, TakesTheYoungestAndLeavesTheOthersAlone) {
  Scheduler scheduler(tight(false));
  start_three(scheduler);
  scheduler.apply(results_of(scheduler.plan({.draft = 3}), {{1, 4}, {2, 2}, {3, 2}}));
  // Request 1 has 12 tokens computed and needs a fifth page.
  const StepPlan plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(plan.preempted, std::vector<RequestId>{3});
  EXPECT_EQ(plan.segments.size(), 2u);
  EXPECT_EQ(segment_of(plan, 3), nullptr);
  EXPECT_TRUE(plan.started.empty());  // the victim must not come back in the step that threw it out
  EXPECT_EQ(scheduler.stats().preemptions, 1);
  EXPECT_EQ(scheduler.stats().waiting, 1);
  EXPECT_EQ(scheduler.tokens(3).size(), 11u);  // its text stays
}

// Unused cached pages are evicted before any request is preempted.
TEST(Preemption, EvictsBeforeItPreempts) {
  SchedulerConfig config = tight(true);
  config.groups[0].pages = 13;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(9, "", counting(900, 4), 4).ok());
  scheduler.apply(results_of(scheduler.plan({.draft = 3})));
  scheduler.remove(9);
  ASSERT_EQ(scheduler.stats().pages[0].cached, 1);
  start_three(scheduler);
  scheduler.apply(results_of(scheduler.plan({.draft = 3}), {{1, 4}}));
  EXPECT_TRUE(scheduler.plan({.draft = 3}).preempted.empty());
  EXPECT_EQ(scheduler.stats().pages[0].cached, 0);
}

TEST(Preemption, TheYoungestThatNeedsAPageGoesItself) {
  Scheduler scheduler(tight(false));
  start_three(scheduler);
  scheduler.apply(results_of(scheduler.plan({.draft = 3}), {{3, 4}}));
  const StepPlan plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(plan.preempted, std::vector<RequestId>{3});
  EXPECT_EQ(plan.segments.size(), 2u);
}

TEST(Preemption, SeveralWaitInOrderOfArrivalBeforeNewRequests) {
  SchedulerConfig config = tight(false);
  config.groups[0].pages = 9;  // three of 2 pages run, until the first one grows
  config.max_num_seqs = 3;
  Scheduler scheduler(config);
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.add(id, "", counting(0, 2), 24).ok());  // 2 pages each
  scheduler.apply(results_of(scheduler.plan({.draft = 3})));
  ASSERT_TRUE(scheduler.add(4, "", counting(0, 2), 24).ok());
  ASSERT_EQ(scheduler.stats().running, 3);
  std::vector<RequestId> preempted, started;
  for (int i = 0; i < 6; ++i) {
    const StepPlan plan = scheduler.plan({.draft = 3});
    preempted.insert(preempted.end(), plan.preempted.begin(), plan.preempted.end());
    auto results = results_of(plan, {{1, std::min<int32_t>(4, segment_of(plan, 1)->draft + 1)}});
    for (StepResult& result : results) result.finished = result.id == 1 && i == 5;
    scheduler.apply(results);
  }
  ASSERT_EQ(preempted, (std::vector<RequestId>{3, 2}));
  for (const PlannedSegment& segment : scheduler.plan({.draft = 3}).started) started.push_back(segment.id);
  EXPECT_EQ(started, (std::vector<RequestId>{2, 3, 4}));
}

// The third request is preempted once it has committed so many tokens; the first one's end makes room for it.
void preempt_the_third(Scheduler& scheduler, int committed) {
  scheduler.apply(results_of(scheduler.plan({.draft = 3}), {{1, 4}, {3, committed}}));
  const StepPlan plan = scheduler.plan({.draft = 3});
  ASSERT_EQ(plan.preempted, std::vector<RequestId>{3});
  scheduler.apply(results_of(plan));
  scheduler.remove(1);
}

// The request computes all but its last token again without choosing, and continues with the verify step it would have
// made.
TEST(Preemption, AResumedRequestContinuesWithItsNextVerifyStep) {
  Scheduler scheduler(tight(false));
  start_three(scheduler);
  preempt_the_third(scheduler, 3);
  StepPlan plan = scheduler.plan({.draft = 3});
  ASSERT_EQ(plan.started.size(), 1u);
  EXPECT_EQ(segment_of(plan, 3)->start, 0);
  EXPECT_EQ(segment_of(plan, 3)->known, 11);
  EXPECT_FALSE(segment_of(plan, 3)->chooses);
  scheduler.apply(results_of(plan));
  plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(segment_of(plan, 3)->start, 11);
  EXPECT_EQ(segment_of(plan, 3)->known, 1);
  EXPECT_EQ(segment_of(plan, 3)->draft, 3);
  EXPECT_TRUE(segment_of(plan, 3)->decodes);
}

// With its pages still in the tree the request computes only the rows that did not fill a page, here none: it verifies
// at once, and in its place by slot.
TEST(Preemption, ACachedRequestDecodesInTheStepThatResumesIt) {
  Scheduler scheduler(tight(true));
  start_three(scheduler);
  preempt_the_third(scheduler, 4);
  ASSERT_TRUE(scheduler.add(4, "", counting(400, 3), 4).ok());
  const StepPlan plan = scheduler.plan({.draft = 3});
  ASSERT_GE(plan.started.size(), 1u);
  EXPECT_EQ(plan.started[0].id, 3u);
  EXPECT_EQ(plan.started[0].slot, SlotId(0));
  ASSERT_GE(plan.segments.size(), 2u);
  EXPECT_EQ(plan.segments[0].id, 3u);
  EXPECT_EQ(plan.segments[0].start, plan.started[0].start);
  EXPECT_TRUE(plan.segments[0].decodes);
  EXPECT_EQ(plan.segments[0].draft, 3);
  EXPECT_EQ(plan.segments[1].id, 2u);
}

// The tenant that holds most is preempted first, not the one that came last.
TEST(Preemption, TakesFromTheTenantThatHoldsMost) {
  Scheduler scheduler(tight(false));
  RequestTraits large, small;
  large.tenant = "large";
  small.tenant = "small";
  ASSERT_TRUE(scheduler.add(1, "", counting(100, 8), 24, large).ok());
  ASSERT_TRUE(scheduler.add(2, "", counting(200, 8), 24, large).ok());
  scheduler.apply(results_of(scheduler.plan({.draft = 3})));
  ASSERT_TRUE(scheduler.add(3, "", counting(300, 8), 24, small).ok());
  scheduler.apply(results_of(scheduler.plan({.draft = 3})));
  ASSERT_EQ(scheduler.stats().running, 3);
  // The small tenant itself needs a page, and its request is the youngest.
  scheduler.apply(results_of(scheduler.plan({.draft = 3}), {{3, 4}}));
  const StepPlan plan = scheduler.plan({.draft = 3});
  EXPECT_EQ(plan.preempted, std::vector<RequestId>{2}) << "the younger of two: the oldest of all stays";
  EXPECT_NE(segment_of(plan, 3), nullptr);
}

// Slots are shared out as pages are: a new tenant does not wait until another one is done with a slot.
class Slots : public ::testing::Test {
 protected:
  static constexpr int kSlots = 4;
  static SchedulerConfig config() {
    SchedulerConfig config = roomy();
    config.max_num_seqs = kSlots;
    return config;
  }
  void add(RequestId id, const char* tenant, int32_t priority = 0) {
    RequestTraits traits;
    traits.tenant = tenant;
    traits.priority = priority;
    ASSERT_TRUE(scheduler_.add(id, "", counting(100 * static_cast<TokenId>(id), 8), 24, traits).ok());
  }
  // Results come in at once.
  StepPlan step() {
    StepPlan plan = scheduler_.plan({.draft = 3});
    scheduler_.apply(results_of(plan));
    return plan;
  }
  void fill(const char* tenant) {
    for (RequestId id = 1; id <= kSlots + 2; ++id) add(id, tenant);
    for (int i = 0; i < 3; ++i) step();
    ASSERT_EQ(scheduler_.stats().running, kSlots);
  }

  Scheduler scheduler_{config()};
};

TEST_F(Slots, GoToATenantThatHasFewer) {
  fill("large");
  add(11, "small");
  StepPlan plan = step();
  EXPECT_EQ(plan.preempted, std::vector<RequestId>{kSlots}) << "the youngest";
  ASSERT_EQ(plan.started.size(), 1u);
  EXPECT_EQ(plan.started[0].id, 11u) << "in the same step";
  EXPECT_NE(segment_of(plan, 11), nullptr);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(step().preempted.empty()) << "it is not asked back";
  // Each has at most two slots, so no tenant has two more than another.
  for (const RequestId id : {12, 13, 14}) add(id, "small");
  std::vector<RequestId> preempted;
  for (int i = 0; i < 4; ++i) {
    plan = step();
    preempted.insert(preempted.end(), plan.preempted.begin(), plan.preempted.end());
  }
  EXPECT_EQ(preempted, std::vector<RequestId>{kSlots - 1});
  EXPECT_EQ(scheduler_.stats().running, kSlots);
}

TEST_F(Slots, OfALatePriorityGoFirst) {
  for (RequestId id = 1; id <= kSlots; ++id) add(id, "large", id == 2 ? 5 : 0);
  step();
  add(11, "small");
  EXPECT_EQ(step().preempted, std::vector<RequestId>{2});
}

TEST_F(Slots, StayWithinATenant) {
  fill("large");
  add(11, "large", -5);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(step().preempted.empty());
}

// The request that gives up its slot may be in a step under way.
TEST(SlotsAhead, WaitForTheResults) {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 2;
  config.reserve_rounds = 2;
  Scheduler scheduler(config);
  RequestTraits large, small;
  large.tenant = "large";
  small.tenant = "small";
  for (const RequestId id : {1, 2}) {
    ASSERT_TRUE(scheduler.add(id, "", counting(100 * static_cast<TokenId>(id), 8), 24, large).ok());
  }
  scheduler.apply(results_of(scheduler.plan({.draft = 3})));
  const StepPlan under_way = scheduler.plan({.draft = 3});
  ASSERT_TRUE(scheduler.add(3, "", counting(300, 8), 24, small).ok());
  const StepPlan none = scheduler.plan({.draft = 3});
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.waits);
  scheduler.apply(results_of(under_way));
  EXPECT_EQ(scheduler.plan({.draft = 3}).preempted, std::vector<RequestId>{2});
}

// Many prompts of one HTTP request do not preempt another client's single prompt, nor do early priorities preempt late
// ones.
TEST(Preemption, TakesFromTheLatestPriorityAndTheLargestGroup) {
  for (const bool by_priority : {false, true}) {
    Scheduler scheduler(tight(false));
    RequestTraits many, single;
    many.group = by_priority ? 0 : 5;
    many.priority = by_priority ? 1 : 0;
    ASSERT_TRUE(scheduler.add(1, "", counting(100, 8), 24, many).ok());
    ASSERT_TRUE(scheduler.add(2, "", counting(200, 8), 24, many).ok());
    scheduler.apply(results_of(scheduler.plan({.draft = 3})));
    ASSERT_TRUE(scheduler.add(3, "", counting(300, 8), 24, single).ok());
    scheduler.apply(results_of(scheduler.plan({.draft = 3})));
    scheduler.apply(results_of(scheduler.plan({.draft = 3}), {{1, 4}}));
    EXPECT_EQ(scheduler.plan({.draft = 3}).preempted, std::vector<RequestId>{2}) << by_priority;
  }
}

// A cached part of a page is copied for the request that continues from it. The original is a page beside those that
// this request needs, and it may need all pages.
TEST(Preemption, WhoNeedsEveryPageStartsWithoutAPartialOne) {
  SchedulerConfig config = roomy();
  config.groups = {{.pages = 5}, {.life = kv::Life::kState, .pages = 4}};
  config.snapshot_tokens = 64;
  config.max_model_len = 16;
  config.block_size = 1;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(1, "", counting(0, 10), 1).ok());
  const StepPlan first = scheduler.plan({});
  std::vector<StepResult> results = results_of(first);
  results[0].finished = true;
  scheduler.apply(results);
  ASSERT_GT(scheduler.stats().pages[0].cached, 0);
  ASSERT_TRUE(scheduler.add(2, "", counting(0, 15), 1).ok());
  const StepPlan plan = scheduler.plan({});
  ASSERT_EQ(plan.started.size(), 1u);
  EXPECT_EQ(plan.started[0].start, 0);
}

// A running request got there first.
TEST(Preemption, ANewcomerOfTheSameTenantWaits) {
  Scheduler scheduler(tight(true));
  start_three(scheduler);
  ASSERT_TRUE(scheduler.add(4, "", {1, 2}, 2).ok());
  const StepPlan plan = scheduler.plan({});
  EXPECT_TRUE(plan.preempted.empty());
  EXPECT_TRUE(plan.started.empty());
  EXPECT_EQ(plan.segments.size(), 3u);
}

}  // namespace
}  // namespace volley::sched
