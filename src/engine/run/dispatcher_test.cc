// Several replicas act as one: a fault stays with its replica or ends all, and there is one queue.
#include "engine/run/dispatcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "device/fault.h"
#include "engine/device_testing.h"
#include "engine/run/stats_sum.h"
#include "engine/run/worker_for_test.h"

namespace volley::engine {
namespace {

using namespace std::chrono_literals;

class Replicas : public WorkerTest {
 protected:
  void TearDown() override {
    go_on();
    dispatcher_.reset();
  }

  // The tests break replica 0.
  void make(size_t count, bool restarts, int32_t max_queue = 64) {
    std::vector<WorkerParts> parts;
    for (size_t i = 0; i < count; ++i) {
      parts.push_back(
          make_parts(plain_options(), [this, i](std::unique_ptr<Device> device, int) -> std::unique_ptr<Device> {
            return std::make_unique<FaultyDevice>(std::move(device), i == 0 ? &before_first_ : &before_others_);
          }));
      parts.back().scheduler.cache_events = true;
      parts.back().remake = restarts ? slow_remake(parts.back().remake) : nullptr;
      parts.back().least_between_faults_s = 0;
      parts.back().step_timeout.least = step_timeout_s_;
    }
    DispatcherConfig config{.max_queue = max_queue,
                            .page_size = parts[0].scheduler.page_size,
                            .prefix_cache = true,
                            .on_device_failure = {},
                            .on_warning = {},
                            .on_cache_events = {}};
    config.on_device_failure = [this](const std::string& failure) {
      const std::lock_guard lock(mutex_);
      failures_.push_back(failure + " Ended: " + std::to_string(ended_));
    };
    config.on_warning = [this](const std::string& warning) {
      const std::lock_guard lock(mutex_);
      warnings_.push_back(warning);
    };
    dispatcher_ = std::make_unique<Dispatcher>(std::move(parts), std::move(config));
  }

  decltype(WorkerParts::remake) slow_remake(decltype(WorkerParts::remake) remake) {
    return [this, remake = std::move(remake)](const WorkerParts::Attend& attend) {
      remaking_ = true;
      gone_on_.wait();
      return remake(attend);
    };
  }

  struct Open {
    std::future<Finish> ended;
    std::shared_ptr<std::vector<TokenId>> tokens = std::make_shared<std::vector<TokenId>>();
    Status taken;
  };

  static GenerateRequest numbered(int i) {
    GenerateRequest request = request_of(20 + i);
    for (size_t j = 0; j < request.prompt.size(); ++j) request.prompt[j] = static_cast<TokenId>((j * 7 + i * 31) % 200);
    request.sampling.temperature = 0.8f;
    request.max_tokens = 12;
    return request;
  }

  Open submit(GenerateRequest request) {
    Open open;
    auto ended = std::make_shared<std::promise<Finish>>();
    open.ended = ended->get_future();
    const auto sink = [this, ended, tokens = open.tokens](const Event& event) {
      tokens->insert(tokens->end(), event.tokens.begin(), event.tokens.end());
      if (!event.finish) return;
      ++ended_;
      ended->set_value(*event.finish);  // throws if it had ended already
    };
    open.taken = dispatcher_->submit({++last_id_, std::move(request), nullptr, sink, RequestOutput::Clock::now()});
    return open;
  }

  static Finish wait(Open& open) {
    if (open.ended.wait_for(300s) == std::future_status::ready) return open.ended.get();
    ADD_FAILURE() << "a request hangs";
    std::abort();  // a destructor would hang
  }

