// Where the lines of a log go: to a file descriptor, written by a thread of its own. Nobody who logs ever waits for
// whoever reads the log: lines that find too many others waiting are dropped and counted, and a line in their place
// says how many were. Any thread.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "serve/http/log.h"

namespace volley::serve {

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // The descriptor stays the caller's, open for as long as the process lives; SIGPIPE must be ignored. At most
  // `max_waiting_bytes` wait to be written. `format`: of the line that stands for dropped ones. Colours the level where
  // the descriptor is a terminal.
  LogSink(int descriptor, LogFormat format, size_t max_waiting_bytes = size_t{1} << 20);
  // Gives what waits one second. What nobody took by then is lost: a process must be able to end with its log unread.
  ~LogSink() override;

  int64_t dropped() const;  // lines since the start

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  struct Queue;

  bool add(const spdlog::details::log_msg& message);
  bool add_notice();
  static void write_lines(const std::shared_ptr<Queue>& queue);

  const LogFormat format_;
  const bool colours_;
  int64_t unreported_ = 0;              // dropped since the last line that said so; guarded by the base's mutex
  const std::shared_ptr<Queue> queue_;  // the thread's too: it may hang in a write when this is gone
  std::thread thread_;
};

}  // namespace volley::serve
