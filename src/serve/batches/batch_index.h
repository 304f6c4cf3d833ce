// Which lines a batch's input holds, and which of them have a result. Threads: one.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace volley::serve {

// What keeps a file from being run as a batch.
struct LineProblem {
  int64_t line = 0;     // from 1; 0: the whole file
  std::string code;     // for programs: "invalid_line", "duplicate_custom_id", "too_many_lines"
  std::string message;  // a sentence
};

// 16 bytes and a bit a line, however long the lines and their ids are: an id is kept as a hash of 64 bits, and lines
// whose hashes are equal are told apart by reading them again. So the input must stay as it is while this is in use.
class BatchIndex {
 public:
  using Hash = std::function<uint64_t(std::string_view)>;

  // Reads the input once. kInvalidArgument: lines that are not JSON objects with a custom_id (the first of them are
  // named), two lines with the same one, or more than `most_lines`: then it stops there. `hash` is for tests of equal
  // hashes. `problems`, unless null, gets those lines one by one.
  static Result<BatchIndex> read(const std::string& path, Hash hash = {}, std::vector<LineProblem>* problems = nullptr,
                                 int64_t most_lines = std::numeric_limits<int64_t>::max());

  int64_t lines() const { return static_cast<int64_t>(entries_.size()); }
  int64_t done() const { return done_count_; }

  enum class Mark { kMarked, kAlreadyDone, kUnknown };
  // Notes that the line of this id has a result.
  Mark mark_done(std::string_view custom_id);
  enum class State { kDone, kOpen, kUnknown };
  // Looks up the line with this id that begins at byte `offset` of the input. kUnknown: there was none, the input has
  // changed.
  State state(std::string_view custom_id, int64_t offset) const;

 private:
  struct Entry {
    uint64_t hash;
    int64_t offset;  // of the line in the input
    bool operator<(const Entry& other) const { return hash != other.hash ? hash < other.hash : offset < other.offset; }
  };

  BatchIndex(std::string path, Hash hash) : path_(std::move(path)), hash_(std::move(hash)) {}
  Status read_lines(std::vector<LineProblem>* problems, int64_t most_lines);
  Status check_duplicates(std::vector<LineProblem>* problems) const;
  std::string id_at(int64_t offset) const;
  int64_t line_number(int64_t offset) const;

  std::string path_;
  Hash hash_;
  std::vector<Entry> entries_;  // sorted
  std::vector<bool> done_;      // one an entry
  int64_t done_count_ = 0;
};

}  // namespace volley::serve
