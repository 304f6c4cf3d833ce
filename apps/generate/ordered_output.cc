#include "apps/generate/ordered_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file.h"

namespace volley::apps {
namespace {

// Opening /dev/stdout would give a second position in the same file.
bool is_stdout(const std::string& path) {
  return path == "-" || path == "/dev/stdout";
}

bool is_same_file(const std::string& input, const std::string& output) {
  struct stat in {
  }, out{};
  const bool found = (input == "-" ? fstat(STDIN_FILENO, &in) : stat(input.c_str(), &in)) == 0 &&
                     (is_stdout(output) ? fstat(STDOUT_FILENO, &out) : stat(output.c_str(), &out)) == 0;
  return found && S_ISREG(in.st_mode) && in.st_dev == out.st_dev && in.st_ino == out.st_ino;
}

}  // namespace

Result<OrderedOutput> OrderedOutput::open(const std::string& path, const std::optional<std::string>& input) {
  if (input && is_same_file(*input, path)) {
    return invalid_argument("The output " + path + " is the same file as the input " + *input +
                            ": name another one, or the requests would be lost.");
  }
  if (is_stdout(path)) return OrderedOutput(stdout, "standard output");
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  std::FILE* file = fd < 0 ? nullptr : fdopen(fd, "w");
  if (file == nullptr) return invalid_argument("Cannot write " + path + ": " + std::strerror(errno) + ".");
  return OrderedOutput(file, path);
}

OrderedOutput::OrderedOutput(OrderedOutput&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)),
      name_(std::move(other.name_)),
      begun_(other.begun_),
      next_(other.next_),
      waiting_(std::move(other.waiting_)) {}

OrderedOutput::~OrderedOutput() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

Status OrderedOutput::put(int64_t number, std::string line) {
  waiting_.emplace(number, std::move(line));
  if (waiting_.begin()->first != next_) return {};
  VOLLEY_RETURN_IF_ERROR(drop_old_content());
  errno = 0;
  for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; first = waiting_.begin()) {
    std::fwrite(first->second.data(), 1, first->second.size(), file_);
    std::fputc('\n', file_);
    waiting_.erase(first);
    ++next_;
  }
  // Flushed at once, so that a reader of the file sees each answer immediately.
  if (std::fflush(file_) != 0 || std::ferror(file_) != 0) return write_error(name_);
  return {};
}

Status OrderedOutput::finish() {
  return drop_old_content();
}

// Pipes and terminals have no old content.
Status OrderedOutput::drop_old_content() {
  if (std::exchange(begun_, true) || file_ == stdout) return {};
  struct stat about {};
  if (fstat(fileno(file_), &about) == 0 && S_ISREG(about.st_mode) && ftruncate(fileno(file_), 0) != 0) {
    return write_error(name_);
  }
  return {};
}

}  // namespace volley::apps
