// Protects: a process that should load models but is idle is given up, and one that reads is not.
#include "engine/remote/device_process.h"

#include <gtest/gtest.h>

#include <chrono>

#include "engine/run/step_timeout.h"
#include "engine/tiny_pair_for_test.h"

namespace volley::engine {
namespace {

using namespace std::chrono_literals;

class ProcessThatLoads : public TinyPairTest {
 protected:
  // Runs `script` in a shell instead of the program. attend() returns true for `wanted`.
  static Error error_of(const std::string& script, std::chrono::milliseconds most_silence,
                        std::chrono::milliseconds wanted = 1min) {
    EngineOptions options = tiny_pair();
    options.restart_on_device_error = true;
    options.device_command = {"/bin/sh", "-c", script};
    const Result<ResolvedModels> models = resolve_models(options);
    EXPECT_TRUE(models.ok());
    const auto begin = std::chrono::steady_clock::now();
    const std::function<bool()> attend = [&] { return std::chrono::steady_clock::now() < begin + wanted; };
    const auto process = DeviceProcess::start(options, *models, {}, {{}, attend, most_silence});
    EXPECT_FALSE(process.ok());
    return process.ok() ? Error{} : process.error();
  }
};

TEST_F(ProcessThatLoads, IsGivenUpWhenItDoesNothing) {
  for (const char* script : {"exec sleep 600", "kill -STOP $$; exec sleep 600", "while :; do :; done",
                             "trap '' TERM INT HUP; exec sleep 600"}) {
    const Error error = error_of(script, 1s);
    EXPECT_EQ(error.code, ErrorCode::kUnavailable);
    EXPECT_NE(error.message.find("nothing for 1 s while it loads"), std::string::npos) << script << error.message;
    EXPECT_NE(error.message.find("--step-timeout"), std::string::npos) << error.message;
  }
}

// Reading may take any time.
TEST_F(ProcessThatLoads, IsLeftAloneWhileItReads) {
  const Error error = error_of("exec dd if=/dev/zero of=/dev/null bs=512 2>/dev/null", 500ms, 3s);
  EXPECT_EQ(error.code, ErrorCode::kCancelled) << error.message;
  const Error slow = error_of("while :; do head -c 100 /dev/zero >/dev/null; sleep 0.1; done", 1s, 3s);
  EXPECT_EQ(slow.code, ErrorCode::kCancelled) << slow.message;
  const Error patient = error_of("exec sleep 600", 0s, 2s);
  EXPECT_EQ(patient.code, ErrorCode::kCancelled) << patient.message;
}

TEST_F(ProcessThatLoads, ThatEndsSaysHow) {
  EXPECT_NE(error_of("exit 3", 1min).message.find("it ended with status 3"), std::string::npos);
  EXPECT_NE(error_of("kill -KILL $$", 1min).message.find("killed by signal 9"), std::string::npos);
}

TEST(LoadSilence, FollowsTheStepTimeoutWhereThatIsMore) {
  EngineOptions options;
  EXPECT_EQ(load_silence(options, true), 60s);
  EXPECT_EQ(load_silence(options, false), 300s) << "a driver compiles kernels at the first start";
  options.step_timeout_s = 2;
  EXPECT_EQ(load_silence(options, true), 60s);
  options.step_timeout_s = 900;
  EXPECT_EQ(load_silence(options, true), 900s);
  options.step_timeout_s = 0;
  EXPECT_EQ(load_silence(options, true), 0s) << "no bound";
}

}  // namespace
}  // namespace volley::engine
