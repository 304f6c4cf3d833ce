// Starts a program and connects to it. Threads: any.
#pragma once

#include <volley/result.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/connection.h"

namespace volley::engine {

class ChildProcess {
 public:
  // command: the program and its arguments; start() appends the descriptor of the connection's other side. The program
  // has only that descriptor and the standard streams. It ends with this process, even while it is stopped. start()
  // returns before the program runs: one that cannot run has ended with a sentence. kUnavailable: the system gives no
  // process.
  static Result<std::unique_ptr<ChildProcess>> start(std::vector<std::string> command);
  // Closes the connection, waits for the end, kills the program, and waits again. One that a driver holds is left
  // behind.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  net::Connection& connection() { return *connection_; }
  void kill();
  // Calls on_end once the program has ended, with how it ended ("it was killed by signal 9, Killed"), on a thread of
  // its own, or on this thread before the return if the end has come already. Replaces the earlier callback; an empty
  // one removes it. Returns when no call is running.
  void watch(std::function<void(const std::string&)> on_end);
  // A sum of bytes read and page faults, which grows while the program reads or maps files. 0: it has ended, or the
  // system does not say.
  uint64_t read_so_far();
  // Says how the program ended, once it has or after `time`; empty: it still runs.
  std::string ended_within(std::chrono::milliseconds time);

 private:
  struct End;  // the program's state

  explicit ChildProcess(std::unique_ptr<net::Connection> connection);

  const std::unique_ptr<net::Connection> connection_;
  const std::shared_ptr<End> end_;  // shared with the thread that waits
};

}  // namespace volley::engine
