#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "weights/checkpoint.h"
#include "weights/json.h"
#include "weights/mapped_file.h"
#include "weights/safetensors_header.h"
#include "weights/shape_text.h"
#include "weights/tensor_file.h"

namespace volley::weights {
namespace {

using nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// A tensor's place: an entry of a file's header.
struct Located {
  std::shared_ptr<const TensorFile> file;
  HeaderEntry entry;
};
using TensorTable = std::map<std::string, Located, std::less<>>;

std::optional<DType> readable_dtype(std::string_view name) {
  if (name == "BF16") return DType::kBF16;
  if (name == "F16") return DType::kF16;
  if (name == "F32") return DType::kF32;
  return std::nullopt;
}

// Bytes of one element of a dtype that holds whole numbers; 0 for others.
size_t integer_size(std::string_view dtype) {
  if (dtype == "I64") return 8;
  if (dtype == "I32") return 4;
  if (dtype == "U8" || dtype == "BOOL") return 1;
  return 0;
}

int64_t integer_at(const std::byte* data, size_t size, int64_t i) {
  const std::byte* at = data + static_cast<size_t>(i) * size;
  if (size == 1) return static_cast<int64_t>(*at);
  int64_t wide = 0;
  int32_t narrow = 0;
  if (size == 8) {
    std::memcpy(&wide, at, sizeof(wide));
    return wide;
  }
  std::memcpy(&narrow, at, sizeof(narrow));
  return narrow;
}

class SafetensorsCheckpoint final : public Checkpoint {
 public:
  // `origin`: the file that lists the tensors, for messages. files: those that the tensors lie in.
  SafetensorsCheckpoint(std::string origin, std::vector<std::shared_ptr<const TensorFile>> files, TensorTable tensors,
                        FileAccess access)
      : origin_(std::move(origin)),
        access_(access),
        files_(std::move(files)),
        tensors_(std::move(tensors)),
        main_dtype_(most_bytes(tensors_)) {}

  bool has(std::string_view name) const override { return tensors_.find(name) != tensors_.end(); }

  Result<SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    return get_part(name, shape, 0, shape);
  }

  Result<SourceTensor> get_part(std::string_view name, std::span<const int64_t> whole, int64_t first,
                                std::span<const int64_t> shape) const override {
    VOLLEY_RETURN_IF_ERROR(check(name, whole));
    const Located& located = tensors_.find(name)->second;
    const DType dtype = *readable_dtype(located.entry.dtype);
    HeaderEntry entry = located.entry;
    entry.begin += static_cast<size_t>(first) * dtype_size(dtype);
    VOLLEY_CHECK(entry.begin <= entry.end && bytes_of(dtype, shape) <= entry.end - entry.begin);
    entry.end = entry.begin + bytes_of(dtype, shape);
    VOLLEY_ASSIGN(TensorFile::Bytes bytes, located.file->read(entry.begin, entry.end));
    SourceTensor tensor{bytes.data, dtype, {shape.begin(), shape.end()}, std::move(bytes.owner)};
    // Writers pad the header so that tensors are aligned, but the format does not require it.
    if (reinterpret_cast<uintptr_t>(tensor.data) % dtype_size(dtype) != 0) {
      auto copy = std::make_shared<std::vector<std::byte>>(tensor.data, tensor.data + (entry.end - entry.begin));
      tensor.data = copy->data();
      tensor.owner = std::move(copy);
    }
    return tensor;
  }

  Status check(std::string_view name, std::span<const int64_t> shape) const override {
    VOLLEY_ASSIGN(const Located* located, find(name, shape));
    if (readable_dtype(located->entry.dtype)) return check_shape(name, *located, shape);
    return unimplemented(where(name, *located) + " has dtype " + located->entry.dtype +
                         ", which is not built; use a checkpoint in BF16, F16 or F32.");
  }

  Status check_integers(std::string_view name, int64_t count) const override {
    VOLLEY_ASSIGN(const Located* located, find(name, {&count, 1}));
    if (integer_size(located->entry.dtype) > 0) return check_shape(name, *located, {&count, 1});
    return unimplemented(where(name, *located) + " has dtype " + located->entry.dtype +
                         ", but must hold whole numbers: I64, I32, U8 or BOOL.");
  }

  Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const override {
    VOLLEY_RETURN_IF_ERROR(check_integers(name, count));
    const Located& located = tensors_.find(name)->second;
    VOLLEY_ASSIGN(const TensorFile::Bytes bytes, located.file->read(located.entry.begin, located.entry.end));
    std::vector<int64_t> values(static_cast<size_t>(count));
    const size_t size = integer_size(located.entry.dtype);
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = integer_at(bytes.data, size, i);
    return values;
  }

