// Protects a command whose device fails or hangs: the process ends with the reason, and keeps the results so far.
#include "apps/device_failure.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "apps/exit_codes.h"
#include "apps/process_for_test.h"
#include "base/sanitized.h"
#include "base/temp_folder_for_test.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::ExitedWithCode;

constexpr const char* kFailure = "The device hangs.";

TEST(DeviceFailure, EndsTheProcessWhoeverIsFirst) {
  Console console;
  EXPECT_EXIT(
      {
        DeviceFailure device(&console);
        device(kFailure);
        device.leave();
      },
      ExitedWithCode(kExitDevice), kFailure);
  EXPECT_EXIT(
      {
        DeviceFailure device(&console);
        device.leave();
        device(kFailure);
      },
      ExitedWithCode(kExitDevice), kFailure);
}

TEST(DeviceFailure, IsHandledOnlyBeforeTheEnd) {
  Console console;
  std::string handled;
  DeviceFailure device(&console);
  device.set_handler([&handled](const std::string& failure) { handled = failure; });
  EXPECT_FALSE(device.happened());
  device(kFailure);
  EXPECT_EQ(handled, kFailure);
  EXPECT_TRUE(device.happened());
  DeviceFailure none(&console);
  none.leave();  // returns
}

// The program with a device that fails at SIGUSR1 or hangs at SIGUSR2.
class FaultyProgram : public testing::TestWithParam<int> {
 protected:
  ~FaultyProgram() override {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  void start(std::vector<std::string> words, const char* program = VOLLEY_FAULTY_PROGRAM) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
    redirect(STDOUT_FILENO, path("out"), O_WRONLY | O_CREAT | O_TRUNC);
    redirect(STDERR_FILENO, path("err"), O_WRONLY | O_CREAT | O_TRUNC);
    execute(program, words);
  }
  // Breaks the device once the file has content.
  void break_device_after(const std::string& file) const {
    for (int i = 0; i < 300'000 && read(file).empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_FALSE(read(file).empty()) << read("err");
    ::kill(pid_, GetParam());
  }
  int status() { return status_of(pid_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string last_error() const {
    std::istringstream lines(read("err"));
    std::string last;
    for (std::string line; std::getline(lines, line);) last = line;
    return last;
  }
  void expect_the_failure_is_said() const {
    const char* const said = GetParam() == SIGUSR1 ? "the test says so" : "--step-timeout";
    EXPECT_NE(last_error().find(said), std::string::npos) << read("err");
  }

  const TempFolder folder_;
  const std::vector<std::string> engine_ = {"--threads", "2", "--step-timeout", GetParam() == SIGUSR1 ? "600" : "3"};
  pid_t pid_ = -1;

 private:
  static void redirect(int descriptor, const std::string& path, int flags) {
    const int opened = ::open(path.c_str(), flags, 0600);
    if (opened < 0 || ::dup2(opened, descriptor) < 0) ::_exit(126);
  }
};

std::vector<std::string> joined(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_P(FaultyProgram, GenerateEndsWithTheFailure) {
  start(joined({"generate", "--prompt", "Once", "--max-tokens", "1500", "--ignore-eos", "--spec", "off"}, engine_));
  break_device_after("out");
  EXPECT_EQ(status(), kExitDevice);
  expect_the_failure_is_said();
}

// Lines without an answer stay open for the same command.
TEST_P(FaultyProgram, BatchLeavesTheRestToTheSameCommand) {
  constexpr int kLines = 60;
  {
    std::ofstream input(path("in"));
    for (int i = 0; i < kLines; ++i) {
      const Json body = {{"prompt", "Count from " + std::to_string(i)}, {"max_tokens", 40}, {"ignore_eos", true}};
      const Json line = {
          {"custom_id", std::to_string(i)}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}};
      input << line.dump() << '\n';
    }
  }
  const std::vector<std::string> command = {"batch",         "--input", path("in"), "--output", path("done"),
                                            "--concurrency", "4",       "--verify", "full"};
  start(joined(command, engine_));
  break_device_after("done");
  EXPECT_EQ(status(), kExitDevice);
  expect_the_failure_is_said();
  const auto results = [this] {
    std::vector<Json> results;
    std::istringstream lines(read("done"));
    for (std::string line; std::getline(lines, line);) results.push_back(Json::parse(line));
    return results;
  };
  EXPECT_LT(results().size(), static_cast<size_t>(kLines)) << "else this test shows nothing";
  for (const Json& result : results()) EXPECT_EQ(result["response"]["status_code"], 200) << result;
  start(command, VOLLEY_PROGRAM);
  EXPECT_EQ(status(), kExitOk) << read("err");
  EXPECT_EQ(results().size(), static_cast<size_t>(kLines));
  for (const Json& result : results()) EXPECT_EQ(result["response"]["status_code"], 200) << result;
}

INSTANTIATE_TEST_SUITE_P(Device, FaultyProgram, testing::Values(SIGUSR1, SIGUSR2),
                         [](const auto& info) { return std::string(info.param == SIGUSR1 ? "Fails" : "Hangs"); });

class ProgramWithoutMemory : public FaultyProgram {};

// The allocation fails on an engine's thread.
TEST_P(ProgramWithoutMemory, EndsWithASentence) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has its own operator new";
  start(joined({"generate", "--prompt", "Once", "--max-tokens", "1500", "--ignore-eos", "--spec", "off"}, engine_));
  break_device_after("out");
  EXPECT_EQ(status(), kExitDevice);
  EXPECT_EQ(last_error(), "volley: The process has no memory left: give it more.");
}

INSTANTIATE_TEST_SUITE_P(Host, ProgramWithoutMemory, testing::Values(SIGALRM));

}  // namespace
}  // namespace volley::apps
