// Protects replicas that divide the experts. All replicas follow a pass that one begins. A replica that has ended
// follows until all have. A failing replica ends them all with its cause. Measuring before there are workers waits for
// no worker.
//
// This file is built twice: for the CPU, and with VOLLEY_LOCKSTEP_TEST_CUDA for one GPU a replica. Two whole engines on
// one GPU would deadlock: some driver calls wait for the whole GPU.
#include "engine/remote/lockstep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "base/environment.h"
#include "base/sanitized.h"
#include "device/fault.h"
#include "engine/device_testing.h"
#include "engine/run/dispatcher.h"
#include "engine/run/replica.h"
#include "engine/run/validation.h"
#include "engine/start/companions.h"
#include "engine/start/round_setup.h"
#include "engine/start/text_models.h"

namespace volley::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

#ifdef VOLLEY_LOCKSTEP_TEST_CUDA
constexpr bool kOnGpus = true;
// Runs before the first use of CUDA: kernels that wait for one another need queues of their own, and no kernel may load
// while others wait.
const bool kPrepared = [] {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  load_gpu_code_early();
  return true;
}();
#else
constexpr bool kOnGpus = false;
#endif

enum class Place { kCpu, kOneGpu, kGpus };

constexpr const char* kPlaceNames[] = {"Cpu", "OneGpu", "Gpus"};

std::string device_of(Place place, int replica) {
  if (place == Place::kCpu) return "cpu";
  return "cuda:" + std::to_string(place == Place::kGpus ? replica : 0);
}

bool is_here(Place place, int replicas) {
  return place == Place::kCpu || examine_cuda_device(place == Place::kGpus ? replicas - 1 : 0).ok();
}

comm::RowExchanges exchanges_of(Place place, int replicas, const ResolvedModels& models) {
  if (place == Place::kCpu) {
    return comm::make_row_exchanges(replicas, models.max_num_batched_tokens, models.exchange_bytes);
  }
  std::vector<int> gpus;
  for (int i = 0; i < replicas; ++i) gpus.push_back(place == Place::kGpus ? i : 0);
  auto made = comm::make_cuda_row_exchanges(gpus, models.max_num_batched_tokens, models.exchange_bytes);
  VOLLEY_CHECK_MSG(made.ok(), made.error().message);
  return std::move(*made);
}

