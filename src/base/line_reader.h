// Lines of a file or of stdin with a bound on memory: a line beyond the bound is skipped, not stored. Threads: one.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <string>

namespace volley {

constexpr size_t kMaxLineBytes = 16u << 20;  // room for a prompt of two million token ids

class LineReader {
 public:
  // "-" is stdin. kNotFound, kInvalidArgument (a folder) name the path.
  static Result<LineReader> open(const std::string& path, size_t max_line_bytes = kMaxLineBytes);
  ~LineReader();
  LineReader(LineReader&& other) noexcept;
  LineReader& operator=(LineReader&&) = delete;

  struct Line {
    int64_t number = 0;  // from 1
    int64_t bytes = 0;   // bytes of the file that it takes, newline included
    std::string text;    // without the newline; empty if too_long
    bool too_long = false;
  };
  enum class State { kLine, kNotYet, kEnd };
  // The next line; kNotYet if the writer of a pipe has sent no whole line within `wait_ms`. kDataLoss: the device
  // fails.
  Result<State> next(Line* line, int wait_ms);

  // Bytes of a regular file; 0 for pipes.
  int64_t size() const { return size_; }

 private:
  LineReader(int fd, std::string path, size_t max_line_bytes, int64_t size);
  bool take_line(Line* line);
  Result<State> last_line(Line* line);
  void hand_out(size_t bytes, Line* line);
  void count_bytes(Line* line);

  int fd_;
  std::string path_;
  size_t max_line_bytes_;
  int64_t size_;  // a regular file's size, else 0
  int64_t bytes_read_ = 0;
  int64_t line_begin_ = 0;  // the next line's offset in the file
  int64_t number_ = 0;
  std::string buffer_;
  size_t begin_ = 0;       // bytes of buffer_ already returned
  size_t scanned_ = 0;     // bytes from begin_ on that contain no newline
  bool skipping_ = false;  // skipping a line that is too long
  bool end_ = false;
};

}  // namespace volley
