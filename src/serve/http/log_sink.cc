#include "serve/http/log_sink.h"

#include <poll.h>
#include <spdlog/details/log_msg.h>
#include <spdlog/details/os.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <string>
#include <string_view>
#include <utility>

namespace volley::serve {
namespace {

constexpr std::chrono::seconds kLastWords{1};

bool is_colour_terminal(int descriptor) {
  return ::isatty(descriptor) == 1 && spdlog::details::os::is_color_terminal();
}

const char* colour_of(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return "\x1b[31m\x1b[1m";
  if (level == spdlog::level::warn) return "\x1b[33m\x1b[1m";
  return level == spdlog::level::info ? "\x1b[32m" : "\x1b[36m";
}

// Returns the bytes that could not be written: none, unless the descriptor takes no more at all.
std::string_view write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::write(descriptor, bytes.data(), bytes.size());
    if (size > 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
    } else if (size < 0 && errno == EAGAIN) {
      pollfd writable{descriptor, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else if (size == 0 || errno != EINTR) {
      return bytes;
    }
  }
  return {};
}

}  // namespace

struct LogSink::Queue {
  Queue(int log_descriptor, size_t limit) : descriptor(log_descriptor), max_bytes(limit) {}

  const int descriptor;
  const size_t max_bytes;
  std::atomic<int64_t> dropped{0};
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex:
  std::string waiting;  // whole lines
  size_t writing = 0;   // bytes that the thread has taken but not written
  bool closing = false;
  bool ended = false;
};

LogSink::LogSink(int descriptor, LogFormat format, size_t max_waiting_bytes)
    : format_(format),
      colours_(is_colour_terminal(descriptor)),
      queue_(std::make_shared<Queue>(descriptor, max_waiting_bytes)),
      thread_([queue = queue_] { write_lines(queue); }) {}

LogSink::~LogSink() {
  if (unreported_ > 0) add_notice();
  std::unique_lock lock(queue_->mutex);
  queue_->closing = true;
  queue_->changed.notify_all();
  const bool ended = queue_->changed.wait_for(lock, kLastWords, [this] { return queue_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

int64_t LogSink::dropped() const {
  return queue_->dropped.load();
}

void LogSink::sink_it_(const spdlog::details::log_msg& message) {
  if (unreported_ > 0 && add_notice()) unreported_ = 0;
  if (unreported_ == 0 && add(message)) return;
  ++unreported_;
  queue_->dropped.fetch_add(1);
}

// False: too many bytes wait.
bool LogSink::add(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t formatted;
  message.color_range_start = message.color_range_end = 0;
  formatter_->format(message, formatted);
  std::string line(formatted.data(), formatted.size());
  if (colours_ && message.color_range_end > message.color_range_start) {
    line.insert(message.color_range_end, "\x1b[m");
    line.insert(message.color_range_start, colour_of(message.level));
  }
  const std::lock_guard lock(queue_->mutex);
  if (queue_->waiting.size() + queue_->writing + line.size() > queue_->max_bytes) return false;
  queue_->waiting += line;
  queue_->changed.notify_all();
  return true;
}

bool LogSink::add_notice() {
  const std::string text = log_payload(
      format_, spdlog::level::warn,
      std::to_string(unreported_) + " lines of the log were dropped here: nobody took them as fast as they came.");
  return add({spdlog::source_loc{}, "volley", spdlog::level::warn, text});
}

void LogSink::write_lines(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(queue->mutex);
  while (true) {
    queue->changed.wait(lock, [&] { return queue->closing || !queue->waiting.empty(); });
    if (queue->waiting.empty()) break;
    const std::string lines = std::exchange(queue->waiting, {});
    queue->writing = lines.size();
    lock.unlock();
    const std::string_view lost = write_all(queue->descriptor, lines);
    queue->dropped.fetch_add(std::count(lost.begin(), lost.end(), '\n'));
    lock.lock();
    queue->writing = 0;
  }
  queue->ended = true;
  queue->changed.notify_all();
}

}  // namespace volley::serve
