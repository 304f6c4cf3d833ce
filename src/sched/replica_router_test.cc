#include "sched/replica_router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/sanitized.h"
#include "kv/page_hash.h"
#include "sched/scheduler.h"
#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

constexpr int32_t kPage = 4;

ReplicaRouter::Arrival arrival(RequestId id, const Tokens& prompt, int64_t max_tokens = 8) {
  return {id, std::ssize(prompt), max_tokens, kv::page_hashes("", prompt, kPage)};
}

// The events of a prefix that becomes cached.
std::vector<CacheEvent> stored(const Tokens& tokens) {
  std::vector<CacheEvent> events;
  uint64_t parent = 0;
  for (const uint64_t hash : kv::page_hashes("", tokens, kPage)) {
    events.push_back({.kind = CacheEvent::Kind::kStored, .hash = hash, .parent = parent, .tokens = {}});
    parent = hash;
  }
  return events;
}

TEST(ReplicaRouter, SendsToTheLeastWorkWhereNothingIsCached) {
  ReplicaRouter router(3, kPage);
  EXPECT_EQ(router.add(arrival(1, counting(1, 100), 50)), 0u);
  EXPECT_EQ(router.add(arrival(2, counting(1000, 20), 8)), 1u);
  EXPECT_EQ(router.add(arrival(3, counting(2000, 20), 8)), 2u);
  EXPECT_EQ(router.add(arrival(4, counting(3000, 30), 8)), 1u);
  EXPECT_EQ(router.add(arrival(5, counting(4000, 30), 8)), 2u);
  EXPECT_EQ(router.work(0), 150);
  router.progressed(1, 1);  // its prompt is computed
  EXPECT_EQ(router.work(0), 49);
  EXPECT_EQ(router.add(arrival(6, counting(5000, 8), 8)), 0u);
  for (const RequestId id : {1, 2, 3, 4, 5, 6}) router.ended(id);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(router.work(i), 0);
  }
  EXPECT_TRUE(router.idle());
}

// Idle replicas take turns.
TEST(ReplicaRouter, SharesOutRequestsThatComeOneAtATime) {
  ReplicaRouter router(2, kPage);
  for (RequestId id = 0; id < 6; ++id) {
    EXPECT_EQ(router.add(arrival(id, counting(static_cast<TokenId>(100 * id), 10))), id % 2);
    router.ended(id);
  }
}

TEST(ReplicaRouter, FollowsTheLongestCachedPart) {
  ReplicaRouter router(3, kPage);
  router.published(1, stored(counting(1, 16)));
  router.published(2, stored(counting(1, 32)));
  EXPECT_EQ(router.add(arrival(1, counting(1, 40))), 2u);
  EXPECT_EQ(router.work(2), 8 + 8);
  EXPECT_EQ(router.add(arrival(2, counting(1, 40))), 2u) << "though others do nothing";
  std::vector<CacheEvent> gone;
  for (const CacheEvent& event : stored(counting(1, 32)))
    gone.push_back({.kind = CacheEvent::Kind::kRemoved, .hash = event.hash, .tokens = {}});
  router.ended(1);
  router.ended(2);
  std::ranges::reverse(gone);
  router.published(2, gone);
  EXPECT_EQ(router.add(arrival(3, counting(1, 40))), 1u) << "what replica 2 had is gone";
  router.published(1, std::vector<CacheEvent>{{.kind = CacheEvent::Kind::kCleared, .tokens = {}}});
  router.ended(3);
  EXPECT_EQ(router.work(1), 0);
}

// An opening that all prompts share is no reason to follow the first of them.
TEST(ReplicaRouter, AShortOpeningSendsNobody) {
  ReplicaRouter router(2, kPage);
  router.published(1, stored(counting(1, 8)));
  router.add(arrival(1, counting(7000, 4)));
  router.ended(1);
  Tokens prompt = counting(1, 8);
  std::ranges::copy(counting(500, 25), std::back_inserter(prompt));
  EXPECT_EQ(router.add(arrival(2, prompt)), 1u) << "the turn of replica 1, which was sent nobody yet";
  EXPECT_EQ(router.add(arrival(3, prompt)), 1u) << "the same prompt is under way there";
  prompt.back() = 3;
  prompt[8] = 4;  // only the opening is the same
  EXPECT_EQ(router.add(arrival(4, prompt)), 0u);
}

