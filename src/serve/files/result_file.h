// A batch's output file, which grows line by line, and from which a run can continue after a kill.
#pragma once

#include <volley/result.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace volley::serve {

// Each line is one write at the file's end, so a kill leaves whole lines and at most one torn one, the last. Lines
// reach the disk within kSyncInterval of a sync_if_due(), so a power failure loses only younger ones. A lock excludes a
// second run; it ends with the process. Threads: one.
class ResultFile {
 public:
  static constexpr std::chrono::milliseconds kSyncInterval{1000};

  // Makes the file if it is missing. kInvalidArgument: it cannot be written, is no regular file, is the input, or is in
  // use by another run.
  static Result<ResultFile> open(const std::string& path, const std::string& input);
  ~ResultFile();
  ResultFile(ResultFile&& other) noexcept;
  ResultFile& operator=(ResultFile&&) = delete;

  // Passes every whole line to `on_line`, with its number from 1, and removes a torn last one. Call once, before
  // append(). True: a torn line was removed. The first error of `on_line` ends it.
  Result<bool> recover(const std::function<Status(int64_t number, std::string_view line)>& on_line);

  // `line` must have no newline. kDataLoss: the disk is full; the file then stays as before.
  Status append(std::string line);
  // Syncs unsynced lines if the last time is long enough ago. As often it checks the path: kNotFound if the file was
  // deleted or replaced, and the lines with it.
  Status sync_if_due();
  Status sync();  // also checks the path

 private:
  Status check_name() const;
  ResultFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  int fd_;
  std::string path_;
  int64_t size_ = 0;  // bytes of whole lines
  bool unsynced_ = false;
  std::chrono::steady_clock::time_point last_sync_{};
};

}  // namespace volley::serve
