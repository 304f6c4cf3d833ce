// A file as read-only memory.
#pragma once

#include <volley/result.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace volley::weights {

// Immutable; any thread. A mapped file must not shrink: the system answers a read past its new end with SIGBUS, which
// ends the process. mapped_file_at() tells a signal handler which file it was.
class MappedFile {
 public:
  // Small files, such as config.json, are read into memory instead of mapped. kNotFound if there is no such file,
  // kInvalidArgument if it is not a regular one or may not be read, kDataLoss if it is a Git LFS pointer.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  bool contains(const std::byte* p) const { return p >= data_ && p < data_ + size_; }

  // Gives back the memory of the pages of `range`, which must lie in bytes(), and of a few around it. They can still be
  // read; the system then loads them from the file again.
  void drop(std::span<const std::byte> range) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size);
  explicit MappedFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::string contents_;             // contents of a file that is not mapped
  const std::byte* data_ = nullptr;  // in contents_ or in the mapping
  size_t size_ = 0;
  bool mapped_ = false;
};

// The path of the mapped file that holds this address, or null. May be called by a signal handler, for a file that is
// not being closed at this moment.
const char* mapped_file_at(const void* address);

}  // namespace volley::weights