TEST(ReplicaRouter, LeavesAReplicaThatIsMuchBusier) {
  ReplicaRouter router(2, kPage);
  const Tokens prefix = counting(1, 20);
  router.published(0, stored(prefix));
  std::map<size_t, int> sent;
  RequestId id = 0;
  const auto next = [&] {
    Tokens prompt = prefix;
    std::ranges::copy(counting(static_cast<TokenId>(1000 + 50 * id), 20), std::back_inserter(prompt));
    return router.add(arrival(++id, prompt, 20));
  };
  // Each request brings 40 rows and tokens, and saves 20 rows: it goes to a replica with up to 4 * 40 + 2 * 20 of
  // others' work.
  for (int i = 0; i < 6; ++i) EXPECT_EQ(next(), 0u) << i;
  EXPECT_EQ(router.work(0), 240);
  EXPECT_EQ(next(), 1u);
  EXPECT_EQ(router.work(1), 60);
  for (int i = 0; i < 200; ++i) ++sent[next()];
  EXPECT_NEAR(sent[0], sent[1], 12) << "both have the prefix under way now";
}

TEST(ReplicaRouter, AvoidsReplicasThatAreAway) {
  ReplicaRouter router(2, kPage);
  router.published(0, stored(counting(1, 32)));
  router.set_available(0, false);
  EXPECT_EQ(router.add(arrival(1, counting(1, 40))), 1u);
  EXPECT_EQ(router.add(arrival(2, counting(900, 40))), 1u);
  router.set_available(1, false);
  EXPECT_EQ(router.add(arrival(3, counting(1, 40))), 0u) << "it waits there";
  router.set_available(0, true);
  EXPECT_EQ(router.add(arrival(4, counting(900, 40))), 0u);
}

// A prompt counts as cached from when its request is sent until the first events after the request's end.
TEST(ReplicaRouter, CountsPromptsUnderWay) {
  ReplicaRouter router(2, kPage);
  EXPECT_EQ(router.add(arrival(1, counting(1, 40))), 0u);
  EXPECT_EQ(router.add(arrival(2, counting(500, 100))), 1u);
  EXPECT_EQ(router.add(arrival(3, counting(1, 48))), 0u);
  router.ended(1);
  router.ended(3);
  router.ended(2);
  EXPECT_EQ(router.add(arrival(4, counting(1, 40))), 0u) << "the replica has not said yet what it keeps";
  router.ended(4);
  router.published(0, {});
  EXPECT_EQ(router.add(arrival(5, counting(1, 40))), 1u);
}

TEST(ReplicaRouter, WhatIsNotReusedGoesToTheLeastWork) {
  ReplicaRouter router(2, kPage);
  router.published(0, stored(counting(1, 32)));
  router.add(arrival(1, counting(1, 40)));
  ReplicaRouter::Arrival fresh = arrival(2, counting(1, 40));
  fresh.pages.clear();
  EXPECT_EQ(router.add(fresh), 1u);
  EXPECT_EQ(router.work(1), 48);
}

// Schedulers that step together, a router before them, and conversations: each turn's prompt is the whole conversation
// so far, and comes a while after the turn before has ended.
class Fleet {
 public:
  struct Load {
    int conversations = 0, turns = 1;
    int32_t system = 0, message = 0, answer = 0;  // tokens; messages and answers are up to twice as long
    bool one_system_prompt = true;
    bool bounds_answers = true;  // with max_tokens
    double arrivals_a_step = 0.5;
  };

