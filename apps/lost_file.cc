#include "apps/lost_file.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "apps/exit_codes.h"
#include "base/check.h"
#include "weights/mapped_file.h"

namespace volley::apps {
namespace {

bool g_terminal = false;  // a progress line may be on the terminal

void say(const char* text) {
  (void)!write(STDERR_FILENO, text, std::strlen(text));
}

// Runs in the reading thread, at any point, so it must take neither a lock nor memory.
void on_bus_error(int signal, siginfo_t* info, void*) {
  const char* path = weights::mapped_file_at(info->si_addr);
  if (path == nullptr) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);  // takes effect when this returns
    return;
  }
  say(g_terminal ? "\nvolley: " : "volley: ");
  say(path);
  say(" was cut short while it was in use, or its disk failed: put the whole file back and start again. Replace "
      "weights "
      "by renaming, or start with --no-mmap.\n");
  _exit(kExitModel);
}

}  // namespace

void report_lost_files() {
  g_terminal = isatty(STDERR_FILENO) == 1;
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  VOLLEY_CHECK_EQ(sigaction(SIGBUS, &action, nullptr), 0);
}

}  // namespace volley::apps
