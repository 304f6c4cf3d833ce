#include "sched/fair_shares.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace volley::sched {
namespace {

RequestTraits of(const std::string& tenant, uint64_t group = 0, int32_t priority = 0) {
  RequestTraits traits;
  traits.tenant = tenant;
  traits.group = group;
  traits.priority = priority;
  return traits;
}

// The next `count` turns when each request starts at its turn and takes `rows` at once.
std::vector<RequestId> turns(const FairShares& shares, int count, int64_t rows = 0) {
  std::vector<RequestId> ids;
  FairShares::Turns turns(shares);
  for (std::optional<RequestId> id; count > 0 && (id = turns.next()); --count) {
    ids.push_back(*id);
    turns.spend(rows);
  }
  return ids;
}

// A whole prompt at once.
void serve(FairShares& shares, RequestId id, int64_t rows) {
  shares.start(id, rows);
  shares.spend(id, rows);
  shares.end_step();
  shares.computed(id);
}

TEST(VirtualClock, EndsWorkAsEqualPartsWould) {
  VirtualClock clock;
  EXPECT_EQ(clock.finish(0, 100), 100);
  EXPECT_EQ(clock.finish(0, 30), 30);
  clock.advance(40);  // 20 of each
  EXPECT_EQ(clock.now(), 20);
  EXPECT_EQ(clock.finish(0, 30), 50) << "who comes later ends later";
  clock.advance(30 + 15);  // 10 of each, and the second has ended; then 7.5 of two
  EXPECT_EQ(clock.now(), 37.5);
  clock.forget(50);
  clock.advance(10);
  EXPECT_EQ(clock.now(), 47.5) << "alone, all of it is the first one's";
  EXPECT_EQ(clock.finish(100, 10), 110) << "its next work begins where the last one ends";
  clock.clear();
  EXPECT_EQ(clock.now(), 110);
}

TEST(FairShares, ShortPromptsComeFirstAndLongOnesAreNotForgotten) {
  FairShares shares(1000);
  shares.add(1, of(""), 1900);
  shares.add(2, of(""), 1900);
  shares.add(3, of(""), 20);
  EXPECT_EQ(turns(shares, 9), (std::vector<RequestId>{3, 1, 2}));
  // Prompts keep coming, more than can be served: they pass the long one until it would have ended in equal parts.
  int passed = 0;
  for (RequestId id = 10; turns(shares, 1).front() != 1; ++id) {
    ASSERT_LT(++passed, 1000);
    shares.add(id, of(""), 100);
    serve(shares, turns(shares, 1).front(), 100);
  }
  EXPECT_GT(passed, 10);
}

// A request with many prompts is one among others, not as many as it has prompts.
TEST(FairShares, AGroupTakesOneShare) {
  FairShares shares(1000);
  for (RequestId id = 1; id <= 50; ++id) shares.add(id, of("", 7), 500);
  shares.add(100, of(""), 500);
  shares.add(101, of(""), 1000);
  EXPECT_EQ(turns(shares, 5), (std::vector<RequestId>{1, 100, 101, 2, 3}))
      << "two of the group by the time that the longer one is done";
}

TEST(FairShares, TenantsSpendEqually) {
  FairShares shares(1000);
  for (RequestId id = 1; id <= 100; ++id) shares.add(id, of("many"), 300);
  for (RequestId id = 201; id <= 210; ++id) shares.add(id, of("few"), 300);
  int few = 0;
  for (int turn = 0; turn < 20; ++turn) {
    const RequestId id = turns(shares, 1).front();
    few += id > 200 ? 1 : 0;
    serve(shares, id, 300);
  }
  EXPECT_EQ(few, 10);
}

// A tenant that asks for less than its share is served at once, until its saved credit is used up.
TEST(FairShares, ATenantThatWasAwayIsAheadByItsCredit) {
  constexpr int64_t kCredit = 1000, kRows = 200;
  FairShares shares(kCredit);
  for (RequestId id = 1; id <= 100; ++id) shares.add(id, of("many"), kRows);
  for (RequestId id = 1; id <= 20; ++id) serve(shares, turns(shares, 1).front(), kRows);
  for (RequestId id = 201; id <= 220; ++id) shares.add(id, of("few"), kRows);
  int at_once = 0;
  for (; turns(shares, 1).front() > 200; ++at_once) serve(shares, turns(shares, 1).front(), kRows);
  EXPECT_GE(at_once * (kRows + FairShares::kSlotRows), kCredit);
  EXPECT_LE((at_once - 2) * (kRows + FairShares::kSlotRows), kCredit) << "what it missed while away is not made up for";
}

// A tenant whose requests only decode pays for that, but no more than `credit`.
TEST(FairShares, WhatDecodingSpentIsForgivenInTheEnd) {
  FairShares shares(1000);
  shares.add(1, of("a"), 10);
  serve(shares, 1, 10);
  for (int step = 0; step < 100'000; ++step) {
    shares.spend(1, 1);
    shares.end_step();
  }
  for (RequestId id = 2; id < 30; ++id) shares.add(id, of("b"), 200);
  shares.add(30, of("a"), 10);
  int passed = 0;
  for (; turns(shares, 1).front() != 30; ++passed) serve(shares, turns(shares, 1).front(), 200);
  EXPECT_GT(passed, 3);
  EXPECT_LE(passed, 9) << "2000 rows, and one turn";
}

TEST(FairShares, PriorityOrdersATenantsOwnRequestsOnly) {
  FairShares shares(1000);
  shares.add(1, of("a", 0, 0), 10);
  shares.add(2, of("a", 0, -1), 500);
  shares.add(3, of("a", 0, 1), 5);
  shares.add(4, of("b", 0, 5), 100);
  EXPECT_EQ(turns(shares, 4, 1), (std::vector<RequestId>{2, 4, 1, 3}));
}

TEST(FairShares, WhoWasPreemptedComesBackFirstAndInOrderOfAge) {
  FairShares shares(1000);
  for (RequestId id = 1; id <= 3; ++id) shares.add(id, of(""), 500);
  for (RequestId id = 1; id <= 3; ++id) shares.start(id, 500);
  shares.add(4, of(""), 1);
  shares.resume(3, 2);
  shares.computed(2);
  shares.resume(2, 1);
  EXPECT_EQ(turns(shares, 9), (std::vector<RequestId>{2, 3, 4, 1}));
  EXPECT_EQ(shares.waiting(), 3);
}

TEST(FairShares, WhileTheNextOneWaitsOnlyThoseThatRunGoOn) {
  FairShares shares(1000);
  shares.add(1, of(""), 500);
  shares.start(1, 500);
  shares.add(2, of(""), 5);
  shares.add(3, of("b"), 5);
  FairShares::Turns turns(shares);
  turns.pass_waiting();
  EXPECT_EQ(turns.next(), RequestId{1});
  EXPECT_EQ(turns.next(), std::nullopt);
}

// Long prompts that were given up must not slow the clock: new requests would pass the waiting ones for as long as the
// others would have taken.
TEST(FairShares, WhatWasGivenUpLeavesNoTrace) {
  FairShares shares(1000);
  shares.add(1, of(""), 600);
  for (RequestId id = 10; id < 40; ++id) shares.add(id, of("", id % 2), 50'000);
  for (RequestId id = 10; id < 40; ++id) shares.remove(id);
  int passed = 0;
  for (RequestId id = 100; turns(shares, 1).front() != 1; ++id, ++passed) {
    ASSERT_LT(passed, 100);
    shares.add(id, of(""), 100);
    serve(shares, turns(shares, 1).front(), 100);
  }
  EXPECT_LE(passed, 8) << "half of what is served is its";
  serve(shares, 1, 600);
  EXPECT_EQ(shares.waiting(), 0);
  EXPECT_FALSE(shares.several_tenants());
}

// Otherwise each address that ever sent a request would be looked at in each step.
TEST(FairShares, TenantsThatComeOnceAreForgotten) {
  FairShares shares(1000);
  shares.add(1, of("much"), 900);
  serve(shares, 1, 900);
  shares.remove(1);
  for (RequestId id = 2; id < 3000; ++id) {
    shares.add(id, of(std::to_string(id)), 100);
    serve(shares, id, 100);
    shares.remove(id);
  }
  std::set<std::string> known;
  shares.for_each_tenant([&](const std::string& tenant, size_t) { known.insert(tenant); });
  EXPECT_LE(std::ssize(known), FairShares::kMostAway + 1);
  EXPECT_TRUE(known.contains("much")) << "who spent most is remembered";
  EXPECT_TRUE(known.contains("2999"));
}

// Rows that the prefix cache has when a request starts are not held against later requests.
TEST(FairShares, CachedRowsCountAsComputed) {
  FairShares shares(1000);
  shares.add(1, of("", 7), 5000);
  shares.add(2, of("", 7), 5000);
  shares.add(3, of(""), 8000);
  serve(shares, 1, 5000);
  serve(shares, 2, 10);  // the neighbour computed the other rows
  shares.add(4, of(""), 3000);
  EXPECT_EQ(turns(shares, 2), (std::vector<RequestId>{3, 4}));
}

}  // namespace
}  // namespace volley::sched
