#include "engine/remote/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/file.h"

namespace volley::engine {
namespace {

constexpr int kDescriptor = 3;
constexpr std::chrono::seconds kPatience(5);      // for the program to end by itself
constexpr std::chrono::seconds kDriversTime(20);  // for the driver to release a killed program

// Says how a program ended that never ran.
std::string not_started(const std::string& what, int error) {
  return "it cannot be started: " + what + " (" + std::generic_category().message(error) + ")";
}

std::string in_words(const siginfo_t& end) {
  if (end.si_code == CLD_EXITED) return "it ended with status " + std::to_string(end.si_status);
  return "it was killed by signal " + std::to_string(end.si_status) + ", " + ::strsignal(end.si_status);
}

// Runs in the forked process and becomes the program. It keeps the connection and the standard streams, and blocks
// signals that would end the engine's process until the program unblocks them. It may call only what a signal handler
// may. The program ends with the thread that forked it, even while it is stopped.
[[noreturn]] void become(char* const* arguments, int descriptor, int failure, pid_t parent) {
  ::setpgid(0, 0);  // the parent's own call fails if this process became the program first
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent has ended already
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&blocked, number);
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  // Uses a number above both fixed places, so that neither is overwritten before it is copied.
  descriptor = ::fcntl(descriptor, F_DUPFD, kDescriptor + 2);
  failure = ::fcntl(failure, F_DUPFD, kDescriptor + 2);
  ::dup2(descriptor, kDescriptor);
  ::dup3(failure, kDescriptor + 1, O_CLOEXEC);
  ::close_range(kDescriptor + 2, ~0U, 0);
  ::execv(arguments[0], arguments);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(kDescriptor + 1, &error, sizeof error);
  ::_exit(1);
}

}  // namespace

struct ChildProcess::End {
  void run(const std::vector<std::string>& words, FileDescriptor there);
  int begin(const std::vector<std::string>& words, FileDescriptor there);
  std::string await();
  std::string within(std::chrono::milliseconds time);

  std::mutex mutex;
  std::condition_variable changed;
  pid_t pid = -1;       // guarded by mutex; -1: not started, or ended
  bool killed = false;  // guarded by mutex
  std::string ended;    // how it ended; guarded by mutex
  std::mutex watch_mutex;
  std::function<void(const std::string&)> on_end;  // guarded by watch_mutex
  bool told = false;                               // guarded by watch_mutex
};

// Runs the program from start to end.
void ChildProcess::End::run(const std::vector<std::string>& words, FileDescriptor there) {
  const int error = begin(words, std::move(there));
  const std::string how = await();
  {
    const std::lock_guard lock(mutex);
    ended = error == 0 ? how : not_started(words.front(), error);
    changed.notify_all();
  }
  const std::lock_guard watching(watch_mutex);
  if (!on_end || told) return;
  told = true;
  on_end(ended);  // `ended` no longer changes
}

// Starts the program, and returns once it runs. Returns 0, or the error why it does not run.
int ChildProcess::End::begin(const std::vector<std::string>& words, FileDescriptor there) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return errno;
  const FileDescriptor failure(pipe[0]);
  {
    const FileDescriptor told(pipe[1]);
    const FileDescriptor its(std::move(there));  // closed here, so that the parent sees its end
    const pid_t parent = ::getpid();
    const std::lock_guard lock(mutex);
    pid = ::fork();
    if (pid < 0) return errno;
    if (pid == 0) become(arguments.data(), its.get(), told.get(), parent);
    // A process group of its own: a program may be stopped before it has asked to be killed with this thread. The
    // kernel wakes a stopped group when its last parent ends, and then the program ends.
    ::setpgid(pid, pid);
    if (killed) ::kill(pid, SIGKILL);
  }
  int error = 0;
  ssize_t size = 0;
  while ((size = ::read(failure.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  return size == sizeof error ? error : 0;
}

// The pid stays reserved until this thread has recorded the end.
std::string ChildProcess::End::await() {
  if (pid < 0) return "";
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex);
  ::waitpid(std::exchange(pid, -1), nullptr, 0);
  return in_words(info);
}

std::string ChildProcess::End::within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, time, [this] { return !ended.empty(); });
  return ended;
}

ChildProcess::ChildProcess(std::unique_ptr<net::Connection> connection)
    : connection_(std::move(connection)), end_(std::make_shared<End>()) {}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(std::vector<std::string> command) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return Error{ErrorCode::kUnavailable, "The process that computes cannot be started: the process may not open " +
                                              std::string("another file. Raise ulimit -n.")};
  }
  FileDescriptor there(pair[1]);
  std::unique_ptr<ChildProcess> child(new ChildProcess(net::Connection::adopt(pair[0])));
  command.push_back(std::to_string(kDescriptor));
  try {
    // The program ends with the thread that started it, so the same thread waits for its end.
    std::thread([end = child->end_, command = std::move(command), there = std::move(there)]() mutable {
      end->run(command, std::move(there));
    }).detach();
  } catch (const std::system_error&) {
    child->end_->ended = "it was not started";  // no thread waits for the child
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

uint64_t ChildProcess::read_so_far() {
  const std::lock_guard lock(end_->mutex);
  if (end_->pid <= 0) return 0;
  const std::string folder = "/proc/" + std::to_string(end_->pid);
  uint64_t sum = 0;
  std::ifstream io(folder + "/io");
  for (std::string name; io >> name;) {
    if (uint64_t value = 0; io >> value && (name == "rchar:" || name == "read_bytes:")) sum += value;
  }
  // Field of /proc/PID/stat. Some file systems count page faults of mapped files but no bytes read. The name in front
  // of the fields may contain any character but ")".
  constexpr int kBeforeMajorFaults = 9;
  std::ifstream stat(folder + "/stat");
  stat.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  std::string word;
  for (int i = 0; i < kBeforeMajorFaults; ++i) stat >> word;
  if (uint64_t faults = 0; stat >> faults) sum += faults;
  return sum;
}

std::string ChildProcess::ended_within(std::chrono::milliseconds time) {
  return end_->within(time);
}

}  // namespace volley::engine
