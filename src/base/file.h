// Files whose paths a user gives.
#pragma once

#include <volley/result.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace volley {

// An open file; any thread.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;  // -1: no file
};

struct OpenFile {
  FileDescriptor fd;
  size_t bytes;  // its size now
};

// Opens a regular file to read it and never waits, as opening a named pipe would. kNotFound: no such file.
// kInvalidArgument: the path is a folder, a pipe or a device, or is not readable. The message names the path and the
// reason.
Result<OpenFile> open_regular_file(const std::string& path);

// The contents of a regular file of at most `max_bytes`. As above, and kInvalidArgument: it is larger. kDataLoss: the
// disk fails.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

// kDataLoss: `begin`, the first bytes of the file `path`, is a Git LFS pointer, the placeholder for a large file that
// was not fetched. 64 bytes are enough.
Status refuse_lfs_pointer(std::string_view begin, const std::string& path);

// Reads from `offset` on until `data` is full or the file ends, and returns the number of bytes. kDataLoss, with
// `path`: the disk fails.
Result<size_t> read_at(const OpenFile& file, uint64_t offset, void* data, size_t size, const std::string& path);

// The error of a write that has just failed, from errno.
Error write_error(const std::string& where);

}  // namespace volley
