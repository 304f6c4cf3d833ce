#include "base/line_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace volley {

Result<LineReader> LineReader::open(const std::string& path, size_t max_line_bytes) {
  const int fd = path == "-" ? dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return not_found("Cannot open " + path + " for reading: " + std::strerror(errno) + ".");
  struct stat about {};
  if (fstat(fd, &about) == 0 && S_ISDIR(about.st_mode)) {
    close(fd);
    return invalid_argument(path + " is a folder: give a file with one JSON object a line.");
  }
  return LineReader(fd, path, max_line_bytes, S_ISREG(about.st_mode) ? about.st_size : 0);
}

LineReader::LineReader(int fd, std::string path, size_t max_line_bytes, int64_t size)
    : fd_(fd), path_(std::move(path)), max_line_bytes_(max_line_bytes), size_(size) {}

LineReader::LineReader(LineReader&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      max_line_bytes_(other.max_line_bytes_),
      size_(other.size_),
      bytes_read_(other.bytes_read_),
      line_begin_(other.line_begin_),
      number_(other.number_),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_),
      scanned_(other.scanned_),
      skipping_(other.skipping_),
      end_(other.end_) {}

LineReader::~LineReader() {
  if (fd_ >= 0) close(fd_);
}

// Hands out the buffer's first whole line, or drops the part of a line that is already too long.
bool LineReader::take_line(Line* line) {
  const size_t newline = buffer_.find('\n', scanned_);
  if (newline == std::string::npos) {
    // Returned lines are dropped here, once a read: after every line, the total time would be quadratic.
    buffer_.erase(0, begin_);
    begin_ = 0;
    if (buffer_.size() > max_line_bytes_) {
      skipping_ = true;
      buffer_.clear();
    }
    scanned_ = buffer_.size();
    return false;
  }
  hand_out(newline - begin_, line);
  begin_ = scanned_ = newline + 1;
  count_bytes(line);
  return true;
}

// Takes the text after the last newline. REQUIRES: take_line() found no line.
Result<LineReader::State> LineReader::last_line(Line* line) {
  if (buffer_.empty() && !skipping_) return State::kEnd;
  hand_out(buffer_.size(), line);
  buffer_.clear();
  scanned_ = 0;
  count_bytes(line);
  return State::kLine;
}

void LineReader::hand_out(size_t bytes, Line* line) {
  line->number = ++number_;
  line->too_long = std::exchange(skipping_, false) || bytes > max_line_bytes_;
  line->text = line->too_long ? std::string() : buffer_.substr(begin_, bytes);
}

// REQUIRES: begin_ is after the line.
void LineReader::count_bytes(Line* line) {
  const int64_t end = bytes_read_ - static_cast<int64_t>(buffer_.size() - begin_);
  line->bytes = end - std::exchange(line_begin_, end);
}

Result<LineReader::State> LineReader::next(Line* line, int wait_ms) {
  for (;;) {
    if (take_line(line)) return State::kLine;
    if (end_) return last_line(line);
    pollfd ready{fd_, POLLIN, 0};
    const int polled = poll(&ready, 1, wait_ms);
    if (polled == 0 || (polled < 0 && errno == EINTR)) return State::kNotYet;
    char chunk[64 << 10];
    const ssize_t got = read(fd_, chunk, sizeof chunk);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return State::kNotYet;
    if (got < 0) {
      return Error{ErrorCode::kDataLoss, "Reading " + path_ + " failed: " + std::strerror(errno) + "."};
    }
    bytes_read_ += got;
    end_ = got == 0;
    buffer_.append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace volley
