// A program that this process starts, with a connection to it. Threads: any.
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
  // command: the program and its arguments, behind which comes the number of a descriptor, the other side of
  // connection(). Of this process's descriptors it has that one and the standard streams. It ends with this process,
  // however that ends, and even while it is stopped. Returns before it runs: where it cannot be started it has ended
  // with a sentence about that. kUnavailable: the system refuses.
  static Result<std::unique_ptr<ChildProcess>> start(std::vector<std::string> command);
  // Ends the connection, waits a while for the program to end by itself, kills it, and waits again. What a driver holds
  // on to all the same is left behind.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  net::Connection& connection() { return *connection_; }
  void kill();
  // Called once when it has ended, with how ("it was killed by signal 9, Killed"), on a thread of its own; on this one,
  // before it returns, if it has already. Takes the place of the one before; empty: nobody is called. Returns when
  // no call is running.
  void watch(std::function<void(const std::string&)> on_end);
  // Grows while it reads files or maps them: a sum of bytes and page faults. 0: it has ended, or nobody can tell.
  uint64_t read_so_far();
  // How it has ended, once it has or the time is over; empty: it runs.
  std::string ended_within(std::chrono::milliseconds time);

 private:
  struct End;  // what becomes of the program

  explicit ChildProcess(std::unique_ptr<net::Connection> connection);

  const std::unique_ptr<net::Connection> connection_;
  const std::shared_ptr<End> end_;  // also of the thread that waits for it
};

}  // namespace volley::engine
