#include "serve/files/result_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/file.h"
#include "base/line_reader.h"

namespace volley::serve {
namespace {

Status check_output(int fd, const std::string& path, const std::string& input) {
  struct stat out {
  }, in{};
  if (fstat(fd, &out) != 0 || !S_ISREG(out.st_mode)) {
    return invalid_argument("The output " + path +
                            " is not a regular file: a batch that is to go on after a crash needs one.");
  }
  if (stat(input.c_str(), &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
    return invalid_argument("The output " + path + " is the same file as the input " + input + ": name another one.");
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return invalid_argument("Another run is writing " + path + ": wait for it, or name another output.");
  }
  return {};
}

// A file's name is on the disk only once its folder is synced.
void sync_results_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!fsync(fd);  // some file systems cannot; syncing the lines reports what matters
  close(fd);
}

}  // namespace

Result<ResultFile> ResultFile::open(const std::string& path, const std::string& input) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return invalid_argument("Cannot write " + path + ": " + std::strerror(errno) + ".");
  ResultFile file(fd, path);
  VOLLEY_RETURN_IF_ERROR(check_output(fd, path, input));
  sync_results_folder(path);
  return file;
}

ResultFile::ResultFile(ResultFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      size_(other.size_),
      unsynced_(other.unsynced_),
      last_sync_(other.last_sync_) {}

ResultFile::~ResultFile() {
  if (fd_ >= 0) close(fd_);
}

Result<bool> ResultFile::recover(const std::function<Status(int64_t, std::string_view)>& on_line) {
  VOLLEY_ASSIGN(LineReader reader, LineReader::open(path_, std::numeric_limits<int32_t>::max()));
  LineReader::Line line;
  for (;;) {
    VOLLEY_ASSIGN(const LineReader::State state, reader.next(&line, 1000));
    if (state == LineReader::State::kEnd) return false;
    if (state == LineReader::State::kNotYet) continue;
    const bool whole = line.bytes > static_cast<int64_t>(line.text.size());  // counts the newline
    if (!whole) break;
    VOLLEY_RETURN_IF_ERROR(on_line(line.number, line.text));
    size_ += line.bytes;
  }
  if (ftruncate(fd_, size_) != 0) return write_error(path_);
  return true;
}

Status ResultFile::append(std::string line) {
  line.push_back('\n');
  for (size_t written = 0; written < line.size();) {
    const ssize_t wrote = write(fd_, line.data() + written, line.size() - written);
    if (wrote >= 0) {
      written += static_cast<size_t>(wrote);
    } else if (errno != EINTR) {
      const Error failure = write_error(path_);
      (void)!ftruncate(fd_, size_);  // otherwise the next run removes the torn line
      return failure;
    }
  }
  size_ += static_cast<int64_t>(line.size());
  unsynced_ = true;
  return {};
}

Status ResultFile::sync_if_due() {
  return std::chrono::steady_clock::now() - last_sync_ < kSyncInterval ? Status() : sync();
}

Status ResultFile::sync() {
  last_sync_ = std::chrono::steady_clock::now();
  if (std::exchange(unsynced_, false) && fdatasync(fd_) != 0) return write_error(path_);
  return check_name();
}

// A file without a name still takes lines, but they could never be found.
Status ResultFile::check_name() const {
  struct stat open_file {
  }, named{};
  if (fstat(fd_, &open_file) != 0) return write_error(path_);
  const bool found = stat(path_.c_str(), &named) == 0;
  if (found && named.st_dev == open_file.st_dev && named.st_ino == open_file.st_ino) return {};
  if (!found && errno != ENOENT && errno != ENOTDIR) return {};  // a disk may be away for a moment
  const std::string lost = open_file.st_nlink == 0 ? "The results that were in it are lost: run the same command again."
                                                   : "The results are in the file that was moved: move it back and "
                                                     "run the same command again, which answers the rest.";
  return not_found("The output " + path_ + " was deleted or replaced while the batch was running. " + lost);
}

}  // namespace volley::serve
