#include "weights/tensor_file.h"

namespace volley::weights {

Result<std::shared_ptr<const TensorFile>> TensorFile::open(const std::string& path, FileAccess access) {
  std::shared_ptr<TensorFile> file(new TensorFile(path));
  if (access == FileAccess::kMap) {
    VOLLEY_ASSIGN(file->mapped_, MappedFile::open(path));
  } else {
    VOLLEY_ASSIGN(OpenFile opened, open_regular_file(path));
    file->file_.emplace(std::move(opened));
  }
  return std::shared_ptr<const TensorFile>(std::move(file));
}

Result<TensorFile::Bytes> TensorFile::read(uint64_t begin, uint64_t end) const {
  const size_t size = end - begin;
  if (mapped_) return Bytes{mapped_->bytes().data() + begin, mapped_};
  const std::shared_ptr<std::byte[]> buffer(new std::byte[size]);
  VOLLEY_ASSIGN(const size_t got, read_at(*file_, begin, buffer.get(), size, path_));
  if (got != size) return data_loss(path_ + " was cut short while it was read: restore it and start again.");
  return Bytes{buffer.get(), buffer};
}

void TensorFile::drop(std::span<const std::byte> range) const {
  if (mapped_ && mapped_->contains(range.data())) mapped_->drop(range);
}

}  // namespace volley::weights
