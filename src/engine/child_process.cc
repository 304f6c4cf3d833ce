#include "engine/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <system_error>
#include <utility>

#include "base/allocation_retry.h"

extern char** environ;

namespace volley::engine {
namespace {

constexpr int kDescriptor = 3;
constexpr std::chrono::seconds kPatience(5);  // for it to end by itself

Error refused(const std::string& what, int error) {
  return {ErrorCode::kUnavailable, "The process that computes cannot be started: " + what + " (" +
                                       std::generic_category().message(error) + ")."};
}

std::string in_words(const siginfo_t& end) {
  if (end.si_code == CLD_EXITED) return "it ended with status " + std::to_string(end.si_status);
  return "it was killed by signal " + std::to_string(end.si_status) + ", " + ::strsignal(end.si_status);
}

// What the program gets: its side of the connection, the standard streams and signals as they were at a login.
struct Settings {
  Settings() {
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
  }
  ~Settings() {
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

  int set(int descriptor) {
    sigset_t none;
    sigemptyset(&none);
    int error = ::posix_spawn_file_actions_adddup2(&files, descriptor, kDescriptor);
    if (error == 0) error = ::posix_spawn_file_actions_addclosefrom_np(&files, kDescriptor + 1);
    if (error == 0) error = ::posix_spawnattr_setsigmask(&attributes, &none);
    if (error == 0) error = ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    return error;
  }

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& command) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return refused("no descriptors", errno);
  const auto there = net::Connection::adopt(pair[1]);
  std::unique_ptr<ChildProcess> child(new ChildProcess(net::Connection::adopt(pair[0])));
  std::vector<std::string> words = command;
  words.push_back(std::to_string(kDescriptor));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  Settings settings;
  int error = settings.set(pair[1]);
  if (error == 0) {
    error = ::posix_spawn(&child->pid_, command.front().c_str(), &settings.files, &settings.attributes,
                          arguments.data(), environ);
  }
  if (error != 0) {
    child->pid_ = -1;
    return refused(command.front(), error);
  }
  try {
    child->thread_ = std::thread([made = child.get()] { made->await_end(); });
  } catch (const std::system_error&) {
    child->kill();
    ::waitpid(std::exchange(child->pid_, -1), nullptr, 0);
    return resource_exhausted("The system gives this process no more threads.");
  }
  return child;
}

ChildProcess::~ChildProcess() {
  connection_->shut_down();
  watch({});
  if (ended_within(kPatience).empty()) kill();
  if (thread_.joinable()) thread_.join();
}

void ChildProcess::kill() {
  const std::lock_guard lock(mutex_);
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

// Its number stays its own until this thread has taken note of the end.
void ChildProcess::await_end() {
  siginfo_t end{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  {
    const std::lock_guard lock(mutex_);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    if (!retry_allocation([&] { ended_ = in_words(end); }, kMemoryPatience)) ended_ = "it ended";
    changed_.notify_all();
  }
  const std::lock_guard watching(watch_mutex_);
  if (!on_end_ || told_) return;
  told_ = true;
  (void)retry_allocation([this] { on_end_(ended_); }, kMemoryPatience);  // nobody changes that any more
}

void ChildProcess::watch(std::function<void(const std::string&)> on_end) {
  const std::lock_guard watching(watch_mutex_);
  on_end_ = std::move(on_end);
  const std::string ended = ended_within({});
  if (ended.empty() || !on_end_) return;
  told_ = true;
  on_end_(ended);
}

std::string ChildProcess::ended_within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [this] { return !ended_.empty(); });
  return ended_;
}

}  // namespace volley::engine
