#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace volley {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 30;  // one read() gives less than 2^31

Error open_error(const std::string& path) {
  const int code = errno;
  const std::string message = path + " cannot be opened: " + std::strerror(code) + ".";
  return code == ENOENT || code == ENOTDIR ? not_found(message) : invalid_argument(message);
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a named pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Result<OpenFile> open_regular_file(const std::string& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer before its kind can be seen.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (fd.get() < 0) return open_error(path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return open_error(path);
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(path + " is " + kind_of(info.st_mode) + ": only a regular file can be read here.");
  }
  return OpenFile{std::move(fd), static_cast<size_t>(info.st_size)};
}

Result<size_t> read_at(const OpenFile& file, uint64_t offset, void* data, size_t size, const std::string& path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(file.fd.get(), static_cast<char*>(data) + done, std::min(size - done, kChunkBytes),
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return data_loss(path + " cannot be read: " + std::strerror(errno) + ". Check the disk.");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  VOLLEY_ASSIGN(const OpenFile file, open_regular_file(path));
  const Error too_large =
      invalid_argument(path + " has more than " + std::to_string(max_bytes) + " bytes, the most that are read.");
  if (file.bytes > max_bytes) return too_large;
  // The reported size may be wrong: files under /proc report 0, and another process may be writing.
  std::string contents;
  for (size_t room = file.bytes + 1;; room = std::min(room * 2, max_bytes + 1)) {
    contents.resize(room);
    VOLLEY_ASSIGN(const size_t size, read_at(file, 0, contents.data(), room, path));
    if (size > max_bytes) return too_large;
    if (size < room) {
      contents.resize(size);
      return contents;
    }
  }
}

Status refuse_lfs_pointer(std::string_view begin, const std::string& path) {
  if (!begin.starts_with("version https://git-lfs.github.com/spec/")) return {};
  return data_loss(path + " is a Git LFS pointer, which stands for the file: run `git lfs pull` in its folder, or " +
                   "download the file itself.");
}

Error write_error(const std::string& where) {
  const int code = errno;
  // The error of an earlier write, whose errno is lost.
  const std::string reason = code != 0 ? std::strerror(code) : "an earlier write did not go through";
  const bool full = code == ENOSPC || code == EDQUOT;
  return data_loss("Writing to " + where + " failed: " + reason + (full ? ". Free some space and run again." : "."));
}

}  // namespace volley
