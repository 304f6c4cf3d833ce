// Protects: an engine whose device is in another process gives the same tokens as one with its own device, and a single
// failure of that process (killed, stopped or hung) changes no token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <sstream>
#include <thread>

#include "harness.h"
#include "request_kinds.h"

namespace volley::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

struct Case {
  const char* name;
  int gpus;
  void (*set)(EngineOptions&);
};
void PrintTo(const Case& which, std::ostream* out) {
  *out << which.name;
}
const Case kCases[] = {
    {"Pocket", 1, [](EngineOptions&) {}},
    {"Plain", 1, [](EngineOptions& o) { o.speculation = Speculation::kOff, o.draft_dir.clear(); }},
    {"TwoRanks", 2, [](EngineOptions& o) { o.tensor_parallel_size = 2; }},
    {"TwoReplicas", 2, [](EngineOptions& o) { o.data_parallel_size = 2; }},
    {"Measured", 1,
     [](EngineOptions& o) { o.verify.kind = VerifyPolicy::Kind::kAuto, o.cost_cache_dir.clear(), o.profile = true; }},
    {"Quantised", 1,
     [](EngineOptions& o) { o.quantization = Quantization::kFp8, o.kv_cache_dtype = KvCacheType::kFp8; }},
    {"FewPages", 1, [](EngineOptions& o) { o.max_model_len = 512, o.kv_pages = 48; }},
};

EngineOptions options_of(const Case& which) {
  EngineOptions options = pocket_options();
  options.threads = 2;
  options.max_num_seqs = 4;
  options.kv_pages = 400;
  options.page_size = kTestDevice == "cpu" ? 16 : 64;
  which.set(options);
  return options;
}

// A file: while it is there a process that has been started does nothing.
constexpr const char* kHoldVariable = "VOLLEY_TEST_HOLD";

// This program is the other process, too: its last word is a descriptor.
TEST(Process, DISABLED_Computes) {
  const char* held_by = std::getenv(kHoldVariable);
  while (held_by != nullptr && std::filesystem::exists(held_by)) std::this_thread::sleep_for(10ms);
  sigset_t blocked;  // what ends both must not end this one first, before it can say so
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  if (!sigismember(&blocked, SIGTERM) || !sigismember(&blocked, SIGINT)) std::_Exit(2);
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string word;
  for (std::string next; std::getline(file, next, '\0');) word = next;
  const Status end = Engine::compute(std::stoi(word));
  std::_Exit(end.ok() ? 0 : 1);  // it is no test that anybody wants to read of
}

EngineOptions apart(const Case& which) {
  EngineOptions options = options_of(which);
  options.restart_on_device_error = true;
  options.device_command = {"/proc/self/exe", "--gtest_brief=1", "--gtest_filter=Process.*",
                            "--gtest_also_run_disabled_tests"};
  return options;
}

std::vector<pid_t> children() {
  std::vector<pid_t> all;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "children");
    for (pid_t pid = 0; file >> pid;) all.push_back(pid);
  }
  return all;
}

// Whether it comes true within a minute.
template <typename Condition>
bool eventually(const Condition& condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

class DeviceProcesses : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!has_room_for(GetParam().gpus)) GTEST_SKIP() << "needs " << GetParam().gpus << " GPUs";
  }
};

TEST_P(DeviceProcesses, GiveTheTokensOfOneProcess) {
  std::vector<Output> expected;
  EngineInfo here;
  {  // it goes before the other one starts, which takes its GPU
    const auto one = make_engine(options_of(GetParam()));
    expected = run_all(*one, all_kinds(*one), 4);
    here = one->info();
  }
  {
    const auto other = make_engine(apart(GetParam()));
    EXPECT_EQ(std::ssize(children()), other->info().data_parallel_size);
    const EngineInfo& there = other->info();
    if (here.data_parallel_size == 1) EXPECT_EQ(there.weight_bytes, here.weight_bytes);  // else some are shared here
    EXPECT_EQ(there.kv_pages, here.kv_pages);
    EXPECT_EQ(there.instruction_set, here.instruction_set);
    EXPECT_EQ(there.threads, here.threads);
    for (int run = 0; run < 2; ++run) {  // the second finds prefixes in the cache
      const auto outputs = run_all(*other, all_kinds(*other), 4);
      if (here.data_parallel_size == 1 && GetParam().name != std::string("Measured")) {
        expect_the_same(outputs, expected, run == 0 ? "first" : "second");
      }
      for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i].tokens, expected[i].tokens) << i;
    }
    EXPECT_GT(other->stats().device_s, 0);
    EXPECT_EQ(other->stats().device_restarts, 0);
  }
  EXPECT_TRUE(children().empty());
}