  template <typename F>
  void until(const F& done) {
    for (int i = 0; i < 60'000 && !done(); ++i) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(done());
  }

  void go_on() {
    if (!released_.exchange(true)) release_.set_value();
  }
  std::vector<std::string> failures() {
    const std::lock_guard lock(mutex_);
    return failures_;
  }

  double step_timeout_s_ = 0;  // for make()
  std::atomic<bool> fails_ = false, hangs_ = false, stands_ = false, remaking_ = false, released_ = false;
  std::atomic<int> standing_ = 0, ended_ = 0;
  std::promise<void> release_;
  std::shared_future<void> gone_on_ = release_.get_future().share();
  const std::function<bool(bool)> before_others_ = [this](bool) {
    if (stands_) ++standing_, gone_on_.wait();
    return true;
  };
  const std::function<bool(bool)> before_first_ = [this](bool allocates) {
    if (hangs_ && !allocates) ++standing_, gone_on_.wait();
    if (!allocates && fails_.exchange(false)) throw DeviceFault("The device failed: the test says so.");
    return before_others_(allocates);
  };
  std::mutex mutex_;
  std::vector<std::string> failures_, warnings_;  // guarded by mutex_
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(Replicas, OneThatStartsOverIsAvoidedAndItsRequestsGoOn) {
  make(1, false);
  std::vector<std::vector<TokenId>> expected;
  for (int i = 0; i < 8; ++i) {
    Open open = submit(numbered(i));
    EXPECT_EQ(wait(open).reason, FinishReason::kLength);
    expected.push_back(*open.tokens);
  }
  make(2, true);
  fails_ = true;
  Open first = submit(numbered(0));
  until([&] { return remaking_.load(); });
  for (int i = 1; i < 8; ++i) {
    Open open = submit(numbered(i));
    EXPECT_EQ(wait(open).reason, FinishReason::kLength);
    EXPECT_EQ(*open.tokens, expected[static_cast<size_t>(i)]) << i;
  }
  EXPECT_EQ(first.ended.wait_for(0s), std::future_status::timeout);
  go_on();
  EXPECT_EQ(wait(first).reason, FinishReason::kLength);
  EXPECT_EQ(*first.tokens, expected[0]);
  until([&] { return dispatcher_->stats().requests_finished == 8; });
  const EngineStats stats = dispatcher_->stats();
  EXPECT_EQ(stats.device_restarts, 1);
  ASSERT_EQ(stats.replicas.size(), 2u);
  EXPECT_EQ(stats.replicas[0].device_restarts, 1);
  EXPECT_EQ(stats.replicas[0].requests_finished, 1);
  EXPECT_EQ(stats.replicas[1].requests_finished, 7);
  EXPECT_TRUE(failures().empty());
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_EQ(warnings_[0].find("Replica 0: The device failed"), 0u) << warnings_[0];
  // The replica is back, and takes its turns.
  std::vector<Open> more;
  for (int i = 0; i < 8; ++i) more.push_back(submit(numbered(i)));
  for (Open& open : more) EXPECT_EQ(wait(open).reason, FinishReason::kLength);
  until([&] { return dispatcher_->stats().requests_finished == 16; });
  EXPECT_GT(dispatcher_->stats().replicas[0].requests_finished, 1);
}

TEST_F(Replicas, OneThatCannotStartOverEndsAll) {
  for (int round = 0; round < 5; ++round) {
    ended_ = 0;
    make(3, false);
    std::vector<Open> open;
    for (int i = 0; i < 12; ++i) {
      GenerateRequest request = numbered(i);
      request.max_tokens = 1500;  // no request ends before the fault, however slow its replica's thread is
      open.push_back(submit(std::move(request)));
    }
    until([&] { return dispatcher_->stats().generated_tokens > 4 * round; });
    fails_ = true;
    for (Open& one : open) {
      const Finish finish = wait(one);
      ASSERT_TRUE(finish.error);
      EXPECT_EQ(finish.error->code, ErrorCode::kUnavailable);
      EXPECT_NE(finish.error->message.find("the test says so"), std::string::npos);
    }
    until([&] { return !failures().empty(); });
    const Open late = submit(numbered(0));
    ASSERT_FALSE(late.taken.ok());
    EXPECT_EQ(late.taken.error().code, ErrorCode::kUnavailable);
    dispatcher_.reset();
    ASSERT_EQ(failures().size(), 1u);
    EXPECT_NE(failures()[0].find("Ended: 12"), std::string::npos)
        << "said before everybody had heard: " << failures()[0];
    failures_.clear();
  }
}

// The engine waits for the replica, so the callback must end the process.
TEST_F(Replicas, OneThatHangsWhileAllCloseIsTold) {
  step_timeout_s_ = 1;
  make(2, false);
  hangs_ = true;
  std::vector<Open> open;
  for (int i = 0; i < 4; ++i) open.push_back(submit(numbered(i)));
  until([&] { return standing_ > 0; });
  std::thread closes([this] { dispatcher_.reset(); });
  until([&] { return !failures().empty(); });
  EXPECT_NE(failures()[0].find("--step-timeout"), std::string::npos);
  go_on();
  closes.join();
  EXPECT_EQ(failures().size(), 1u);
  for (Open& one : open) wait(one);
}

TEST_F(Replicas, TheQueueIsOne) {
  make(2, false, /*max_queue=*/6);
  stands_ = true;  // no request leaves the queue
  std::vector<Open> open;
  for (int i = 0; i < 6; ++i) {
    open.push_back(submit(numbered(i)));
    ASSERT_TRUE(open.back().taken.ok()) << i;
  }
  const Open refused = submit(numbered(7));
  ASSERT_FALSE(refused.taken.ok());
  EXPECT_EQ(refused.taken.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.taken.error().message.find("6 requests wait"), std::string::npos);
  until([&] { return standing_ == 2; });
  go_on();
  for (Open& one : open) EXPECT_EQ(wait(one).reason, FinishReason::kLength);
  until([&] { return dispatcher_->stats().requests_waiting + dispatcher_->stats().requests_running == 0; });
  Open again = submit(numbered(7));
  EXPECT_EQ(wait(again).reason, FinishReason::kLength) << "who was refused left nothing behind";
  until([&] { return dispatcher_->stats().requests_finished == 7; });
}

// A tenant that fills the queue leaves room for others, in one engine and over replicas.
class QueueOfReplicas : public Replicas, public ::testing::WithParamInterface<int> {};

TEST_P(QueueOfReplicas, HasAPlaceForASmallTenant) {
  make(static_cast<size_t>(GetParam()), false, /*max_queue=*/8);
  stands_ = true;
  std::vector<Open> open;
  const auto ask = [&](const char* tenant) {
    GenerateRequest request = numbered(static_cast<int>(open.size()));
    request.tenant = tenant;
    Open one = submit(std::move(request));
    if (!one.taken.ok()) return false;
    open.push_back(std::move(one));
    return true;
  };
  for (int i = 0; i < GetParam(); ++i) EXPECT_TRUE(ask("large"));
  until([&] { return standing_ == GetParam(); });  // requests leave the queue no later than the next step
  while (ask("large")) {
  }
  EXPECT_GE(open.size(), 7u);
  EXPECT_LE(open.size(), 7u + GetParam());
  EXPECT_TRUE(ask("small"));
  EXPECT_FALSE(ask("other")) << "eight are eight";
  go_on();
  for (Open& one : open) EXPECT_EQ(wait(one).reason, FinishReason::kLength);
}

INSTANTIATE_TEST_SUITE_P(Of, QueueOfReplicas, ::testing::Values(1, 2));

TEST_F(Replicas, CancellingFindsTheReplica) {
  make(3, false);
  stands_ = true;
  std::vector<Open> open;
  for (int i = 0; i < 9; ++i) open.push_back(submit(numbered(i)));
  for (RequestId id = 1; id <= 9; id += 2) dispatcher_->cancel(id);
  dispatcher_->cancel(100);  // an unknown id
  go_on();
  for (size_t i = 0; i < open.size(); ++i) {
    EXPECT_EQ(wait(open[i]).reason, i % 2 == 0 ? FinishReason::kCancelled : FinishReason::kLength) << i;
  }
  until([&] { return dispatcher_->stats().requests_cancelled == 5; });
  dispatcher_->drop_prefix_cache();
  until([&] { return dispatcher_->stats().pages_used == 0; });
}

// The first replica loads the target and the others share it. After a fault it is loaded once more.
TEST_F(Replicas, TheTargetIsLoadedOnceWhereTheyShareMemory) {
  auto models = resolve_models(plain_options());
  ASSERT_TRUE(models.ok());
  const auto device = std::move(make_device(models->device, 1)).value();
  const auto load_one = [&] {
    auto loaded = load_models(*device, *models, 0, {});
    VOLLEY_CHECK(loaded.ok());
    return std::move(loaded).value();
  };
  models->shared_target = std::make_shared<SharedTarget>();
  LoadedModels first = load_one(), second = load_one();
  EXPECT_EQ(first.target, second.target);
  first = {};
  first = load_one();
  EXPECT_EQ(first.target, second.target);
  EXPECT_EQ(models->shared_target->loads(), 1);
  const auto fails = []() -> Result<std::unique_ptr<model::Network>> { return internal_error("cannot be read"); };
  EXPECT_FALSE(SharedTarget().get(fails).ok()) << "nobody has any";
  models->shared_target = nullptr;
  const LoadedModels own = load_one();
  EXPECT_NE(own.target, second.target);
}

TEST(StatsSum, AddsUp) {
  EngineStats a, b;
  a.requests_running = 2;
  b.requests_running = 3;
  a.accepted_at = {1, 2};
  b.accepted_at = {10, 20, 30};
  a.page_groups = {{.window = 0, .total = 5, .used = 4}, {.window = 64, .total = 7}};
  b.page_groups = {{.window = 0, .total = 6, .used = 1}, {.window = 64, .total = 8}};
  a.device_s = 0.5;
  b.device_s = 1.5;
  a.verify.steps = 4;
  a.verify.predicted_at = {0.5};
  b.verify.predicted_at = {0.25};
  b.verify.last = "8 drafted";
  b.snapshots.held = 3;
  const EngineStats all = sum({a, b});
  EXPECT_EQ(all.requests_running, 5);
  EXPECT_EQ(all.accepted_at, (std::vector<int64_t>{11, 22, 30}));
  ASSERT_EQ(all.page_groups.size(), 2u);
  EXPECT_EQ(all.page_groups[0].total, 11);
  EXPECT_EQ(all.page_groups[0].used, 5);
  EXPECT_EQ(all.page_groups[1].window, 64);
  EXPECT_EQ(all.page_groups[1].total, 15);
  EXPECT_EQ(all.device_s, 2);
  EXPECT_EQ(all.verify.steps, 4);
  EXPECT_EQ(all.verify.predicted_at, (std::vector<double>{0.75}));
  EXPECT_EQ(all.verify.last, "replica 1: 8 drafted");
  EXPECT_EQ(all.snapshots.held, 3);
  ASSERT_EQ(all.replicas.size(), 2u);
  EXPECT_EQ(all.replicas[1].requests_running, 3);
}

}  // namespace
}  // namespace volley::engine