// Replicas begin passes at random and otherwise follow; each pass meets the others' three times.
TEST(Lockstep, PassesOfOneAreFollowedByAll) {
  constexpr int kReplicas = 3;
  const int own = kSanitized ? 300 : 3000;
  Lockstep lockstep(comm::make_row_exchanges(kReplicas, 8, 4096));
  std::atomic<int64_t> passes[kReplicas] = {};
  std::vector<std::thread> threads;
  for (int r = 0; r < kReplicas; ++r) {
    threads.emplace_back([&, r] {
      const auto device = *make_cpu_device(1);
      comm::RowExchange& exchange = lockstep.exchange(r);
      ASSERT_TRUE(exchange.prepare(*device).ok());
      std::mutex mutex;
      std::condition_variable wake;
      lockstep.watch(r, [&] {
        const std::lock_guard lock(mutex);
        wake.notify_all();
      });
      const auto run = [&](int64_t rows) {
        lockstep.begin(r);
        exchange.begin(device->stream(), rows);
        exchange.meet(device->stream());
        exchange.meet(device->stream());
        ++passes[r];
      };
      std::minstd_rand random(static_cast<uint32_t>(r + 1));
      for (int i = 0; i < own * (r + 1);) {
        if (random() % 4 == 0) {  // idle until another replica begins a pass, if one does soon
          std::unique_lock lock(mutex);
          if (wake.wait_for(lock, 1ms, [&] { return lockstep.behind(r); })) {
            lock.unlock();
            run(0);
          }
          continue;
        }
        run(1);
        ++i;
      }
      lockstep.watch(r, {});
      lockstep.leave(r);
      while (lockstep.wait(r)) run(0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_one : passes) EXPECT_EQ(of_one, passes[0]);
  EXPECT_GE(passes[0], own * kReplicas);
}

TEST(Lockstep, OneThatAbortsEndsWaiting) {
  Lockstep lockstep(comm::make_row_exchanges(2, 8, 4096));
  lockstep.leave(0);
  auto waiting = std::async(std::launch::async, [&] { return lockstep.wait(0); });
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout) << "the other one may begin passes yet";
  lockstep.abort(1);
  EXPECT_FALSE(waiting.get());
  EXPECT_EQ(lockstep.aborted_by(), 1);
}

// Two replicas of a small mixture, on devices that the test controls.
class ReplicasInLockstep : public ::testing::TestWithParam<Place> {
 protected:
  static constexpr int kReplicas = 2;

  static EngineOptions options_of() {
    EngineOptions options;
    options.device = "cpu";
    options.model_dir = "tests/data/targets/moe_single";
    options.speculation = Speculation::kOff;
    options.skip_tokenizer = true;
    options.max_num_seqs = 4;
    options.max_model_len = 256;
    options.page_size = 16;
    options.kv_pages = 100;
    options.threads = 1;
    options.data_parallel_size = kReplicas;
    options.enable_expert_parallel = true;
    return options;
  }

  void SetUp() override {
    if (!is_here(GetParam(), kReplicas)) GTEST_SKIP() << "needs GPUs";
    EngineOptions options = options_of();
    const auto text = load_text(options, true);
    ASSERT_TRUE(text.ok()) << text.error().message;
    for (int i = 0; i < kReplicas; ++i) {
      options.device = device_of(GetParam(), i);
      auto models = resolve_models(options, i);
      ASSERT_TRUE(models.ok()) << models.error().message;
      ASSERT_EQ(models->expert_replicas, kReplicas);
      if (i == 0) lockstep_ = std::make_shared<Lockstep>(exchanges_of(GetParam(), kReplicas, *models));
      models->lockstep = {lockstep_, i};
      auto replica = Replica::create(options, *models, {}, [this, i](std::unique_ptr<Device> device, int) {
        return std::make_unique<FaultyDevice>(std::move(device), &before_[i]);
      });
      ASSERT_TRUE(replica.ok()) << replica.error().message;
      WorkerParts& parts = parts_.emplace_back();
      parts.replica = std::move(replica).value();
      parts.tokenizer = text->tokenizer;
      parts.scheduler = models->scheduler();
      parts.max_queue = 100;
    }
  }

  void TearDown() override {
    dispatcher_.reset();
    parts_.clear();
    lockstep_.reset();
  }

  void start(double step_timeout_s = 0) {
    for (WorkerParts& parts : parts_) parts.step_timeout.least = step_timeout_s;
    DispatcherConfig config{.max_queue = 100,
                            .page_size = parts_[0].scheduler.page_size,
                            .prefix_cache = false,
                            .on_device_failure =
                                [this](const std::string& failure) {
                                  const std::lock_guard lock(mutex_);
                                  failures_.push_back(failure);
                                },
                            .on_warning = {},
                            .on_cache_events = {}};
    dispatcher_ = std::make_unique<Dispatcher>(std::move(parts_), std::move(config));
  }

  std::future<Finish> submit(int i, int32_t max_tokens) {
    GenerateRequest request;
    for (int j = 0; j < 3 + i % 5; ++j) request.prompt.push_back((7 * i + 13 * j) % 73);
    request.sampling.seed = static_cast<uint64_t>(i);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    auto ended = std::make_shared<std::promise<Finish>>();
    auto finish = ended->get_future();
    const int id = ++last_id_;
    const auto sink = [this, ended, id](const Event& event) {
      {
        const std::lock_guard lock(mutex_);
        tokens_[id].insert(tokens_[id].end(), event.tokens.begin(), event.tokens.end());
      }
      if (event.finish) ended->set_value(*event.finish);  // throws if it had ended already
    };
    const Status taken = dispatcher_->submit(
        {static_cast<RequestId>(id), std::move(request), nullptr, sink, RequestOutput::Clock::now()});
    EXPECT_TRUE(taken.ok());
    return finish;
  }

  std::vector<TokenId> tokens_of(int id) {
    const std::lock_guard lock(mutex_);
    return tokens_[id];
  }

  static Finish wait(std::future<Finish>& finish) {
    if (finish.wait_for(120s) == std::future_status::ready) return finish.get();
    ADD_FAILURE() << "a request hangs";
    std::abort();  // a destructor would hang
  }

  std::shared_ptr<Lockstep> lockstep_;
  std::atomic<int> fails_ = -1, hangs_ = -1;  // index of a replica
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  std::function<bool(bool)> before_[kReplicas] = {[this](bool allocates) { return before(0, allocates); },
                                                  [this](bool allocates) { return before(1, allocates); }};
  std::vector<WorkerParts> parts_;
  std::mutex mutex_;
  std::vector<std::string> failures_;           // guarded by mutex_
  std::map<int, std::vector<TokenId>> tokens_;  // by request; guarded by mutex_
  std::unique_ptr<Dispatcher> dispatcher_;
  int last_id_ = 0;

 private:
  bool before(int replica, bool allocates) {
    if (!allocates && fails_ == replica) throw DeviceFault("The device failed: the test says so.");
    if (!allocates && hangs_ == replica) released_.wait();
    return true;
  }
};

// The second replica fails, whether it has requests of its own or only takes part in the first one's passes.
TEST_P(ReplicasInLockstep, OneThatFailsEndsAllRequestsWithItsCause) {
  start();
  for (int i = 0; i < 8; ++i) {
    auto finish = submit(i, 8);
    ASSERT_EQ(wait(finish).reason, FinishReason::kLength);
  }
  std::vector<std::future<Finish>> open;
  for (int i = 0; i < 12; ++i) open.push_back(submit(i, 200));
  fails_ = 1;
  int failed = 0;
  for (auto& one : open) {
    const Finish finish = wait(one);
    if (finish.reason == FinishReason::kLength) continue;  // the request ended before the fault
    ++failed;
    ASSERT_TRUE(finish.error);
    EXPECT_EQ(finish.error->code, ErrorCode::kUnavailable);
    EXPECT_THAT(finish.error->message, HasSubstr("the test says so"));
  }
  EXPECT_GT(failed, 0);
  dispatcher_.reset();
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_THAT(failures_[0], HasSubstr("the test says so"));
}

TEST_P(ReplicasInLockstep, OneThatFailsWithoutWorkOfItsOwnEndsTheOthers) {
  start();
  fails_ = 1;
  auto first = submit(0, 200);  // the router gives single requests to replica 0
  const Finish finish = wait(first);
  ASSERT_TRUE(finish.error);
  EXPECT_THAT(finish.error->message, HasSubstr("the test says so"));
}

TEST_P(ReplicasInLockstep, OneThatHangsIsNoticed) {
  start(2);
  std::vector<std::future<Finish>> open;
  hangs_ = 1;
  for (int i = 0; i < 6; ++i) open.push_back(submit(i, 100));
  for (auto& one : open) {
    const Finish finish = wait(one);
    ASSERT_TRUE(finish.error);
    EXPECT_THAT(finish.error->message, HasSubstr("--step-timeout"));
  }
  release_.set_value();
  dispatcher_.reset();
}

// The engine may stop at any moment, in the middle of passes of one replica or of both.
TEST_P(ReplicasInLockstep, EndAtAnyMoment) {
  for (int round = 0; round < (kSanitized ? 5 : kOnGpus ? 15 : 40); ++round) {
    if (round > 0) {
      parts_.clear();
      lockstep_.reset();
      ASSERT_NO_FATAL_FAILURE(SetUp());
    }
    start();
    std::vector<std::future<Finish>> open;
    for (int i = 0; i < round % 7; ++i) open.push_back(submit(i, 150));
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    dispatcher_.reset();
    for (auto& one : open) {
      const FinishReason reason = wait(one).reason;
      EXPECT_TRUE(reason == FinishReason::kCancelled || reason == FinishReason::kLength);
    }
  }
}

// One replica runs steps before there are workers.
TEST_P(ReplicasInLockstep, OneRunsStepsWhileTheOthersTakePart) {
  std::vector<Executor*> replicas;
  for (const WorkerParts& parts : parts_) replicas.push_back(parts.replica.get());
  const auto run_steps = [&](size_t index, int steps) {
    Executor& replica = *replicas[index];
    replica.attach_thread();
    const std::vector<TokenId> prompt = {5};
    decode::SlotStart start;
    start.prompt = prompt;
    start.sampling.prompt_length = 1;
    start.limits.max_tokens = 1000;
    VOLLEY_CHECK(replica.execute(decode::StartSlot{0, start}).ok());
    for (int32_t i = 0; i < 8; ++i) replica.execute(decode::SetPage{0, 0, i, PageId(i)});
    std::vector<decode::RoundSegment> segments(1);
    segments[0].slot = 0;
    segments[0].chooses = true;
    std::vector<decode::RoundResult> results;
    for (int i = 0; i < steps; ++i) {
      VOLLEY_CHECK(replica.enqueue(segments).ok());
      replica.wait(results);
    }
    replica.execute(decode::ClearSlot{0});
    return Status();
  };
  for (const size_t index : {0u, 1u, 0u}) {
    EXPECT_TRUE(with_companions(replicas, index, [&] { return run_steps(index, 20); }).ok());
  }
  const Status refused = with_companions(replicas, 1, [] { return Status(invalid_argument("It is refused.")); });
  EXPECT_EQ(refused.error().message, "It is refused.");
  EXPECT_GT(replicas[0]->experts_touched(), 0);
  EXPECT_GT(replicas[1]->experts_touched(), 0);
  fails_ = 1;
  try {
    const Status status = with_companions(replicas, 0, [&] { return run_steps(0, 20); });
    FAIL() << "it went on: " << (status.ok() ? "" : status.error().message);
  } catch (const DeviceFault& fault) {
    EXPECT_STREQ(fault.what(), "The device failed: the test says so.");
  }
  fails_ = -1;
}

// Replicas wake and fall idle, and every request keeps the tokens that it has alone.
TEST_P(ReplicasInLockstep, TokensAreTheSameWhoeverElseHasWork) {
  start();
  std::vector<std::vector<TokenId>> alone;
  for (int i = 0; i < 6; ++i) {
    auto finish = submit(i, 40);
    ASSERT_EQ(wait(finish).reason, FinishReason::kLength);
    alone.push_back(tokens_of(last_id_));
  }
  for (int round = 0; round < 4; ++round) {
    std::vector<std::future<Finish>> open;
    std::vector<int> ids;
    for (int i = 0; i < 6; ++i) {
      open.push_back(submit(i, 40));
      ids.push_back(last_id_);
      if (round % 2 == 1) std::this_thread::sleep_for(2ms);
    }
    for (auto& one : open) ASSERT_EQ(wait(one).reason, FinishReason::kLength);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(tokens_of(ids[i]).size(), 40u);
      EXPECT_EQ(tokens_of(ids[i]), alone[i]) << "request " << i << ", round " << round;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, ReplicasInLockstep, ::testing::Values(kOnGpus ? Place::kGpus : Place::kCpu),
                         [](const auto& info) { return kPlaceNames[static_cast<int>(info.param)]; });

TEST(LockstepOptions, WhatIsNotBuiltIsRefusedByName) {
  EngineOptions options;
  options.data_parallel_size = 2;
  options.enable_expert_parallel = true;
  EXPECT_TRUE(check_expert_parallel(options, DeviceKind::kCpu, true).ok());
  EXPECT_EQ(check_expert_parallel(options, DeviceKind::kCpu, false).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(check_expert_parallel(options, DeviceKind::kCuda, true).ok());
  options.data_parallel_size = 9;
  EXPECT_TRUE(check_expert_parallel(options, DeviceKind::kCpu, true).ok());
  const Status on_gpus = check_expert_parallel(options, DeviceKind::kCuda, true);
  EXPECT_EQ(on_gpus.error().code, ErrorCode::kUnimplemented);
  EXPECT_THAT(on_gpus.error().message, HasSubstr("--data-parallel-size 9"));
  options.data_parallel_size = 2;
  options.restart_on_device_error = true;
  const Status restarts = check_expert_parallel(options, DeviceKind::kCpu, true);
  EXPECT_EQ(restarts.error().code, ErrorCode::kUnimplemented);
  EXPECT_THAT(restarts.error().message, HasSubstr("--restart-on-device-error"));
  options.tensor_parallel_size = 2;  // each replica divides its experts among its ranks
  EXPECT_TRUE(check_expert_parallel(options, DeviceKind::kCuda, true).ok());
}

// Memory is planned to the byte, a replica's part of the exchange included. On GPUs each replica has its own experts
// and its own common memory.
TEST(LockstepMemory, IsWhatWasPlanned) {
  const Place place = kOnGpus ? Place::kOneGpu : Place::kCpu;
  if (!is_here(place, 2)) GTEST_SKIP() << "needs a GPU";
  EngineOptions options;
  options.device = device_of(place, 0);
  options.model_dir = "tests/data/targets/moe_single";
  options.speculation = Speculation::kOff;
  options.max_num_seqs = 4;
  options.kv_pages = 100;
  options.threads = 1;
  const auto alone = resolve_models(options);
  ASSERT_TRUE(alone.ok()) << alone.error().message;
  options.data_parallel_size = 2;
  options.enable_expert_parallel = true;
  std::vector<ResolvedModels> models;
  for (int i = 0; i < 2; ++i) {
    auto resolved = resolve_models(options, i);
    ASSERT_TRUE(resolved.ok()) << resolved.error().message;
    models.push_back(std::move(*resolved));
  }
  const auto lockstep = std::make_shared<Lockstep>(exchanges_of(place, 2, models[0]));
  int64_t step_bytes = 0, planned = 0, weights = 0;
  {
    WatchedDevice device(std::move(make_device(models[0].device, 1)).value());
    for (int i = 0; i < 2; ++i) {
      RankPlace own;
      own.exchange = &lockstep->exchange(i);
      const int64_t empty = device.bytes();
      auto loaded = load_models(device, models[i], 0, {}, own);
      ASSERT_TRUE(loaded.ok()) << loaded.error().message;
      const MemoryPlan& plan = models[i].memory;
      const int64_t before = device.bytes();
      EXPECT_EQ(before - empty, plan.weight_bytes + plan.kv_bytes() + plan.page_bytes()) << "with scrap pages";
      weights += plan.weight_bytes;
      ASSERT_TRUE(own.exchange->prepare(device).ok());
      const auto round = make_round(device, options, models[i], *loaded, {}, own);
      ASSERT_TRUE(round.ok()) << round.error().message;
      step_bytes += device.bytes() - before;
      planned += plan.step_bytes;
      EXPECT_EQ(static_cast<int64_t>(own.exchange->common().peak()), models[i].exchange_bytes);
      EXPECT_EQ(own.exchange->common().capacity(), own.exchange->common().peak());
    }
    for (int i = 0; i < 2; ++i) lockstep->abort(i);
  }
  EXPECT_NEAR(static_cast<double>(step_bytes), static_cast<double>(planned), 1);
  const int64_t whole = alone->memory.weight_bytes;
  if (kOnGpus) {
    EXPECT_LT(weights, 2 * whole) << "no expert is there twice";
    EXPECT_GT(weights, whole);
  } else {
    EXPECT_EQ(weights, 2 * whole) << "each counts what all share";
  }
}

}  // namespace
}  // namespace volley::engine