// Kills, or stops for good, one of the processes at the n-th event.
TEST_P(DeviceProcesses, WhoseEndShowsInNoToken) {
  std::vector<Output> expected;
  {
    const auto one = make_engine(options_of(GetParam()));
    expected = run_all(*one, all_kinds(*one), 1);
  }
  struct End {
    int signal, at;
  };
  std::vector<End> ends = {{SIGKILL, 1}, {SIGKILL, 25}, {SIGSTOP, 10}};
  if (kSanitized) ends = {{SIGKILL, 10}};
  for (const End& end : ends) {
    EngineOptions options = apart(GetParam());
    if (end.signal == SIGSTOP) options.step_timeout_s = kTestDevice == "cpu" ? 2 : 4;
    std::vector<std::string> warnings;
    options.on_warning = [&](const std::string& warning) { warnings.push_back(warning); };
    const auto engine = make_engine(options);
    const pid_t victim = children().front();
    std::atomic<int> events{0};
    const auto outputs = run_all(*engine, all_kinds(*engine), 4, [&](size_t, const Event&) {
      if (++events == end.at) ::kill(victim, end.signal);
    });
    ASSERT_EQ(outputs.size(), expected.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      ASSERT_FALSE(outputs[i].finish.error.has_value()) << outputs[i].finish.error->message;
      EXPECT_EQ(outputs[i].terminal_events, 1);
      EXPECT_EQ(outputs[i].tokens, expected[i].tokens) << i;
      EXPECT_EQ(outputs[i].text, expected[i].text) << i;
      ASSERT_EQ(outputs[i].logprobs.size(), expected[i].logprobs.size());
      for (size_t j = 0; j < outputs[i].logprobs.size(); ++j) {
        EXPECT_EQ(outputs[i].logprobs[j].chosen.logprob, expected[i].logprobs[j].chosen.logprob);
      }
    }
    EXPECT_TRUE(eventually([&] { return engine->stats().device_restarts == 1; }));
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], HasSubstr(end.signal == SIGSTOP ? "--step-timeout" : "killed by signal 9"));
    EXPECT_THAT(warnings[0], HasSubstr("requests go on"));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceProcesses, ::testing::ValuesIn(kCases),
                         [](const auto& which) { return which.param.name; });

// No request runs, and the next one must not be the first to detect the failure.
TEST(DeviceProcess, ThatIsKilledIsMissedAtOnce) {
  const auto engine = make_engine(apart(kCases[0]));
  const pid_t old = children().front();
  ::kill(old, SIGKILL);
  ASSERT_TRUE(eventually([&] { return engine->stats().device_restarts == 1; }));
  EXPECT_EQ(engine->stats().devices_restarting, 0);
  ASSERT_EQ(children().size(), 1u);
  EXPECT_NE(children().front(), old);
  const auto outputs = run_all(*engine, all_kinds(*engine), 4);
  for (const Output& output : outputs) EXPECT_FALSE(output.finish.error.has_value());
}

TEST(DeviceProcess, ThatEndsTwiceWithinAMinuteEndsTheEngine) {
  std::promise<std::string> failed;
  EngineOptions options = apart(kCases[0]);
  options.on_device_failure = [&failed](const std::string& failure) { failed.set_value(failure); };
  const auto engine = make_engine(options);
  ::kill(children().front(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return engine->stats().device_restarts == 1; }));
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(chat_request(*engine, "Tell me a story.", 2000));
    requests.back().ignore_eos = true;
  }
  std::atomic<bool> killed{false};
  const auto outputs = run_all(*engine, std::move(requests), 6, [&](size_t, const Event& event) {
    if (!event.tokens.empty() && !killed.exchange(true)) ::kill(children().front(), SIGKILL);
  });
  for (const Output& output : outputs) {
    ASSERT_TRUE(output.finish.error.has_value());
    EXPECT_EQ(output.finish.error->code, ErrorCode::kUnavailable);
  }
  EXPECT_THAT(failed.get_future().get(), HasSubstr("killed by signal 9"));
}

