// Protects `volley serve` as a process: it survives its surroundings, and a signal always ends it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "apps/process_for_test.h"
#include "serve/testing/client.h"
#include "serve/testing/server_helpers.h"

namespace volley::serve {
namespace {

// Starts `volley serve` on a free port, with pipes as stdout and stderr. Only a test that asks reads stderr. closed:
// descriptors missing at the start.
class ServeProcess {
 public:
  explicit ServeProcess(std::vector<std::string> options = {}, const char* program = VOLLEY_PROGRAM,
                        const std::vector<int>& closed = {}) {
    std::array<int, 2> out{}, err{};
    EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(err.data(), O_CLOEXEC), 0);
    options.insert(options.begin(), {"serve", "--port", "0"});
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], STDOUT_FILENO);
      ::dup2(err[1], STDERR_FILENO);
      for (const int descriptor : closed) ::close(descriptor);
      apps::execute(program, options);
    }
    ::close(out[1]);
    ::close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~ServeProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(out_);
    ::close(err_);
  }

  // Waits until it takes requests; 0: it ended before.
  uint16_t port() const {
    std::string line;
    for (char c = 0; c != '\n' && ::read(out_, &c, 1) == 1;) line += c;
    std::smatch found;
    return std::regex_search(line, found, std::regex("http://[^ ]*:([0-9]+)"))
               ? static_cast<uint16_t>(std::stoi(found[1]))
               : 0;
  }
  void signal(int number) const { ::kill(pid_, number); }
  // The device process that it started; -1: none.
  pid_t child() const {
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/task")) {
      std::ifstream children(task.path() / "children");
      if (pid_t pid = 0; children >> pid) return pid;
    }
    return -1;
  }
  // All of stderr, until the process has ended.
  std::string errors() const {
    std::string text;
    std::array<char, 4096> piece;
    for (ssize_t n = 0; (n = ::read(err_, piece.data(), piece.size())) > 0;)
      text.append(piece.data(), static_cast<size_t>(n));
    return text;
  }
  int status() { return apps::status_of(pid_); }
  bool error_pipe_is_full() const {
    // Only a writer's end of the pipe tells whether it is full.
    const int writer = ::open(("/proc/self/fd/" + std::to_string(err_)).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    pollfd writable{writer, POLLOUT, 0};
    const bool full = ::poll(&writable, 1, 0) == 0;
    ::close(writer);
    return full;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
};

// 0: no such process.
char state_of(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  stat.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  char state = 0;
  stat >> state;
  return state;
}

// The process that adopts an orphan may never reap it.
bool is_gone(pid_t pid) {
  const char state = state_of(pid);
  return state == 0 || state == 'Z' || state == 'X';
}

// Kills the device process, and stops the next one before it is ready.
pid_t restarted_and_stopped(const ServeProcess& process) {
  const pid_t old = process.child();
  ::kill(old, SIGKILL);
  pid_t next = -1;
  // May come before the new process has done anything.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (((next = process.child()) <= 0 || next == old) && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_TRUE(next > 0 && next != old);
  ::kill(next, SIGSTOP);
  // Its parent puts it into a group of its own right after the fork.
  EXPECT_TRUE(eventually([&] { return ::getpgid(next) == next; }));
  // The kernel wakes only stopped processes; one that stops later would stay stopped.
  EXPECT_TRUE(eventually([&] { return state_of(next) == 'T'; }));
  return next;
}

// The reader of the log may hang. Requests must still be answered, and SIGTERM must end the process.
TEST(ServeProcess, ALogThatNobodyReadsHangsNothing) {
  ServeProcess process;
  const uint16_t port = process.port();
  ASSERT_NE(port, 0);
  Client client(port);
  for (int i = 0; i < 2000; ++i) {
    const auto response = client.get("/v1/models");
    ASSERT_EQ(response.status, 200);
  }
  EXPECT_TRUE(eventually([&] { return process.error_pipe_is_full(); })) << "else this test shows nothing";
  EXPECT_EQ(client.post(kPath, R"({"prompt": "Once", "max_tokens": 4})").status, 200);
  process.signal(SIGTERM);
  EXPECT_EQ(process.status(), 0);
}

// The first opened file must not take a standard stream's number.
TEST(ServeProcess, StartsWithoutStandardStreams) {
  ServeProcess process({"--log-level", "debug"}, VOLLEY_PROGRAM, {STDIN_FILENO, STDERR_FILENO});
  const uint16_t port = process.port();
  ASSERT_NE(port, 0);
  for (int i = 0; i < 20; ++i) {
    Client client(port);
    const auto answer = client.post(kPath, R"({"prompt": "Once", "max_tokens": 4})");
    ASSERT_EQ(answer.status, 200);
  }
  process.signal(SIGTERM);
  EXPECT_EQ(process.status(), 0);
}

// Runs for about a second; in the faulty program until it gets a signal.
constexpr const char* kLong =
    R"({"prompt": "Once", "max_tokens": 1500, "ignore_eos": true, "stream": true, "volley": {"speculation": false}})";

// Clients and the process's parent learn of the failure.
TEST(ServeProcess, ADeviceThatFailsOrHangsEndsIt) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    ServeProcess process({"--threads", "2", "--step-timeout", signal == SIGUSR1 ? "600" : "5"}, VOLLEY_FAULTY_PROGRAM);
    const auto running = open_stream(process.port(), "data: ", kLong);
    process.signal(signal);
    const auto answer = running->receive();
    const auto events = stream_events(answer.body);
    ASSERT_GE(events.size(), 2u);
    EXPECT_NE(events[events.size() - 2].find("\"unavailable\""), std::string::npos) << events[events.size() - 2];
    EXPECT_EQ(events.back(), "[DONE]");
    const std::string errors = process.errors();
    EXPECT_NE(errors.find(signal == SIGUSR1 ? "the test says so" : "--step-timeout"), std::string::npos) << errors;
    EXPECT_EQ(process.status(), 4);
  }
}

