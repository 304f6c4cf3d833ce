// Protects requests against the device. Wherever a round fails, every request ends exactly once and nothing hangs.
// Where the engine may restart the device, clients do not notice.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <numeric>
#include <string>
#include <thread>

#include "device/cpu/work_hook_for_test.h"
#include "device/fault.h"
#include "engine/device_testing.h"
#include "engine/tiny_pair_for_test.h"

namespace volley::engine {
namespace {

using namespace std::chrono_literals;

// ThreadSanitizer is slow, so only some pieces of work fail there.
#if defined(__SANITIZE_THREAD__)
constexpr bool kEach = false;
#else
constexpr bool kEach = true;
#endif

// A tiny pair on a device whose n-th piece of work (launch, copy, fence) or allocation fails.
class Fault : public TinyPairTest, public ::testing::WithParamInterface<TestedRank> {
 protected:
  enum class Kind { kNone, kWork, kMemory, kHang };

  void SetUp() override { set_work_hook(&work_); }
  void TearDown() override {
    release();
    worker_.reset();
    set_work_hook(nullptr);
  }

  static EngineOptions tiny_options() {
    EngineOptions options = tiny_pair();
    options.tensor_parallel_size = GetParam().ranks;
    options.threads = 2 * GetParam().ranks;  // regions with one thread do not call the hook
    return options;
  }

  WrapDevice faulty() {
    return [this](std::unique_ptr<Device> device, int rank) {
      if (rank > 0) threads_[static_cast<size_t>(rank)] = std::this_thread::get_id();
      if (rank != GetParam().rank) return device;
      return std::unique_ptr<Device>(std::make_unique<FaultyDevice>(std::move(device), &before_));
    };
  }

  // Places to fail among the pieces of work of a few requests. Ranks other than the first see fewer.
  static std::vector<int64_t> places() {
    if (!kEach) return {1, 25, 50};
    std::vector<int64_t> all(GetParam().rank == 0 ? 120 : 50);
    std::iota(all.begin(), all.end(), 1);
    return all;
  }

  WorkerParts tiny_parts() {
    WorkerParts parts = make_parts(tiny_options(), faulty());
    parts.remake = [made = parts.remake](const auto& attend) -> Result<std::unique_ptr<Executor>> {
      try {
        return made(attend);
      } catch (const DeviceFault& fault) {
        return Error{ErrorCode::kUnavailable, fault.what()};
      }
    };
    parts.least_between_faults_s = 0;
    keep_failures(parts);
    return parts;
  }

  // Makes `times` faults in a row, from the n-th on.
  void arm(Kind kind, int64_t n, int times = 1) {
    seen_ = 0;
    at_ = n;
    times_ = times;
    kind_ = kind;
  }
  int64_t seen() const { return seen_; }
  int64_t thrown() const { return thrown_; }
  void release() {
    if (!released_.exchange(true)) go_on_.set_value();
  }

 private:
  bool before(bool allocates) {
    const Kind kind = kind_;
    if (kind == Kind::kNone || allocates != (kind == Kind::kMemory) || ++seen_ < at_) return true;
    if (--times_ <= 0) kind_ = Kind::kNone;
    if (kind == Kind::kMemory) return false;
    if (kind == Kind::kHang) return gone_on_.wait(), true;
    ++thrown_;
    throw DeviceFault("The device failed: the test says so.");
  }

