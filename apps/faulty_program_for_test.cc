// The program with a device that a signal breaks: after SIGUSR1 its next piece of work fails, once; after SIGUSR2 it
// hangs for good; after SIGALRM it asks for more memory than there is. Until the first of them, or SIGCONT, its work is
// slow, so that requests are not over before the signal comes.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <new>

#include "device/cpu/work_hook_for_test.h"
#include "device/fault.h"

#define main volley_main
#include "apps/main.cc"
#undef main

namespace {

std::atomic<int> g_signal{0};
std::atomic<bool> g_slow{true};

void on_signal(int signal) {
  if (signal != SIGCONT) g_signal = signal;
  g_slow = false;
}

void before_work() {
  const int signal = g_signal.exchange(0);
  if (signal == SIGUSR1) throw volley::DeviceFault("The device failed: the test says so.");
  while (signal == SIGUSR2) ::pause();
  if (signal == SIGALRM) (void)::operator new (size_t{1} << 60);
  if (g_slow) ::usleep(500);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int signal : {SIGUSR1, SIGUSR2, SIGALRM, SIGCONT}) ::signal(signal, on_signal);
  const std::function<void()> hook = before_work;
  volley::set_work_hook(&hook);
  return volley_main(argc, argv);
}