  Fleet(size_t replicas, const Load& load, uint32_t seed) : load_(load), random_(seed), router_(replicas, kPage) {
    SchedulerConfig config{.max_num_seqs = 16,
                           .max_num_batched_tokens = 256,
                           .prefill_chunk = 128,
                           .max_model_len = 4000,
                           .page_size = kPage,
                           .groups = {{.pages = 40'000}},
                           .cache_events = true};
    for (size_t i = 0; i < replicas; ++i) schedulers_.push_back(std::make_unique<Scheduler>(config));
    rows_.resize(replicas);
    for (int i = 0; i < load.conversations; ++i) {
      Conversation conversation{.random = std::mt19937(seed * 1000 + static_cast<uint32_t>(i)), .said = {}};
      const TokenId first = load.one_system_prompt ? 1 : 100'000 * (i + 1);
      conversation.said = counting(first, load.system);
      conversations_.push_back(std::move(conversation));
    }
  }

  void run() {
    int begun = 0;
    double due = 0;
    for (int64_t step = 0; begun < load_.conversations || !open_.empty() || !later_.empty(); ++step) {
      ASSERT_LT(step, 1'000'000);
      for (due += load_.arrivals_a_step; due >= 1 && begun < load_.conversations; due -= 1) say(begun++);
      while (!later_.empty() && later_.begin()->first <= step) {
        say(later_.begin()->second);
        later_.erase(later_.begin());
      }
      for (size_t i = 0; i < schedulers_.size(); ++i) ASSERT_NO_FATAL_FAILURE(this->step(i, step));
      steps_ = step;
    }
    EXPECT_TRUE(router_.idle());
    for (size_t i = 0; i < schedulers_.size(); ++i) EXPECT_EQ(router_.work(i), 0);
  }

  int64_t cached() const { return cached_; }
  int64_t prompts() const { return prompts_; }
  int64_t steps() const { return steps_; }
  // Rows that the busiest replica computed, against an equal part.
  double imbalance() const {
    const int64_t all = std::accumulate(rows_.begin(), rows_.end(), int64_t{0});
    return static_cast<double>(*std::ranges::max_element(rows_)) * static_cast<double>(rows_.size()) /
           static_cast<double>(all);
  }

 private:
  struct Conversation {
    std::mt19937 random;  // a generator of its own: the text does not depend on the replica
    Tokens said;
    int turns = 0;
  };

  static int32_t length(Conversation& conversation, int32_t mean) {
    return 1 + static_cast<int32_t>(conversation.random() % static_cast<uint32_t>(2 * mean));
  }
  static void add_tokens(Conversation& conversation, int32_t count) {
    for (; count > 0; --count) conversation.said.push_back(static_cast<TokenId>(conversation.random() % 50'000));
  }

  void say(int index) {
    Conversation& conversation = conversations_[static_cast<size_t>(index)];
    add_tokens(conversation, length(conversation, load_.message));
    const int32_t answer = length(conversation, load_.answer);
    const RequestId id = ++last_id_;
    const size_t replica = router_.add(arrival(id, conversation.said, load_.bounds_answers ? answer : 4000));
    ASSERT_TRUE(schedulers_[replica]->add(id, "", conversation.said, answer).ok());
    open_.emplace(id, index);
    left_[id] = answer;
    prompts_ += std::ssize(conversation.said);
  }

  void step(size_t replica, int64_t now) {
    Scheduler& scheduler = *schedulers_[replica];
    const StepPlan plan = scheduler.plan({});
    rows_[replica] += plan.rows;
    for (const PlannedSegment& started : plan.started) cached_ += started.start;
    std::vector<StepResult> results;
    for (const PlannedSegment& segment : plan.segments) {
      if (!segment.chooses) continue;
      const int index = open_.at(segment.id);
      Conversation& conversation = conversations_[static_cast<size_t>(index)];
      add_tokens(conversation, 1);
      const bool ends = --left_.at(segment.id) == 0;
      results.push_back({.id = segment.id, .tokens = {conversation.said.back()}, .finished = ends});
      router_.progressed(segment.id, 1);
      if (!ends) continue;
      router_.ended(segment.id);
      open_.erase(segment.id);
      if (++conversation.turns < load_.turns) {
        later_.emplace(now + 1 + static_cast<int64_t>(conversation.random() % 60), index);
      }
    }
    if (!plan.empty()) scheduler.apply(results);
    router_.published(replica, scheduler.take_cache_events());
  }

  const Load load_;
  std::mt19937 random_;
  ReplicaRouter router_;
  std::vector<std::unique_ptr<Scheduler>> schedulers_;
  std::vector<Conversation> conversations_;
  std::multimap<int64_t, int> later_;  // by step: conversations that go on
  std::map<RequestId, int> open_;
  std::map<RequestId, int32_t> left_;
  std::vector<int64_t> rows_;  // by replica
  int64_t cached_ = 0, prompts_ = 0, steps_ = 0;
  RequestId last_id_ = 0;
};

// Conversations reuse as much as on one replica, and the work is still shared out.
TEST(ReplicaRouterSimulation, ConversationsFindWhatWasSaidWhereverTheyRun) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    if (kSanitized && seed > 1) break;
    for (const auto& [arrivals, bounds] :
         {std::pair(0.05, true), {0.5, true}, {5.0, true}, {0.05, false}, {0.5, false}, {5.0, false}}) {
      const Fleet::Load load{.conversations = 120,
                             .turns = 6,
                             .system = 60,
                             .message = 30,
                             .answer = 25,
                             .bounds_answers = bounds,
                             .arrivals_a_step = arrivals};
      Fleet alone(1, load, seed);
      ASSERT_NO_FATAL_FAILURE(alone.run());
      for (const size_t replicas : {2u, 3u, 4u}) {
        Fleet fleet(replicas, load, seed);
        ASSERT_NO_FATAL_FAILURE(fleet.run());
        ASSERT_EQ(fleet.prompts(), alone.prompts());
        const double kept = static_cast<double>(fleet.cached()) / static_cast<double>(alone.cached());
        std::printf("seed %u, %.2f a step%s, %zu replicas: %.1f %% of %lld cached tokens, imbalance %.2f, %lld steps\n",
                    seed, arrivals, bounds ? "" : " without max_tokens", replicas, 100 * kept,
                    static_cast<long long>(alone.cached()), fleet.imbalance(), static_cast<long long>(fleet.steps()));
        EXPECT_GT(kept, 0.97);
        EXPECT_LE(fleet.steps(), alone.steps() + 60);
        // A few requests at a time use no more replicas than hold their prefixes.
        if (arrivals > 0.1) EXPECT_LT(fleet.imbalance(), 1.2);
      }
    }
  }
}

// One long prefix for all requests: it is computed once on each replica that is needed, and none idles.
TEST(ReplicaRouterSimulation, OnePrefixOfAllDoesNotKeepOneReplicaBusy) {
  const Fleet::Load load{.conversations = 400, .system = 400, .message = 20, .answer = 30, .arrivals_a_step = 2};
  Fleet alone(1, load, 5), two(2, load, 5), four(4, load, 5);
  for (Fleet* fleet : {&alone, &two, &four}) ASSERT_NO_FATAL_FAILURE(fleet->run());
  EXPECT_LT(two.imbalance(), 1.15);
  EXPECT_LT(four.imbalance(), 1.25);
  EXPECT_LT(two.steps(), 0.6 * static_cast<double>(alone.steps()));
  EXPECT_GT(static_cast<double>(four.cached()), 0.97 * static_cast<double>(alone.cached()));
}

// Prompts that have nothing in common: an even load.
TEST(ReplicaRouterSimulation, SharesOutWhatHasNothingInCommon) {
  const Fleet::Load load{.conversations = 600,
                         .system = 50,
                         .message = 50,
                         .answer = 30,
                         .one_system_prompt = false,
                         .arrivals_a_step = 3};
  Fleet fleet(3, load, 9);
  ASSERT_NO_FATAL_FAILURE(fleet.run());
  EXPECT_LT(fleet.imbalance(), 1.05);
}

}  // namespace
}  // namespace volley::sched
