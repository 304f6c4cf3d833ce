#include "engine/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/allocation_retry.h"
#include "base/file.h"

extern char** environ;

namespace volley::engine {
namespace {

constexpr int kDescriptor = 3;
constexpr std::chrono::seconds kPatience(5);      // for it to end by itself
constexpr std::chrono::seconds kDriversTime(20);  // for a driver to let go of one that was killed

Error refused(const std::string& what, int error) {
  return {ErrorCode::kUnavailable, "The process that computes cannot be started: " + what + " (" +
                                       std::generic_category().message(error) + ")."};
}

std::string in_words(const siginfo_t& end) {
  if (end.si_code == CLD_EXITED) return "it ended with status " + std::to_string(end.si_status);
  return "it was killed by signal " + std::to_string(end.si_status) + ", " + ::strsignal(end.si_status);
}

// What the program gets: its side of the connection, the standard streams and no signal that ends this process, too,
// until it lets them in.
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
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&blocked, number);
    int error = ::posix_spawn_file_actions_adddup2(&files, descriptor, kDescriptor);
    if (error == 0) error = ::posix_spawn_file_actions_addclosefrom_np(&files, kDescriptor + 1);
    if (error == 0) error = ::posix_spawnattr_setsigmask(&attributes, &blocked);
    if (error == 0) error = ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    return error;
  }

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

}  // namespace

struct ChildProcess::End {
  void await();
  std::string within(std::chrono::milliseconds time);

  std::mutex mutex;
  std::condition_variable changed;
  pid_t pid = -1;       // guarded by mutex; -1: it has ended
  bool killed = false;  // guarded by mutex
  std::string ended;    // guarded by mutex; how
  std::mutex watch_mutex;
  std::function<void(const std::string&)> on_end;  // guarded by watch_mutex
  bool told = false;                               // guarded by watch_mutex
};

// Its number stays its own until this thread has taken note of the end.
void ChildProcess::End::await() {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  {
    const std::lock_guard lock(mutex);
    ::waitpid(std::exchange(pid, -1), nullptr, 0);
    if (!retry_allocation([&] { ended = in_words(info); }, kMemoryPatience)) ended = "it ended";
    changed.notify_all();
  }
  const std::lock_guard watching(watch_mutex);
  if (!on_end || told) return;
  told = true;
  (void)retry_allocation([this] { on_end(ended); }, kMemoryPatience);  // nobody changes that any more
}

std::string ChildProcess::End::within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, time, [this] { return !ended.empty(); });
  return ended;
}

ChildProcess::ChildProcess(std::unique_ptr<net::Connection> connection)
    : connection_(std::move(connection)), end_(std::make_shared<End>()) {}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& command) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return refused("no descriptors", errno);
  const FileDescriptor there(pair[1]);
  std::unique_ptr<ChildProcess> child(new ChildProcess(net::Connection::adopt(pair[0])));
  std::vector<std::string> words = command;
  words.push_back(std::to_string(kDescriptor));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  Settings settings;
  pid_t pid = -1;
  int error = settings.set(there.get());
  if (error == 0) {
    error =
        ::posix_spawn(&pid, command.front().c_str(), &settings.files, &settings.attributes, arguments.data(), environ);
  }
  if (error != 0) {
    child->end_->ended = "it was not started";  // nobody need wait for that
    return refused(command.front(), error);
  }
  child->end_->pid = pid;
  try {
    std::thread([end = child->end_] { end->await(); }).detach();
  } catch (const std::system_error&) {
    ::kill(pid, SIGKILL);
    child->end_->await();
    return resource_exhausted("The system gives this process no more threads.");
  }
  return child;
}

ChildProcess::~ChildProcess() {
  connection_->shut_down();
  watch({});
  bool killed = false;
  {
    const std::lock_guard lock(end_->mutex);
    killed = end_->killed;
  }
  if (!killed && !ended_within(kPatience).empty()) return;
  kill();
  (void)ended_within(kDriversTime);
}

void ChildProcess::kill() {
  const std::lock_guard lock(end_->mutex);
  end_->killed = true;
  if (end_->pid > 0) ::kill(end_->pid, SIGKILL);
}

void ChildProcess::watch(std::function<void(const std::string&)> on_end) {
  const std::lock_guard watching(end_->watch_mutex);
  end_->on_end = std::move(on_end);
  const std::string ended = ended_within({});
  if (ended.empty() || !end_->on_end) return;
  end_->told = true;
  end_->on_end(ended);
}

std::string ChildProcess::ended_within(std::chrono::milliseconds time) {
  return end_->within(time);
}

}  // namespace volley::engine
