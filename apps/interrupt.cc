#include "apps/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "apps/exit_codes.h"
#include "base/check.h"

namespace volley::apps {

namespace {

int status_of(int signal) {
  return signal == SIGTERM ? kExitTerminated : kExitInterrupted;
}

}  // namespace

InterruptWatch::InterruptWatch() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  VOLLEY_CHECK_EQ(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC);
  VOLLEY_CHECK(signals_ >= 0 && stop_ >= 0);
  thread_ = std::thread([this] { watch(); });
}

InterruptWatch::~InterruptWatch() {
  const uint64_t one = 1;
  VOLLEY_CHECK_EQ(write(stop_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  thread_.join();
  close(signals_);
  close(stop_);
}

void InterruptWatch::set_handler(std::function<void()> handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

void InterruptWatch::set_ctrl_c_handler(std::function<void()> handler) {
  const std::lock_guard lock(mutex_);
  ctrl_c_handler_ = std::move(handler);
}

int InterruptWatch::exit_status() const {
  return status_of(signal_.load(std::memory_order_acquire));
}

void InterruptWatch::watch() {
  for (;;) {
    pollfd ready[2] = {{signals_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(ready, 2, -1) < 0) {
      VOLLEY_CHECK_EQ(errno, EINTR);
      continue;
    }
    if (ready[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    const std::lock_guard lock(mutex_);
    if (signal == SIGINT && ctrl_c_handler_) {
      ctrl_c_handler_();
      continue;
    }
    if (!handler_ || interrupted()) _exit(status_of(signal));
    signal_.store(signal, std::memory_order_release);
    handler_();
  }
}

}  // namespace volley::apps
