// Kills the program 20 times at random moments, then lets it end: each line has exactly one result.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

namespace volley::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr int kKills = 20;

class BatchKillTest : public testing::Test {
 protected:
  BatchKillTest() { fs::create_directories(folder_); }
  ~BatchKillTest() override { fs::remove_all(folder_); }

  pid_t start() const {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    const int log = open((folder_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (log < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0) _exit(126);
    execl(VOLLEY_PROGRAM, "volley", "batch", "--input", input_.c_str(), "--output", output_.c_str(), "--concurrency",
          "4", nullptr);
    _exit(127);
  }
  // Returns the exit status; -1 if a signal ended the process.
  static int wait_for(pid_t pid) {
    int raw = 0;
    EXPECT_EQ(waitpid(pid, &raw, 0), pid);
    return WIFEXITED(raw) ? WEXITSTATUS(raw) : -1;
  }
  std::string read(const fs::path& path) const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int64_t results() const {
    const std::string text = read(output_);
    return std::count(text.begin(), text.end(), '\n');
  }

  const fs::path folder_ = fs::temp_directory_path() / ("volley_batch_kill_" + std::to_string(getpid()));
  const std::string input_ = (folder_ / "in.jsonl").string(), output_ = (folder_ / "out.jsonl").string();
};

TEST_F(BatchKillTest, EachLineHasOneResult) {
  constexpr int kLines = 800;
  {
    std::ofstream input(input_);
    for (int i = 0; i < kLines; ++i) {
      const Json body = {{"prompt", "Count from " + std::to_string(i)}, {"max_tokens", 24}, {"ignore_eos", true}};
      const Json line = {
          {"custom_id", "r" + std::to_string(i)}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}};
      input << line.dump() << '\n';
    }
  }
  std::mt19937 random(1);  // a fixed seed makes failures repeatable
  int64_t grown = 0;       // kills that left a longer output than before
  for (int kills = 0; kills < kKills; ++kills) {
    const int64_t before = results();
    const pid_t pid = start();
    // Waits for the first new line, so that kills fall into the writing even in a slow build.
    for (int i = 0; i < 60'000 && results() <= before; ++i) {
      ASSERT_EQ(waitpid(pid, nullptr, WNOHANG), 0) << "ended by itself:\n" << read(folder_ / "log");
      std::this_thread::sleep_for(milliseconds(2));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    kill(pid, SIGKILL);
    wait_for(pid);
    grown += results() > before;
  }
  EXPECT_EQ(grown, kKills);
  EXPECT_LT(results(), kLines) << "nothing was left to do before the last kill";
  ASSERT_EQ(wait_for(start()), 0) << read(folder_ / "log");

  std::set<std::string> ids;
  std::ifstream output(output_);
  int lines = 0;
  for (std::string line; std::getline(output, line); ++lines) {
    const Json json = Json::parse(line);
    EXPECT_EQ(json["response"]["status_code"], 200) << line;
    EXPECT_EQ(json["response"]["body"]["usage"]["completion_tokens"], 24) << line;
    ids.insert(json["custom_id"]);
  }
  EXPECT_EQ(lines, kLines);
  EXPECT_EQ(ids.size(), static_cast<size_t>(kLines));
}

}  // namespace
}  // namespace volley::apps
