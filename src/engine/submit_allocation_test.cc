// Refuses each allocation of a submission in turn: it throws, and nothing of it is left, neither a place in the queue,
// nor work of a replica, nor somebody who would be told of an end. A cancellation does without any.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <vector>

#include "base/operator_new_for_test-inl.h"
#include "engine/open_requests.h"
#include "engine/worker_for_test.h"
#include "kv/page_hash.h"
#include "sched/replica_router.h"

static thread_local int refused = 0;  // the how many-th from now; 0: none
static thread_local bool every_is_refused = false;

static bool refuses_allocation(size_t) {
  return every_is_refused || (refused > 0 && --refused == 0);
}

namespace volley::engine {
namespace {

// Calls `submit` with each of its allocations refused, then without; returns how many there were.
template <typename Submit>
int refuse_each(const Submit& submit) {
  for (int i = 1;; ++i) {
    refused = i;
    try {
      submit();
      const bool none_was = std::exchange(refused, 0) > 0;
      EXPECT_TRUE(none_was) << "an allocation was refused, and nobody said so";
      return i - 1;
    } catch (const std::bad_alloc&) {
    }
  }
}

class SubmitAllocation : public WorkerTest {};

TEST_F(SubmitAllocation, LeavesNoPlaceTakenInTheQueue) {
  WorkerParts parts = make_parts(plain_options());
  parts.max_queue = 1;
  worker_ = std::make_unique<Worker>(std::move(parts));
  std::atomic<int> events{0};
  const int allocations = refuse_each([&] {
    GenerateRequest request = request_of(20);
    request.tenant = "a name that is too long for a string without memory of its own";
    const EventSink sink = [&events](const Event& event) { events += event.finish ? 1 : 0; };
    const Status taken = worker_->submit({++last_id_, std::move(request), nullptr, sink, RequestOutput::Clock::now()});
    EXPECT_TRUE(taken.ok()) << taken.error().message;
  });
  EXPECT_GT(allocations, 3);
  worker_.reset();  // it ends, and says so to all that are open
  EXPECT_EQ(events, 1);
}

TEST_F(SubmitAllocation, LeavesNobodyWhoIsToldOfAnEnd) {
  OpenRequests open;
  int events = 0;
  EventSink added;
  EXPECT_GT(refuse_each([&] {
              const EventSink sink = [&events](const Event&) { ++events; };
              added = open.add(7, sink);
            }),
            1);
  open.fail({ErrorCode::kUnavailable, "the device failed"});
  EXPECT_EQ(events, 1);
}

// Whoever gives up a request because there is no memory must be able to.
TEST_F(SubmitAllocation, CancellingNeedsNone) {
  worker_ = std::make_unique<Worker>(make_parts(plain_options()));
  std::vector<std::future<Finish>> ends;
  for (int i = 0; i < 10; ++i) {
    GenerateRequest request = request_of(20);
    request.max_tokens = 1500;
    ends.push_back(submit(std::move(request)));
  }
  every_is_refused = true;
  for (RequestId id = 1; id <= last_id_; ++id) worker_->cancel(id), worker_->cancel(id);
  every_is_refused = false;
  for (auto& end : ends) EXPECT_EQ(end.get().reason, FinishReason::kCancelled);
}

// Its place in the list is taken when it is added, also beside others that ended and were not looked at yet.
TEST_F(SubmitAllocation, EachThatIsOpenIsNotedOnceWhereItIsCancelled) {
  OpenRequests open;
  std::vector<RequestId> noted;
  for (RequestId id = 1; id <= 100; ++id) {
    const EventSink outer = open.add(id, [](const Event&) {});
    every_is_refused = true;
    open.cancel(id), open.cancel(id), open.cancel(id + 1);
    every_is_refused = false;
    if (id % 2 == 0) continue;
    Event last;
    last.id = id;
    last.finish.emplace();
    outer(last);
  }
  open.take_cancelled([&](RequestId id) { noted.push_back(id); });
  std::ranges::sort(noted);
  for (RequestId id = 1; id <= 100; ++id) EXPECT_EQ(noted.at(static_cast<size_t>(id) - 1), id);
  EXPECT_FALSE(open.any_cancelled());
}

TEST_F(SubmitAllocation, LeavesNoWorkWithAReplica) {
  constexpr int32_t kPage = 4;
  sched::ReplicaRouter router(2, kPage);
  const std::vector<TokenId> prompt(40, 7);
  EXPECT_GT(refuse_each([&] { router.add({7, std::ssize(prompt), 8, kv::page_hashes("", prompt, kPage)}); }), 3);
  EXPECT_EQ(router.requests(0), 1);
  EXPECT_EQ(router.work(0), 48);
  EXPECT_EQ(router.work(1), 0);
  router.ended(7);
  router.published(0, {});
  EXPECT_TRUE(router.idle());
  EXPECT_EQ(router.work(0), 0);
}

}  // namespace
}  // namespace volley::engine
