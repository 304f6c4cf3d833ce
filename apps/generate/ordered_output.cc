#include "apps/generate/ordered_output.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace volley::apps {

Result<OrderedOutput> OrderedOutput::open(const std::string& path) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    return invalid_argument("Cannot write " + path + ": " + std::strerror(errno) + ".");
  }
  return OrderedOutput(file, path);
}

OrderedOutput::OrderedOutput(OrderedOutput&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)),
      path_(std::move(other.path_)),
      next_(other.next_),
      waiting_(std::move(other.waiting_)) {}

OrderedOutput::~OrderedOutput() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

Status OrderedOutput::put(int64_t number, std::string line) {
  waiting_.emplace(number, std::move(line));
  bool wrote = false;
  for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; first = waiting_.begin()) {
    std::fwrite(first->second.data(), 1, first->second.size(), file_);
    std::fputc('\n', file_);
    waiting_.erase(first);
    ++next_;
    wrote = true;
  }
  // Flushed at once: whoever follows the file sees each answer when it is there.
  if (wrote && (std::fflush(file_) != 0 || std::ferror(file_) != 0)) {
    return data_loss("Writing " + path_ + " failed: " + std::strerror(errno) + "; free some space and run again.");
  }
  return {};
}

}  // namespace volley::apps