// No client waits any more, but the process must still end.
TEST(ServeProcess, ADeviceThatHangsWhileItEndsIsSaid) {
  ServeProcess process({"--threads", "2", "--step-timeout", "6", "--drain-timeout", "1"}, VOLLEY_FAULTY_PROGRAM);
  const auto running = open_stream(process.port(), "data: ", kLong);
  process.signal(SIGUSR2);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  process.signal(SIGTERM);
  const std::string errors = process.errors();
  EXPECT_EQ(process.status(), 4);
  EXPECT_NE(errors.find("--step-timeout"), std::string::npos) << errors;
}

// The stream has the same text as without the fault. The options' sources may be gone by then.
TEST(ServeProcess, ADeviceThatFailsIsMadeAnewWhereThatIsWanted) {
  const auto file = std::filesystem::temp_directory_path() / ("volley_restart_" + std::to_string(::getpid()) + ".yaml");
  for (const int signal : {SIGUSR1, SIGUSR2, SIGKILL}) {
    std::ofstream(file) << "threads: 2\nstep-timeout: 2\nrestart-on-device-error: true\n";
    ServeProcess process({"--config", file.string()}, VOLLEY_FAULTY_PROGRAM);
    const uint16_t port = process.port();
    ASSERT_NE(port, 0);
    std::filesystem::remove(file);
    Client client(port);
    const auto restarts = [&] {
      const auto metrics = Client(port).get("/metrics");
      return metrics && metrics.body.find("device_restarts_total{model_name=\"pocket\"} 1") != std::string::npos;
    };
    const auto ask = [&](bool fault) {
      EXPECT_TRUE(client.send(Client::post_text(kPath, kLong)));
      EXPECT_TRUE(client.wait_for("data: "));
      if (fault) {
        EXPECT_EQ(::kill(process.child(), signal), 0);
        EXPECT_TRUE(eventually(restarts));
        EXPECT_EQ(::kill(process.child(), SIGCONT), 0);
      }
      const auto answer = client.receive();
      std::string text;
      if (!answer) return text;
      for (const std::string& event : stream_events(answer.body)) {
        if (event != "[DONE]") text += nlohmann::json::parse(event).at("choices").at(0).at("text").get<std::string>();
      }
      return text;
    };
    const std::string with = ask(true), without = ask(false);
    EXPECT_GT(without.size(), 1500u);
    EXPECT_EQ(with, without);
    EXPECT_TRUE(restarts());
    const pid_t child = process.child();
    process.signal(SIGTERM);
    EXPECT_EQ(process.status(), 0);
    EXPECT_NE(::kill(child, 0), 0) << "it is left behind";
  }
}

// While the device process loads again, probes and clients are told, and requests wait.
TEST(ServeProcess, WhileModelsAreLoadedAgainItIsNotHealthy) {
  ServeProcess process({"--threads", "2", "--restart-on-device-error"});
  const uint16_t port = process.port();
  ASSERT_NE(port, 0);
  const auto status = [&](const char* path) {
    const auto answer = Client(port).get(path);
    return answer ? answer.status : 0;
  };
  EXPECT_EQ(status("/health"), 200);
  const pid_t stopped = restarted_and_stopped(process);
  for (const char* path : {"/health", "/ready", "/health/", "//ready"}) {
    EXPECT_TRUE(eventually([&] { return status(path) == 503; })) << path;
  }
  for (const char* path : {"/version", "/metrics", "/v1/models"}) EXPECT_EQ(status(path), 200) << path;
  Client waits(port);
  ASSERT_TRUE(waits.send(Client::post_text(kPath, R"({"prompt": "Once", "max_tokens": 4})")));
  ASSERT_EQ(::kill(stopped, SIGCONT), 0);
  const auto answer = waits.receive();
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(status("/health"), 200);
  EXPECT_EQ(status("/ready"), 200);
}

// No end of the server leaves the device process behind, whether that one computes, loads or is stopped.
TEST(ServeProcess, LeavesNoProcessBehind) {
  for (const char* what : {"idle", "stopped", "stopped and loading", "stopped, with SIGTERM"}) {
    ServeProcess process({"--threads", "2", "--restart-on-device-error", "--drain-timeout", "1"});
    ASSERT_NE(process.port(), 0) << what;
    pid_t child = process.child();
    ASSERT_GT(child, 0);
    if (what == std::string("stopped and loading")) {
      child = restarted_and_stopped(process);
    } else if (what != std::string("idle")) {
      ASSERT_EQ(::kill(child, SIGSTOP), 0);
    }
    process.signal(what == std::string("stopped, with SIGTERM") ? SIGTERM : SIGKILL);
    EXPECT_NE(process.status(), -1) << what;
    EXPECT_TRUE(eventually([&] { return is_gone(child); })) << what;
  }
}

// A service manager signals all processes of a service.
TEST(ServeProcess, ASignalToAllProcessesLetsRequestsEnd) {
  ServeProcess process({"--threads", "2", "--restart-on-device-error"});
  const auto client = open_stream(process.port(), "data: ", kLong);
  ::kill(process.child(), SIGTERM);
  process.signal(SIGTERM);
  const auto answer = client->receive();
  EXPECT_EQ(stream_events(answer.body).back(), "[DONE]");
  EXPECT_EQ(answer.body.find("\"error\""), std::string::npos);
  EXPECT_EQ(process.status(), 0);
}

}  // namespace
}  // namespace volley::serve