  std::optional<TensorInfo> info(std::string_view name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return std::nullopt;
    const HeaderEntry& entry = found->second.entry;
    return TensorInfo{entry.dtype, entry.shape, entry.end - entry.begin};
  }

  Result<SourceTensor> bytes(std::string_view name, uint64_t first, uint64_t count) const override {
    const auto found = tensors_.find(name);
    VOLLEY_CHECK_MSG(found != tensors_.end(), std::string(name));
    HeaderEntry entry = found->second.entry;
    VOLLEY_CHECK(first <= entry.end - entry.begin && count <= entry.end - entry.begin - first);
    entry.begin += first;
    entry.end = entry.begin + count;
    VOLLEY_ASSIGN(TensorFile::Bytes bytes, found->second.file->read(entry.begin, entry.end));
    return SourceTensor{bytes.data, DType::kU8, {static_cast<int64_t>(count)}, std::move(bytes.owner)};
  }

  bool takes_memory() const override { return access_ == FileAccess::kRead; }
  DType main_dtype() const override { return main_dtype_; }

  DType dtype_of(std::string_view name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return DType::kBF16;
    return readable_dtype(found->second.entry.dtype).value_or(DType::kBF16);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, located] : tensors_) names.push_back(name);
    return names;
  }
  std::string origin() const override { return origin_; }

  void done_with(const SourceTensor& tensor) const override {
    const size_t bytes = bytes_of(tensor.dtype, tensor.shape);
    for (const auto& file : files_) file->drop({tensor.data, bytes});  // a copy ends with its owner
  }

 private:
  static std::string where(std::string_view name, const Located& located) {
    return located.file->path() + ": tensor \"" + std::string(name) + "\"";
  }

  // shape: for the message.
  Result<const Located*> find(std::string_view name, std::span<const int64_t> shape) const {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return &found->second;
    return not_found(origin_ + " has no tensor \"" + std::string(name) + "\" (shape " + shape_text(shape) +
                     "): the checkpoint is incomplete, or of another architecture than its config.json says.");
  }

  static Status check_shape(std::string_view name, const Located& located, std::span<const int64_t> shape) {
    const std::vector<int64_t>& stored = located.entry.shape;
    if (std::equal(shape.begin(), shape.end(), stored.begin(), stored.end())) return {};
    return failed_precondition(where(name, located) + " has shape " + shape_text(stored) +
                               ", but config.json asks for " + shape_text(shape) + ".");
  }

  static DType most_bytes(const TensorTable& tensors) {
    std::map<DType, uint64_t> bytes;
    for (const auto& [name, located] : tensors) {
      if (const auto dtype = readable_dtype(located.entry.dtype)) {
        bytes[*dtype] += located.entry.end - located.entry.begin;
      }
    }
    DType best = DType::kBF16;
    for (const auto& [dtype, count] : bytes) {
      if (count > bytes[best]) best = dtype;
    }
    return best;
  }

  static size_t bytes_of(DType dtype, std::span<const int64_t> shape) {
    size_t bytes = dtype_size(dtype);
    for (const int64_t dim : shape) bytes *= static_cast<size_t>(dim);
    return bytes;
  }

  const std::string origin_;
  const FileAccess access_;
  const std::vector<std::shared_ptr<const TensorFile>> files_;
  const TensorTable tensors_;
  const DType main_dtype_;
};

Result<SafetensorsHeader> read_header(const TensorFile& file) {
  const uint64_t prefix = std::min<uint64_t>(64, file.size());
  VOLLEY_ASSIGN(TensorFile::Bytes begin, file.read(0, prefix));
  VOLLEY_RETURN_IF_ERROR(refuse_lfs_pointer({reinterpret_cast<const char*>(begin.data), prefix}, file.path()));
  VOLLEY_ASSIGN(const uint64_t end, header_end({begin.data, prefix}, file.size(), file.path()));
  VOLLEY_ASSIGN(begin, file.read(0, end));
  return parse_safetensors_header({begin.data, end}, file.size(), file.path());
}

