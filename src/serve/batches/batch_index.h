// Knows the lines of a batch's input, and which of them have a result. Threads: one.
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

// A reason why a file cannot run as a batch.
struct LineProblem {
  int64_t line = 0;     // from 1; 0: the whole file
  std::string code;     // for programs: "invalid_line", "duplicate_custom_id", "too_many_lines"
  std::string message;  // a sentence
};

// Takes 16 bytes and a bit for each line, of any length: it keeps a 64-bit hash of the id, and reads lines with equal
// hashes again to tell them apart. So the input must not change meanwhile.
class BatchIndex {
 public:
  using Hash = std::function<uint64_t(std::string_view)>;

  // Reads the input once. kInvalidArgument: lines that are not JSON objects with a custom_id (it names the first of
  // them), two lines with the same one, or more than `most_lines`, where it stops. `hash` is for tests of equal hashes.
  // `problems`, unless null, gets each of those lines.
  static Result<BatchIndex> read(const std::string& path, Hash hash = {}, std::vector<LineProblem>* problems = nullptr,
                                 int64_t most_lines = std::numeric_limits<int64_t>::max());

  int64_t lines() const { return static_cast<int64_t>(entries_.size()); }
  int64_t done() const { return done_count_; }

  enum class Mark { kMarked, kAlreadyDone, kUnknown };
  Mark mark_done(std::string_view custom_id);
  enum class State { kDone, kOpen, kUnknown };
  // Looks up the line with this id at byte `offset` of the input. kUnknown: no such line: the input has changed.
  State state(std::string_view custom_id, int64_t offset) const;

 private:
  struct Entry {
    uint64_t hash;
    int64_t offset;  // the line's offset in the input
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
  std::vector<bool> done_;      // one for each entry
  int64_t done_count_ = 0;
};

}  // namespace volley::serve
