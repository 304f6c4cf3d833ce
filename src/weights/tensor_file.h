// A file of weights, and the bytes of its tensors.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "weights/checkpoint.h"
#include "weights/mapped_file.h"

namespace volley::weights {

// Any thread.
class TensorFile {
 public:
  static Result<std::shared_ptr<const TensorFile>> open(const std::string& path, FileAccess access);

  const std::string& path() const { return path_; }
  size_t size() const { return mapped_ ? mapped_->bytes().size() : file_->bytes; }

  struct Bytes {
    const std::byte* data;
    std::shared_ptr<const void> owner;
  };
  // REQUIRES: begin <= end <= size(). kDataLoss, only with FileAccess::kRead: the file has been cut short.
  Result<Bytes> read(uint64_t begin, uint64_t end) const;
  // As MappedFile::drop, if the bytes belong to this file.
  void drop(std::span<const std::byte> range) const;

 private:
  explicit TensorFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::shared_ptr<const MappedFile> mapped_;  // with kMap
  std::optional<OpenFile> file_;              // with kRead
};

}  // namespace volley::weights
