// A batch's output: a file that only grows, line by line, and that a killed run leaves in a state to go on from.
#pragma once

#include <volley/result.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace volley::serve {

// Each line is one write at the file's end, so that a process that is killed leaves whole lines and at most one torn
// one, the last. Lines reach the disk within kSyncInterval of a sync_if_due(): what a machine loses with its power is
// younger than that. A lock keeps a second run away; it ends with the process, however that ends. Threads: one.
class ResultFile {
 public:
  static constexpr std::chrono::milliseconds kSyncInterval{1000};

  // Makes the file if there is none. kInvalidArgument: it cannot be written, is no regular file, is the input, or
  // another run is writing it.
  static Result<ResultFile> open(const std::string& path, const std::string& input);
  ~ResultFile();
  ResultFile(ResultFile&& other) noexcept;
  ResultFile& operator=(ResultFile&&) = delete;

  // Hands every whole line to `on_line`, with its number from 1, and cuts a torn last one off the file. Once, before
  // append(). True: something was cut. The first error of `on_line` ends it.
  Result<bool> recover(const std::function<Status(int64_t number, std::string_view line)>& on_line);

  // `line` must hold no newline. kDataLoss: the disk is full; the file is then as it was before.
  Status append(std::string line);
  // Sees to it that the lines are on the disk, if some are not and the last time is long enough ago. As often it looks
  // whether the path still names this file: kNotFound if it was deleted or replaced, and the lines with it.
  Status sync_if_due();
  Status sync();  // looks, too

 private:
  Status check_name() const;
  ResultFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  int fd_;
  std::string path_;
  int64_t size_ = 0;  // of the whole lines
  bool unsynced_ = false;
  std::chrono::steady_clock::time_point last_sync_{};
};

}  // namespace volley::serve