// Loading takes minutes: meanwhile requests end as ever, and so does the engine.
TEST(DeviceProcess, ThatIsStartedAgainKeepsNobodyFromEnding) {
  const std::string file =
      (std::filesystem::temp_directory_path() / ("volley_hold_" + std::to_string(::getpid()))).string();
  ::setenv(kHoldVariable, file.c_str(), 1);
  auto engine = make_engine(apart(kCases[0]));
  std::ofstream(file).put('\n');
  const pid_t old = children().front();
  ::kill(old, SIGKILL);
  ASSERT_TRUE(eventually([&] { return !children().empty() && children().front() != old; }));
  const auto submit = [&](double timeout_s, std::promise<FinishReason>& ended) {
    GenerateRequest request = chat_request(*engine, "Tell me a story.", 2000);
    request.timeout_s = timeout_s;
    const auto id = engine->submit(std::move(request), [&ended](const Event& event) {
      if (event.finish) ended.set_value(event.finish->reason);
    });
    EXPECT_TRUE(id.ok());
    return id.value();
  };
  EXPECT_EQ(engine->stats().devices_restarting, 1);
  std::promise<FinishReason> late, cancelled, left;
  submit(0.3, late);
  engine->cancel(submit(0, cancelled));
  EXPECT_EQ(late.get_future().get(), FinishReason::kTimeout);
  EXPECT_EQ(cancelled.get_future().get(), FinishReason::kCancelled);
  submit(0, left);
  EXPECT_EQ(engine->stats().device_restarts, 0);
  engine.reset();
  EXPECT_EQ(left.get_future().get(), FinishReason::kCancelled);
  EXPECT_TRUE(children().empty());
  ::unsetenv(kHoldVariable);
  std::filesystem::remove(file);
}

// Stopped for good, it neither reads nor reports anything: its requests must not wait for ever.
TEST(DeviceProcess, ThatHangsWhileItLoadsIsStartedAgain) {
  const std::string file =
      (std::filesystem::temp_directory_path() / ("volley_hang_" + std::to_string(::getpid()))).string();
  ::setenv(kHoldVariable, file.c_str(), 1);
  std::promise<void> hangs;
  EngineOptions options = apart(kCases[0]);
  options.on_warning = [&hangs](const std::string& warning) {
    if (warning.find("nothing for 60 s while it loads") != std::string::npos) hangs.set_value();
  };
  const auto engine = make_engine(options);
  std::ofstream(file).put('\n');
  const pid_t old = children().front();
  ::kill(old, SIGKILL);
  ASSERT_TRUE(eventually([&] { return !children().empty() && children().front() != old; }));
  const pid_t stopped = children().front();
  ::kill(stopped, SIGSTOP);
  std::promise<Finish> ended;
  ASSERT_TRUE(engine
                  ->submit(chat_request(*engine, "Tell me a story.", 20),
                           [&ended](const Event& event) {
                             if (event.finish) ended.set_value(*event.finish);
                           })
                  .ok());
  hangs.get_future().get();
  std::filesystem::remove(file);
  EXPECT_FALSE(ended.get_future().get().error.has_value());
  ASSERT_EQ(children().size(), 1u);
  EXPECT_NE(children().front(), stopped);
  EXPECT_EQ(engine->stats().device_restarts, 1);
  EXPECT_EQ(engine->stats().devices_restarting, 0);
  ::unsetenv(kHoldVariable);
}

// Its requests would go on with another model's tokens.
TEST(DeviceProcess, DoesNotGoOnWithOtherFiles) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("volley_device_process_" + std::to_string(::getpid()));
  fs::remove_all(folder);
  fs::copy(pocket_options().model_dir, folder);
  std::promise<std::string> failed;
  EngineOptions options = apart(kCases[1]);
  options.model_dir = folder;
  options.on_device_failure = [&failed](const std::string& failure) { failed.set_value(failure); };
  {
    const auto engine = make_engine(options);
    {
      const fs::path old = folder / "config.json", made = folder / "config.new";
      fs::copy(old, made);
      std::ofstream(made, std::ios::app) << "\n";
      fs::rename(made, old);
    }
    ::kill(children().front(), SIGKILL);
    const std::string failure = failed.get_future().get();
    EXPECT_THAT(failure, HasSubstr("Starting over failed"));
    EXPECT_THAT(failure, HasSubstr("the files of --model"));
  }
  fs::remove_all(folder);
}

TEST(DeviceProcess, ThatCannotStartSaysWhy) {
  const auto refusal = [](const EngineOptions& options) {
    const auto engine = Engine::create(options);
    return engine.ok() ? "" : engine.error().message;
  };
  EngineOptions options = apart(kCases[0]);
  options.device_command.clear();
  EXPECT_THAT(refusal(options), HasSubstr("device_command"));
  options.device_command = {"/no/such/program"};
  EXPECT_THAT(refusal(options), HasSubstr("/no/such/program (No such file"));
  options.device_command = {"/bin/true"};
  EXPECT_THAT(refusal(options), HasSubstr("it ended with status 0"));
  EXPECT_TRUE(children().empty());
}

}  // namespace
}  // namespace volley::testing
