// A program that this process starts, with a connection to it. Threads: any.
#pragma once

#include <volley/result.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/connection.h"

namespace volley::engine {

class ChildProcess {
 public:
  // command: the program and its arguments, behind which comes the number of a descriptor, the other side of
  // connection(). Of this process's descriptors it has that one and the standard streams. kUnavailable: the system
  // refuses.
  static Result<std::unique_ptr<ChildProcess>> start(const std::vector<std::string>& command);
  // Ends the connection, waits a while for the program to end by itself, and kills it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  net::Connection& connection() { return *connection_; }
  void kill();
  // Called once when it has ended, with how ("it was killed by signal 9, Killed"), on a thread of the object's; on this
  // one, before it returns, if it has already. Takes the place of the one before; empty: nobody is called. Returns when
  // no call is running.
  void watch(std::function<void(const std::string&)> on_end);
  // How it has ended, once it has or the time is over; empty: it runs.
  std::string ended_within(std::chrono::milliseconds time);

 private:
  explicit ChildProcess(std::unique_ptr<net::Connection> connection) : connection_(std::move(connection)) {}
  void await_end();

  const std::unique_ptr<net::Connection> connection_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int pid_ = -1;       // guarded by mutex_; -1: it has ended
  std::string ended_;  // guarded by mutex_; how
  std::mutex watch_mutex_;
  std::function<void(const std::string&)> on_end_;  // guarded by watch_mutex_
  bool told_ = false;                               // guarded by watch_mutex_
  std::thread thread_;
};

}  // namespace volley::engine
