// Shared by tests of the program as a process.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace volley::apps {

// Replaces a forked process by `program`.
[[noreturn]] inline void execute(const char* program, std::vector<std::string> arguments) {
  std::string name = "volley";
  std::vector<char*> argv = {name.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(program, argv.data());
  ::_exit(127);
}

// The exit status, 1000 + a fatal signal, or -1: it still runs after five minutes. Sets pid to -1 once it ended.
inline int status_of(pid_t& pid) {
  for (int i = 0; i < 30'000; ++i) {
    int raw = 0;
    if (::waitpid(pid, &raw, WNOHANG) == pid) {
      pid = -1;
      return WIFEXITED(raw) ? WEXITSTATUS(raw) : 1000 + WTERMSIG(raw);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return -1;
}

}  // namespace volley::apps
