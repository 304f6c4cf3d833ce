// A safetensors file whose header was checked, and the bytes of its tensors.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "weights/checkpoint.h"
#include "weights/mapped_file.h"
#include "weights/safetensors_header.h"

namespace volley::weights {

// Any thread, but for take_header().
class TensorFile {
 public:
  static Result<std::unique_ptr<TensorFile>> open(const std::string& path, FileAccess access);

  const std::string& path() const { return path_; }
  SafetensorsHeader take_header() { return std::move(header_); }

  struct Bytes {
    const std::byte* data;
    std::shared_ptr<const void> owner;
  };
  // REQUIRES: an entry of the header. kDataLoss, with FileAccess::kRead alone: the file has been cut short.
  Result<Bytes> read(const HeaderEntry& entry) const;
  // As MappedFile::drop, if it is these bytes' file.
  void drop(std::span<const std::byte> range) const;

 private:
  explicit TensorFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  SafetensorsHeader header_;
  std::shared_ptr<const MappedFile> mapped_;  // with kMap
  std::optional<OpenFile> file_;              // with kRead
};

}  // namespace volley::weights