  std::atomic<Kind> kind_ = Kind::kNone;
  std::atomic<int64_t> seen_ = 0, at_ = 0, thrown_ = 0;
  std::atomic<int> times_ = 0;
  std::atomic<bool> released_ = false;
  std::promise<void> go_on_;
  std::shared_future<void> gone_on_ = go_on_.get_future().share();
  const std::function<bool(bool)> before_ = [this](bool allocates) { return before(allocates); };
  // Threads of all ranks but rank 0, which runs on the caller's thread.
  std::array<std::atomic<std::thread::id>, 2> threads_ = {};
  const std::function<void()> work_ = [this] {
    const bool others = std::this_thread::get_id() == threads_[1].load();
    if (others == (GetParam().rank == 1)) before(false);
  };
};

constexpr int64_t kNever = 1'000'000;

TEST_P(Fault, EveryPieceOfWorkFailingOnceChangesNoToken) {
  worker_ = std::make_unique<Worker>(tiny_parts());
  std::vector<std::vector<TokenId>> expected, tokens;
  run_all(expected);
  int64_t pieces = kNever;  // the least counts, because requests that do not begin together take more steps
  for (int i = 0; i < 3; ++i) {
    arm(Kind::kWork, kNever);
    run_all(tokens);
    EXPECT_EQ(tokens, expected);
    pieces = std::min(pieces, seen());
  }
  EXPECT_GT(pieces, 100) << "else this test shows nothing";
  const int64_t stride = kEach ? 1 : std::max<int64_t>(1, pieces / 12);
  for (int64_t n = 1; n <= pieces; n += stride) {
    arm(Kind::kWork, n);
    for (const Finish& finish : run_all(tokens)) {
      ASSERT_EQ(finish.reason, FinishReason::kLength) << "fault " << n;
    }
    ASSERT_EQ(tokens, expected) << "fault " << n;
  }
  EXPECT_GT(thrown(), pieces / stride / 2);
  expect_nothing_held();
  EXPECT_EQ(worker_->stats().device_restarts, thrown());
  EXPECT_TRUE(failures().empty());
}

TEST_P(Fault, WithoutARestartEveryRequestEndsOnceWithTheReason) {
  size_t engines = 0;
  for (const int64_t n : places()) {
    WorkerParts parts = tiny_parts();
    parts.remake = {};
    worker_ = std::make_unique<Worker>(std::move(parts));
    arm(Kind::kWork, n);
    std::vector<std::vector<TokenId>> tokens;
    expect_failures(run_all(tokens), "the test says so");
    const Status refused = worker_->submit({99, request_of(3), nullptr, [](const Event&) {}, {}});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    expect_nothing_held();
    worker_.reset();
    EXPECT_EQ(failures().size(), ++engines);
  }
}

TEST_P(Fault, EveryAllocationOfARoundFailingOnceEndsAtMostWhoNeedsIt) {
  const auto start = [&](int64_t n) {
    worker_ = std::make_unique<Worker>(tiny_parts());
    arm(Kind::kMemory, n);
  };
  expect_lack_of_memory_ends_who_needs_it(start, [&] { return seen(); });
}

TEST_P(Fault, WithoutMemoryAtTheStartThereIsNoEngine) {
  WorkerParts parts = tiny_parts();
  parts.replica.reset();
  arm(Kind::kMemory, kNever);
  ASSERT_TRUE(parts.remake({}).ok());
  const int64_t allocations = seen();
  EXPECT_GT(allocations, 20);
  for (int64_t n = 1; n <= allocations; n += kEach ? 1 : 7) {
    arm(Kind::kMemory, n);
    const auto made = parts.remake({});
    ASSERT_FALSE(made.ok()) << "allocation " << n;
    EXPECT_EQ(made.error().code, ErrorCode::kResourceExhausted);
  }
}

TEST_P(Fault, ADeviceThatFailsAgainEndsTheEngine) {
  WorkerParts parts = tiny_parts();
  parts.least_between_faults_s = 3600;
  worker_ = std::make_unique<Worker>(std::move(parts));
  std::vector<std::vector<TokenId>> tokens;
  arm(Kind::kWork, 50);
  for (const Finish& finish : run_all(tokens)) EXPECT_EQ(finish.reason, FinishReason::kLength);
  arm(Kind::kWork, 50);
  for (const Finish& finish : run_all(tokens)) EXPECT_EQ(finish.reason, FinishReason::kError);
  worker_.reset();  // requests hear of it before on_device_failure()
  EXPECT_EQ(failures().size(), 1u);
}

TEST_P(Fault, ADeviceThatFailsWhileItIsMadeAnewEndsTheEngine) {
  worker_ = std::make_unique<Worker>(tiny_parts());
  std::vector<std::vector<TokenId>> tokens;
  arm(Kind::kWork, 50, 100);  // the models also fail to load
  for (const Finish& finish : run_all(tokens)) EXPECT_EQ(finish.reason, FinishReason::kError);
  worker_.reset();
  ASSERT_EQ(failures().size(), 1u);
  EXPECT_NE(failures()[0].find("Starting over failed"), std::string::npos);
}

// A load that hangs or fails late counts as a fault of its own, but only one in a row is tried again.
TEST_P(Fault, ALoadThatFailsLateIsTriedOnceMore) {
  for (const int failing : {1, 2}) {
    WorkerParts parts = tiny_parts();  // makes any time late
    int tries = 0;
    parts.remake = [&tries, failing, made = parts.remake](const auto& attend) -> Result<std::unique_ptr<Executor>> {
      if (++tries <= failing) return Error{ErrorCode::kUnavailable, "The test says no."};
      return made(attend);
    };
    worker_ = std::make_unique<Worker>(std::move(parts));
    std::vector<std::vector<TokenId>> tokens;
    arm(Kind::kWork, 50);
    const FinishReason reason = failing == 1 ? FinishReason::kLength : FinishReason::kError;
    for (const Finish& finish : run_all(tokens)) EXPECT_EQ(finish.reason, reason) << failing;
    worker_.reset();
    EXPECT_EQ(tries, 2);
  }
  EXPECT_EQ(failures().size(), 1u);
}

// The engine's thread is stuck in the device, so another thread must tell the clients. What the stuck thread says later
// reaches no client.
TEST_P(Fault, AStepThatHangsEndsEveryRequestOnce) {
  WorkerParts parts = tiny_parts();
  parts.step_timeout.least = 0.5;
  worker_ = std::make_unique<Worker>(std::move(parts));
  std::vector<std::vector<TokenId>> tokens;
  arm(Kind::kHang, 60);
  auto ends = submit_all(tokens);
  for (auto& end : ends) {
    const Finish finish = end.get();
    EXPECT_EQ(finish.reason, FinishReason::kError);
    ASSERT_TRUE(finish.error);
    EXPECT_EQ(finish.error->code, ErrorCode::kUnavailable);
    EXPECT_NE(finish.error->message.find("--step-timeout"), std::string::npos);
  }
  EXPECT_FALSE(worker_->submit({99, request_of(3), nullptr, [](const Event&) {}, {}}).ok());
  release();
  worker_.reset();
  EXPECT_EQ(failures().size(), 1u);
}

// During a long step the queue must not count the requests that the step runs.
TEST_P(Fault, WhoRunsInALongStepIsNotInTheQueue) {
  WorkerParts parts = tiny_parts();
  parts.max_queue = 1;
  worker_ = std::make_unique<Worker>(std::move(parts));
  arm(Kind::kHang, 20);
  GenerateRequest request = request_of(12);
  auto first = submit(request);
  while (seen() < 20) std::this_thread::sleep_for(1ms);
  auto second = submit(request);
  auto third = submit(request);
  release();
  EXPECT_EQ(first.get().reason, FinishReason::kLength);
  EXPECT_EQ(second.get().reason, FinishReason::kLength);
  EXPECT_EQ(third.get().error->code, ErrorCode::kResourceExhausted) << "one waits already";
}

TEST_P(Fault, AFaultWhileTheModelsAreLoadedReachesWhoeverLoadsThem) {
  const auto models = resolve_models(tiny_options());
  ASSERT_TRUE(models.ok());
  arm(Kind::kWork, 1);
  EXPECT_THROW((void)Replica::create(tiny_options(), *models, {}, faulty()), DeviceFault);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Fault, ::testing::Values(TestedRank{1, 0}, TestedRank{2, 0}, TestedRank{2, 1}),
                         name_of_rank);

}  // namespace
}  // namespace volley::engine
