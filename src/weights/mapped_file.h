// A file as read-only memory.
#pragma once

#include <volley/result.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace volley::weights {

// Immutable; any thread. The file must not shrink while it is mapped: the system would answer a read past its new end
// with SIGBUS.
class MappedFile {
 public:
  // kNotFound if there is no such file, kInvalidArgument if it is not a regular one or may not be read.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  bool contains(const std::byte* p) const { return p >= data_ && p < data_ + size_; }

  // The whole pages inside `range`, which must lie in bytes(), will not be read again soon: their memory is given back.
  // They can still be read, and come from the file again.
  void drop(std::span<const std::byte> range) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const std::byte* data_;  // nullptr for an empty file
  size_t size_;
};

}  // namespace volley::weights
