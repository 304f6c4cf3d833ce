// Protects requests against a GPU: whatever call of the CUDA runtime fails, and whatever a kernel does, every request
// ends exactly once and soon, with the reason. Skipped without a GPU.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "device/cuda/faults_for_test.h"
#include "device/fault.h"
#include "engine/tiny_pair_for_test.h"

namespace volley::engine {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using cuda::Fault;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

EngineOptions on_gpu(EngineOptions options) {
  options.device = "cuda";
  return options;
}

class CudaFault : public TinyPairTest {
 protected:
  void SetUp() override {
    if (const auto device = resolve_device("cuda"); !device.ok()) GTEST_SKIP() << device.error().message;
  }
  void TearDown() override {
    cuda::inject_no_longer();
    worker_.reset();
  }

  // As in an engine on a GPU, a fault ends this worker.
  void start_worker() {
    cuda::inject_no_longer();
    WorkerParts parts = make_parts(on_gpu(tiny_pair()));
    parts.remake = {};
    keep_failures(parts);
    worker_ = std::make_unique<Worker>(std::move(parts));
  }

  // The request with masks ends before the others, because no step with masks is recorded.
  static std::vector<GenerateRequest> requests() {
    std::vector<GenerateRequest> requests = three_requests();
    requests[1].max_tokens = 2;
    return requests;
  }

  // Counts the calls that the requests make on a new worker without a fault. Requests that do not begin together make
  // more calls, so the least of a few runs counts.
  int64_t count_calls(Fault of) {
    int64_t fewest = kNever;
    for (int i = 0; i < 3; ++i) {
      start_worker();
      cuda::inject(of, kNever);
      std::vector<std::vector<TokenId>> tokens;
      for (const Finish& finish : run_all(tokens, requests())) EXPECT_EQ(finish.reason, FinishReason::kLength);
      fewest = std::min(fewest, cuda::calls());
      worker_.reset();
    }
    return fewest;
  }

  // Returns true if a request met the fault.
  bool run_with(Fault fault, int64_t n) {
    start_worker();
    const size_t before = failures().size();  // failures of earlier workers
    cuda::inject(fault, n);
    std::vector<std::vector<TokenId>> tokens;
    const std::vector<Finish> finishes = run_all(tokens, requests());
    const bool failed =
        std::ranges::any_of(finishes, [](const Finish& finish) { return finish.reason != FinishReason::kLength; });
    if (failed) {
      expect_failures(finishes, "The GPU failed");
      const Status refused = worker_->submit({99, request_of(3), nullptr, [](const Event&) {}, {}});
      EXPECT_TRUE(!refused.ok() && refused.error().code == ErrorCode::kUnavailable);
      expect_nothing_held();
    }
    worker_.reset();
    const size_t told = failures().size() - before;
    EXPECT_TRUE(told == 1 || (told == 0 && !failed)) << told;
    return failed;
  }
};

TEST_F(CudaFault, EveryCallOfARoundFailingOnceEndsEveryRequestOnceWithTheReason) {
  EXPECT_GT(count_calls(Fault::kTrap), 2) << "else no step was a recorded one";
  const int64_t calls = count_calls(Fault::kRefusedWork);
  EXPECT_GT(calls, 100) << "else this test shows nothing";
  RecordProperty("calls", std::to_string(calls));
  int64_t failed = 0;
  for (int64_t n = 1; n <= calls; ++n) {
    failed += run_with(Fault::kRefusedWork, n) ? 1 : 0;
    ASSERT_FALSE(HasFailure()) << "call " << n << ": " << cuda::met();
  }
  EXPECT_GT(failed, calls / 2);
}

TEST_F(CudaFault, ALostDeviceEndsEveryRequestOnceWithTheReason) {
  const int64_t calls = count_calls(Fault::kLostDevice);
  for (const int64_t n : {int64_t{1}, calls / 4, calls / 2}) {
    EXPECT_TRUE(run_with(Fault::kLostDevice, n)) << "call " << n << ": " << cuda::met();
  }
}

TEST_F(CudaFault, EveryAllocationOfARoundFailingOnceEndsAtMostWhoNeedsIt) {
  const auto start = [&](int64_t n) {
    start_worker();
    cuda::inject(Fault::kNoMemory, n);
  };
  expect_lack_of_memory_ends_who_needs_it(start, cuda::calls);
}

TEST_F(CudaFault, AnAllocationOnALostDeviceIsAFaultAndNoLackOfMemory) {
  const auto device = make_cuda_device(0);
  ASSERT_TRUE(device.ok());
  cuda::inject(Fault::kLostDevice, 1);
  EXPECT_THROW((*device)->synchronize(), DeviceFault);
  EXPECT_THROW((void)(*device)->allocate(64), DeviceFault);
  EXPECT_THROW((void)(*device)->allocate_host(64), DeviceFault);
}

// Starts an engine with one slot; more slots only record more of the same.
class CudaFaultAtTheStart : public CudaFault {
 protected:
  Result<std::unique_ptr<Replica>> start(Fault fault, int64_t n) {
    EngineOptions options = on_gpu(tiny_pair());
    options.max_num_seqs = 1;
    const auto models = resolve_models(options);
    VOLLEY_CHECK_MSG(models.ok(), models.ok() ? "" : models.error().message);
    cuda::inject(fault, n);
    auto made = [&]() -> Result<std::unique_ptr<Replica>> {
      try {
        return Replica::create(options, *models, {});
      } catch (const DeviceFault& thrown) {
        return Error{ErrorCode::kUnavailable, thrown.what()};
      }
    }();
    calls_ = cuda::calls();
    cuda::inject_no_longer();
    return made;
  }

