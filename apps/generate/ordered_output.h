// Lines that become ready in any order, written in the order of their numbers. Threads: one.
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
  // "-" is stdout. What the file holds stays until the first line is written: a run that fails before that costs
  // nothing. `input`: what the lines are made from, which must be another file. kInvalidArgument: the file cannot be
  // written, or it is the input.
  static Result<OrderedOutput> open(const std::string& path, const std::optional<std::string>& input = {});
  ~OrderedOutput();
  OrderedOutput(OrderedOutput&& other) noexcept;
  OrderedOutput& operator=(OrderedOutput&&) = delete;

  // Takes line `number` (from 0, none twice) and writes all lines whose turn has come. kDataLoss: the disk is full, the
  // reader is gone.
  Status put(int64_t number, std::string line);
  // The number whose line is awaited: everything before it is written.
  int64_t next() const { return next_; }
  // There are no more lines: if there were none at all, the file is empty now.
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
