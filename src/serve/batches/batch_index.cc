#include "serve/batches/batch_index.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/line_reader.h"
#include "serve/batches/batch_line.h"

namespace volley::serve {
namespace {

constexpr int kNamedProblems = 10;  // in one error
constexpr size_t kShownIdBytes = 100;
// Lines with equal hashes are read again and compared. Chance gives no such lines, but a client who constructs them
// could keep a server busy.
constexpr size_t kMaxEqualHashes = 16;

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

// A message is stored with its batch, and an id may be as long as a line.
std::string shown(const std::string& id) {
  return id.size() <= kShownIdBytes ? id : id.substr(0, kShownIdBytes) + "…";
}

std::string problems_error(const std::string& path, const std::vector<LineProblem>& problems, int64_t count) {
  std::string text = path + " cannot be run as a batch:";
  for (const LineProblem& problem : problems) text += " line " + std::to_string(problem.line) + ": " + problem.message;
  const int64_t more = count - static_cast<int64_t>(problems.size());
  return more > 0 ? text + " And " + std::to_string(more) + " more." : text;
}

}  // namespace

Result<BatchIndex> BatchIndex::read(const std::string& path, Hash hash, std::vector<LineProblem>* problems,
                                    int64_t most_lines) {
  std::vector<LineProblem> unwanted;
  if (problems == nullptr) problems = &unwanted;
  BatchIndex index(path, hash ? std::move(hash) : Hash(std::hash<std::string_view>()));
  VOLLEY_RETURN_IF_ERROR(index.read_lines(problems, most_lines));
  std::sort(index.entries_.begin(), index.entries_.end());
  VOLLEY_RETURN_IF_ERROR(index.check_duplicates(problems));
  index.done_.resize(index.entries_.size());
  return index;
}

Status BatchIndex::read_lines(std::vector<LineProblem>* problems, int64_t most_lines) {
  VOLLEY_ASSIGN(LineReader reader, LineReader::open(path_));
  int64_t count = 0, offset = 0;
  LineReader::Line line;
  for (;;) {
    VOLLEY_ASSIGN(const LineReader::State state, reader.next(&line, 1000));
    if (state == LineReader::State::kEnd) break;
    if (state == LineReader::State::kNotYet) continue;
    const int64_t begin = std::exchange(offset, offset + line.bytes);
    if (!line.too_long && is_blank(line.text)) continue;
    if (lines() == most_lines) {
      const std::string what = "it has more than " + std::to_string(most_lines) + " requests: split it into several.";
      problems->push_back({line.number, "too_many_lines", "The file cannot be run: " + what});
      return invalid_argument(path_ + " cannot be run as a batch: " + what);
    }
    const auto id = line.too_long ? Result<std::string>(invalid_argument("The line is longer than " +
                                                                         std::to_string(kMaxLineBytes >> 20) + " MiB."))
                                  : read_custom_id(line.text);
    if (id.ok()) {
      entries_.push_back({hash_(*id), begin});
    } else if (++count <= kNamedProblems) {
      problems->push_back({line.number, "invalid_line", id.error().message});
    }
  }
  if (count > 0) return invalid_argument(problems_error(path_, *problems, count));
  return {};
}

// Compares ids only where hashes are equal, and stops at the first equal ids.
Status BatchIndex::check_duplicates(std::vector<LineProblem>* problems) const {
  for (size_t i = 1; i < entries_.size(); ++i) {
    const std::string id = entries_[i - 1].hash == entries_[i].hash ? id_at(entries_[i].offset) : std::string();
    for (size_t j = i; j-- > 0 && entries_[j].hash == entries_[i].hash;) {
      if (i - j >= kMaxEqualHashes) {
        const std::string what = "too many custom_ids have the same hash as \"" + shown(id) + "\": choose other ones.";
        problems->push_back({line_number(entries_[i].offset), "invalid_line", "The file cannot be run: " + what});
        return invalid_argument(path_ + " cannot be run as a batch: " + what);
      }
      if (id_at(entries_[j].offset) != id) continue;
      const int64_t first = line_number(entries_[j].offset), second = line_number(entries_[i].offset);
      const std::string what = "lines " + std::to_string(first) + " and " + std::to_string(second) +
                               " have the same custom_id \"" + shown(id) +
                               "\", so their results could not be told apart.";
      problems->push_back({second, "duplicate_custom_id", "The " + what});
      return invalid_argument(path_ + " cannot be run as a batch: " + what);
    }
  }
  return {};
}

BatchIndex::Mark BatchIndex::mark_done(std::string_view custom_id) {
  const uint64_t hash = hash_(custom_id);
  const auto first = std::lower_bound(entries_.begin(), entries_.end(), Entry{hash, -1});
  auto end = first;
  while (end != entries_.end() && end->hash == hash) ++end;
  for (auto entry = first; entry != end; ++entry) {
    if (end - first > 1 && id_at(entry->offset) != custom_id) continue;
    const auto position = static_cast<size_t>(entry - entries_.begin());
    if (done_[position]) return Mark::kAlreadyDone;
    done_[position] = true;
    ++done_count_;
    return Mark::kMarked;
  }
  return Mark::kUnknown;
}

BatchIndex::State BatchIndex::state(std::string_view custom_id, int64_t offset) const {
  const Entry wanted{hash_(custom_id), offset};
  const auto entry = std::lower_bound(entries_.begin(), entries_.end(), wanted);
  if (entry == entries_.end() || wanted < *entry) return State::kUnknown;
  return done_[static_cast<size_t>(entry - entries_.begin())] ? State::kDone : State::kOpen;
}

// Empty if the line can no longer be read.
std::string BatchIndex::id_at(int64_t offset) const {
  std::ifstream file(path_, std::ios::binary);
  file.seekg(offset);
  std::string line;
  std::getline(file, line);
  auto id = read_custom_id(line);
  return id.ok() ? std::move(id).value() : std::string();
}

int64_t BatchIndex::line_number(int64_t offset) const {
  std::ifstream file(path_, std::ios::binary);
  int64_t number = 1;
  std::string line;
  for (int64_t position = 0; position < offset && std::getline(file, line); ++number) {
    position += static_cast<int64_t>(line.size()) + 1;
  }
  return number;
}

}  // namespace volley::serve
