// Writes log lines to a file descriptor, on a thread of its own, so that no logging thread waits for the log's reader.
// When too many lines wait, new ones are dropped and counted, and a line in their place has the count. Any thread.
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
  // The descriptor stays the caller's, open for the process's life; SIGPIPE must be ignored. At most
  // `max_waiting_bytes` wait. `format` is that of the line about dropped ones. Colours the level on a terminal.
  LogSink(int descriptor, LogFormat format, size_t max_waiting_bytes = size_t{1} << 20);
  // Waits one second for the reader. Later lines are lost, because a process must be able to end with its log unread.
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
  int64_t unreported_ = 0;              // dropped since the last line with a count; guarded by the base's mutex
  const std::shared_ptr<Queue> queue_;  // shared with the thread, which may hang in a write after this is destroyed
  std::thread thread_;
};

}  // namespace volley::serve
