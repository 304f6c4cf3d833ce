// Writes lines in the order of their numbers, whatever the order in which they come. Threads: one.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>

namespace volley::apps {

class OrderedOutput {
 public:
  // "-" is stdout. The file's content stays until the first line is written, so a run that fails earlier loses nothing.
  // `input`: the input file, which must be another one. kInvalidArgument: the file cannot be written, or it is the
  // input.
  static Result<OrderedOutput> open(const std::string& path, const std::optional<std::string>& input = {});
  ~OrderedOutput();
  OrderedOutput(OrderedOutput&& other) noexcept;
  OrderedOutput& operator=(OrderedOutput&&) = delete;

  // Takes line `number` (from 0, each once) and writes all lines whose turn has come. kDataLoss: the disk is full, or
  // the reader is gone.
  Status put(int64_t number, std::string line);
  // The next number to write.
  int64_t next() const { return next_; }
  // Ends the lines: without any, the file becomes empty.
  Status finish();

 private:
  OrderedOutput(std::FILE* file, std::string name) : file_(file), name_(std::move(name)) {}
  Status drop_old_content();

  std::FILE* file_;
  std::string name_;  // for messages
  bool begun_ = false;
  int64_t next_ = 0;
  std::map<int64_t, std::string> waiting_;
};

}  // namespace volley::apps
