// Lines that become ready in any order, written in the order of their numbers. Threads: one.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

namespace volley::apps {

class OrderedOutput {
 public:
  // "-" is stdout. kInvalidArgument: the file cannot be written.
  static Result<OrderedOutput> open(const std::string& path);
  ~OrderedOutput();
  OrderedOutput(OrderedOutput&& other) noexcept;
  OrderedOutput& operator=(OrderedOutput&&) = delete;

  // Takes line `number` (from 0, none twice) and writes all lines whose turn has come. kDataLoss: the disk is full.
  Status put(int64_t number, std::string line);
  // The number whose line is awaited: everything before it is written.
  int64_t next() const { return next_; }

 private:
  OrderedOutput(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}

  std::FILE* file_;
  std::string path_;
  int64_t next_ = 0;
  std::map<int64_t, std::string> waiting_;
};

}  // namespace volley::apps
