#include "weights/tensor_file.h"

#include <array>

namespace volley::weights {
namespace {

Result<SafetensorsHeader> read_header(const OpenFile& file, const std::string& path) {
  std::array<std::byte, 8> prefix{};
  VOLLEY_ASSIGN(const size_t size, read_at(file, 0, prefix.data(), prefix.size(), path));
  VOLLEY_ASSIGN(const uint64_t end, header_end(std::span(prefix).first(size), file.bytes, path));
  std::vector<std::byte> begin(end);
  VOLLEY_ASSIGN(const size_t got, read_at(file, 0, begin.data(), begin.size(), path));
  if (got != begin.size()) return data_loss(path + " was cut short while it was read: start again.");
  return parse_safetensors_header(begin, file.bytes, path);
}

}  // namespace

Result<std::unique_ptr<TensorFile>> TensorFile::open(const std::string& path, FileAccess access) {
  std::unique_ptr<TensorFile> file(new TensorFile(path));
  if (access == FileAccess::kMap) {
    VOLLEY_ASSIGN(file->mapped_, MappedFile::open(path));
    VOLLEY_ASSIGN(file->header_, parse_safetensors_header(file->mapped_->bytes(), path));
  } else {
    VOLLEY_ASSIGN(OpenFile opened, open_regular_file(path));
    VOLLEY_ASSIGN(file->header_, read_header(opened, path));
    file->file_.emplace(std::move(opened));
  }
  return file;
}

Result<TensorFile::Bytes> TensorFile::read(const HeaderEntry& entry) const {
  const size_t size = entry.end - entry.begin;
  if (mapped_) return Bytes{mapped_->bytes().data() + entry.begin, mapped_};
  const std::shared_ptr<std::byte[]> buffer(new std::byte[size]);
  VOLLEY_ASSIGN(const size_t got, read_at(*file_, entry.begin, buffer.get(), size, path_));
  if (got != size) return data_loss(path_ + " was cut short while it was read: restore it and start again.");
  return Bytes{buffer.get(), buffer};
}

void TensorFile::drop(std::span<const std::byte> range) const {
  if (mapped_ && mapped_->contains(range.data())) mapped_->drop(range);
}

}  // namespace volley::weights