  int64_t calls_ = 0;  // in the last start
};

TEST_F(CudaFaultAtTheStart, WithoutMemoryForAnyAllocationThereIsNoEngine) {
  ASSERT_TRUE(start(Fault::kNoMemory, kNever).ok());
  const int64_t allocations = calls_;
  EXPECT_GT(allocations, 20);
  for (int64_t n = 1; n <= allocations; ++n) {
    const auto made = start(Fault::kNoMemory, n);
    ASSERT_FALSE(made.ok()) << "allocation " << n;
    EXPECT_EQ(made.error().code, ErrorCode::kResourceExhausted) << made.error().message;
  }
}

TEST_F(CudaFaultAtTheStart, WhateverCallFailsThereIsNoEngine) {
  ASSERT_TRUE(start(Fault::kRefusedWork, kNever).ok());
  const int64_t calls = calls_;
  RecordProperty("calls", std::to_string(calls));
  for (int64_t n = 1; n <= calls; ++n) {
    const auto made = start(Fault::kRefusedWork, n);
    ASSERT_FALSE(made.ok()) << "call " << n << ": " << cuda::met();
    EXPECT_EQ(made.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(made.error().message.find("The GPU failed"), std::string::npos) << made.error().message;
  }
}

// A kernel's fault stays with its process, so each test runs this program again, with kRealFault as its first argument.
constexpr char kRealFault[] = "--real-fault";
constexpr int kEndedAsPromised = 4;
constexpr double kSoon = 5;  // seconds; the default step timeout is included

struct RealFault {
  const char* name;
  Fault fault;
  const char* words;  // words of the failure
};
constexpr std::array<RealFault, 3> kRealFaults = {{{"IllegalAccess", Fault::kIllegalAccess, "The GPU failed"},
                                                   {"Trap", Fault::kTrap, "The GPU failed"},
                                                   {"Hang", Fault::kHang, "--step-timeout"}}};

class RealCudaFault : public CudaFault, public ::testing::WithParamInterface<RealFault> {
 public:
  static EngineOptions options() {
    EngineOptions options = on_gpu(tiny_pair());
    options.grammar_mask_timeout_ms = EngineOptions().grammar_mask_timeout_ms;  // counts towards the step timeout
    return options;
  }
  static GenerateRequest request() {
    GenerateRequest request = request_of(12);
    request.max_tokens = 80;
    // commits one token a step, so that the request stays open
    request.simulate_acceptance = SimulatedAcceptance{{{0, 0.0}}};
    return request;
  }
};

// Prints the broken promise, and ends.
[[noreturn]] void broken(const std::string& what) {
  std::fprintf(stderr, "Broken: %s\n", what.c_str());
  std::_Exit(1);
}

// A kernel goes wrong while three requests decode. Like volley serve, the process ends with a sentence and status 4.
int meet_real_fault(const RealFault& real) {
  std::promise<std::string> failed;
  EngineOptions options = RealCudaFault::options();
  options.on_device_failure = [&failed](const std::string& failure) { failed.set_value(failure); };
  auto made = Engine::create(options);
  if (!made.ok()) broken(made.error().message);
  std::unique_ptr<Engine> engine = std::move(*made);
  constexpr size_t kRequests = 3;
  std::array<std::promise<Finish>, kRequests> ends;
  std::array<Clock::time_point, kRequests> ended_at;
  Clock::time_point injected;
  cuda::inject(real.fault, kNever);
  for (size_t i = 0; i < kRequests; ++i) {
    // The last request's first token comes when all are open and decode.
    const auto sink = [&, i, first = true](const Event& event) mutable {
      if (i + 1 == kRequests && std::exchange(first, false) && !event.finish) {
        injected = Clock::now();
        cuda::inject(real.fault, 4);
      }
      if (!event.finish) return;
      ended_at[i] = Clock::now();
      ends[i].set_value(*event.finish);  // throws if it had ended already
    };
    if (const auto id = engine->submit(RealCudaFault::request(), sink); !id.ok()) broken(id.error().message);
  }
  for (size_t i = 0; i < kRequests; ++i) {
    auto end = ends[i].get_future();
    if (end.wait_for(60s) != std::future_status::ready) broken("a request hangs");
    const Finish finish = end.get();
    if (finish.reason != FinishReason::kError || !finish.error) broken("a request ended without an error");
    if (finish.error->code != ErrorCode::kUnavailable) broken(finish.error->message);
    if (finish.error->message.find(real.words) == std::string::npos) broken(finish.error->message);
    const double took = std::chrono::duration<double>(ended_at[i] - injected).count();
    if (took > kSoon) broken("a request ended after " + std::to_string(took) + " s");
  }
  const auto late = engine->submit(RealCudaFault::request(), [](const Event&) {});
  if (late.ok() || late.error().code != ErrorCode::kUnavailable) broken("a request was taken after the failure");
  auto failure = failed.get_future();
  if (failure.wait_for(5s) != std::future_status::ready) broken("on_device_failure was not called");
  std::fprintf(stderr, "%s\n", failure.get().c_str());
  if (real.fault == Fault::kHang) std::_Exit(kEndedAsPromised);  // the destructor would wait for the device
  engine.reset();
  return kEndedAsPromised;
}

struct Ended {
  int status = 0;  // as from waitpid()
  double seconds = 0;
  std::string said;
};

// Runs this program with a real fault, and kills it when it takes too long.
Ended run_child(const char* argument) {
  constexpr double kTooLong = 120;
  Ended ended;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ended;
  const Clock::time_point begin = Clock::now();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::execl("/proc/self/exe", "fault_cuda_test", kRealFault, argument, static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(ends[1]);
  bool killed = false;
  while (::waitpid(pid, &ended.status, WNOHANG) == 0) {
    ended.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!killed && ended.seconds > kTooLong) killed = ::kill(pid, SIGKILL) == 0;
    std::this_thread::sleep_for(10ms);
  }
  std::array<char, 4096> piece;
  for (ssize_t n = 0; (n = ::read(ends[0], piece.data(), piece.size())) > 0;) {
    ended.said.append(piece.data(), static_cast<size_t>(n));
  }
  ::close(ends[0]);
  return ended;
}

TEST_P(RealCudaFault, EndsRequestsSoonAndTheProcessWithASentence) {
  const Ended ended = run_child(GetParam().name);
  ASSERT_TRUE(WIFEXITED(ended.status)) << "signal " << WTERMSIG(ended.status) << ": " << ended.said;
  EXPECT_EQ(WEXITSTATUS(ended.status), kEndedAsPromised) << ended.said;
  EXPECT_NE(ended.said.find(GetParam().words), std::string::npos) << ended.said;
  RecordProperty("seconds", std::to_string(ended.seconds));
}

INSTANTIATE_TEST_SUITE_P(Kernels, RealCudaFault, ::testing::ValuesIn(kRealFaults),
                         [](const auto& info) { return std::string(info.param.name); });

int main_of_child(const std::string& name) {
  for (const RealFault& real : kRealFaults) {
    if (name == real.name) return meet_real_fault(real);
  }
  broken("there is no fault " + name);
}

}  // namespace
}  // namespace volley::engine

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == volley::engine::kRealFault) return volley::engine::main_of_child(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