Result<std::unique_ptr<Checkpoint>> open_single(const std::string& path, FileAccess access) {
  VOLLEY_ASSIGN(const std::shared_ptr<const TensorFile> file, TensorFile::open(path, access));
  VOLLEY_ASSIGN(SafetensorsHeader header, read_header(*file));
  TensorTable tensors;
  for (auto& [name, entry] : header) tensors.emplace(name, Located{file, std::move(entry)});
  return std::unique_ptr<Checkpoint>(
      std::make_unique<SafetensorsCheckpoint>(path, std::vector{file}, std::move(tensors), access));
}

// A shard is named by the index, which came with the checkpoint: it must not reach outside the folder.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

Result<std::map<std::string, std::string>> read_weight_map(const std::string& index_path) {
  VOLLEY_ASSIGN(const std::shared_ptr<const MappedFile> file, MappedFile::open(index_path));
  if (file->bytes().size() > kMaxHeaderBytes) return data_loss(index_path + " is too large for an index.");
  VOLLEY_ASSIGN(const json index, parse_json_object(file->bytes(), index_path));
  if (!index.contains("weight_map") || !index["weight_map"].is_object() || index["weight_map"].empty()) {
    return data_loss(index_path + " has no \"weight_map\" from tensor names to files.");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      return data_loss(index_path + ": tensor \"" + name +
                       "\" is not mapped to the plain name of a file in this folder.");
    }
    shard_of.emplace(name, shard.get<std::string>());
  }
  return shard_of;
}

struct Shard {
  std::shared_ptr<const TensorFile> file;
  SafetensorsHeader header;
};

Result<Shard> open_shard(const std::string& dir, const std::string& name, FileAccess access) {
  Result<std::shared_ptr<const TensorFile>> opened = TensorFile::open(dir + "/" + name, access);
  if (!opened.ok() && opened.error().code == ErrorCode::kNotFound) {
    return not_found(dir + " lacks " + name + ", which " + kIndexFile + " names: the download is incomplete.");
  }
  if (!opened.ok()) return opened.error();
  VOLLEY_ASSIGN(SafetensorsHeader header, read_header(**opened));
  return Shard{*std::move(opened), std::move(header)};
}

// The index says which files are shards, and which shard's copy of a tensor is used. The shards' headers say where
// tensors are: some indices name tensors that were left out of the shards, or lie elsewhere.
Result<std::unique_ptr<Checkpoint>> open_sharded(const std::string& dir, const std::string& index_path,
                                                 FileAccess access) {
  VOLLEY_ASSIGN(const auto shard_of, read_weight_map(index_path));
  std::map<std::string, Shard> shards;
  for (const auto& [name, shard] : shard_of) {
    if (shards.contains(shard)) continue;
    VOLLEY_ASSIGN(Shard opened, open_shard(dir, shard, access));
    shards.emplace(shard, std::move(opened));
  }
  std::vector<std::shared_ptr<const TensorFile>> files;
  TensorTable tensors;
  for (auto& [shard, opened] : shards) {
    files.push_back(opened.file);
    for (auto& [name, entry] : opened.header) {
      const auto named = shard_of.find(name);
      const bool elsewhere = named != shard_of.end() && named->second != shard;
      if (elsewhere && shards.at(named->second).header.contains(name)) continue;
      const auto [place, is_new] = tensors.try_emplace(name, Located{opened.file, std::move(entry)});
      if (is_new) continue;
      return data_loss(index_path + " does not say which tensor \"" + name +
                       "\" counts: " + place->second.file->path() + " and " + opened.file->path() + " both hold one.");
    }
  }
  return std::unique_ptr<Checkpoint>(
      std::make_unique<SafetensorsCheckpoint>(index_path, std::move(files), std::move(tensors), access));
}

// True also if the kind of the path cannot be determined: opening it then reports why.
bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& model, FileAccess access) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(model, ignored) ? open_gguf(model, access) : open_safetensors(model, access);
}

Result<std::unique_ptr<Checkpoint>> open_safetensors(const std::string& dir, FileAccess access) {
  const std::string single = dir + "/" + kSingleFile;
  const std::string index = dir + "/" + kIndexFile;
  if (exists(single)) return open_single(single, access);
  if (exists(index)) return open_sharded(dir, index, access);
  if (!exists(dir)) return not_found("There is no folder " + dir + ".");
  return not_found(dir + " holds neither " + kSingleFile + " nor " + kIndexFile +
                   ": give the folder of a Hugging Face checkpoint in safetensors form.");
}

}  // namespace volley::weights
