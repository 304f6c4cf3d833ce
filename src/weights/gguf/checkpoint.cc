// Tensors of a GGUF file under the names of Hugging Face's checkpoints.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/check.h"
#include "gguf/architecture.h"
#include "weights/coded.h"
#include "weights/gguf/blocks.h"
#include "weights/shape_text.h"
#include "weights/tensor_file.h"

namespace volley::weights {
namespace {

using gguf::TensorType;

constexpr int64_t kMaxExperts = 1 << 14;

struct Entry {
  std::shared_ptr<const TensorFile> file;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
  std::optional<CodeFormat> codes = {};  // of a matrix of blocks; without a name and bytes
  int64_t paired_heads = 0;              // heads with rows in pairs (gguf::Architecture::pairs_rows); 0: none
  float minus = 0;                       // subtracted from each value

  gguf::TypeFacts facts() const { return facts_of(type); }
  bool is_built() const { return facts().values > 0; }
  // Elements of a vector in another order than Hugging Face's are treated as rows of one.
  int64_t columns() const { return paired_heads > 0 && shape.size() == 1 ? 1 : shape.back(); }
  uint64_t row_bytes() const {
    return static_cast<uint64_t>(columns() / facts().values) * static_cast<uint64_t>(facts().bytes);
  }
  // The file's index of a row of Hugging Face's.
  int64_t stored_row(int64_t row) const {
    if (paired_heads == 0) return row;
    const int64_t half = shape[0] / paired_heads / 2, within = row % (2 * half);
    return row - within + 2 * (within % half) + within / half;
  }
  // The result of get().
  DType dtype() const {
    if (minus == 0 && type == TensorType::kBF16) return DType::kBF16;
    return minus == 0 && type == TensorType::kF16 ? DType::kF16 : DType::kF32;
  }
  bool is_as_stored() const { return facts().is_plain() && minus == 0 && paired_heads == 0; }
};

int64_t count_of(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

class BlockMatrix final : public CodedMatrix {
 public:
  BlockMatrix(const CodeFormat& format, const Entry& entry, TensorFile::Bytes bytes)
      : CodedMatrix(format, entry.shape[0], entry.shape[1]), entry_(entry), facts_(entry.facts()) {
    const auto size = static_cast<int64_t>(entry.end - entry.begin);
    sources_ = {{bytes.data, DType::kU8, {size}, std::move(bytes.owner)}};
  }

  void read(const Place& place, uint8_t* codes, float* scales, uint8_t*, float* minimums) const override {
    VOLLEY_CHECK(format().code != DType::kF32);
    const std::byte* row = row_at(place.row);
    if (format().code == DType::kF4E2M1) return read_mxfp4(row, place, codes, scales);
    const IntegerBlocks own = *integers_of(entry_.type);
    const int64_t width = facts_.values, group = format().group, last = place.first + place.n;
    const bool from_eight = format().code == DType::kI4 && !own.minimums;
    const int more = from_eight ? 8 : format().code == DType::kI6 ? 32 : 0;
    const float least = from_eight ? -8 : 0;  // of a type without minimums in a format that has them
    int8_t block_codes[kMostBlockValues];
    float block_scales[kMostBlockGroups], block_minimums[kMostBlockGroups];
    for (int64_t begin = 0; begin < columns(); begin += width, row += facts_.bytes) {
      read_integers(entry_.type, row, {block_codes, block_scales, block_minimums});
      for (int64_t i = std::max(begin, place.first); i < std::min(begin + width, last); ++i) {
        codes[i - place.first] = static_cast<uint8_t>(block_codes[i - begin] + more);
      }
      for (int64_t i = 0; i < width; i += group) {
        const int64_t to = (begin + i) / group, from = i / own.group;
        scales[to] = block_scales[from];
        if (format().minimums) {
          minimums[to] = own.minimums ? block_minimums[from] : least * block_scales[from];
        }
      }
    }
  }

  void widen(const Place& place, float* values) const override {
    const std::byte* row = row_at(place.row);
    const int64_t width = facts_.values, first = place.first / width;
    const int64_t blocks = (place.first + place.n + width - 1) / width - first;
    if (place.first % width == 0 && place.n % width == 0) {
      return widen_blocks(entry_.type, row + first * facts_.bytes, blocks, values);
    }
    std::vector<float> whole(static_cast<size_t>(blocks * width));
    widen_blocks(entry_.type, row + first * facts_.bytes, blocks, whole.data());
    std::copy_n(whole.begin() + (place.first - first * width), place.n, values);
  }

 private:
  const std::byte* row_at(int64_t row) const {
    return sources_[0].data + static_cast<uint64_t>(entry_.stored_row(row)) * entry_.row_bytes();
  }
  void read_mxfp4(const std::byte* row, const Place& place, uint8_t* codes, float* scales) const {
    const int64_t width = facts_.values, half = width / 2;
    for (int64_t i = place.first; i < place.first + place.n; ++i) {
      const std::byte* block = row + i / width * facts_.bytes + 1;
      *codes++ = (static_cast<uint8_t>(block[i % half]) >> (i % width / half * 4)) & 0xf;
    }
    for (int64_t g = 0; g < groups(); ++g) {
      scales[g] = std::ldexp(1.0f, static_cast<int>(row[g * facts_.bytes]) - 127);
    }
  }

  Entry entry_;
  gguf::TypeFacts facts_;
};

// Keyed by Hugging Face's names.
using EntryTable = std::map<std::string, Entry, std::less<>>;

class GgufCheckpoint final : public Checkpoint {
 public:
  // files: those that the tensors lie in; the first one names the model in messages.
  GgufCheckpoint(std::vector<std::shared_ptr<const TensorFile>> files, EntryTable entries, FileAccess access)
      : files_(std::move(files)), entries_(std::move(entries)) {
    std::map<TensorType, uint64_t> bytes;
    for (const auto& [name, entry] : entries_) {
      bytes[entry.type] += entry.end - entry.begin;
      takes_memory_ = takes_memory_ || (name == kEmbedding && !entry.codes && !entry.is_as_stored());
    }
    takes_memory_ = takes_memory_ || access == FileAccess::kRead;
    const auto most = [&](bool plain) {
      TensorType best = TensorType::kBF16;
      uint64_t best_bytes = 0;
      for (const auto& [type, count] : bytes) {
        if (gguf::facts_of(type).is_plain() == plain && count > best_bytes) {
          best = type;
          best_bytes = count;
        }
      }
      return std::pair(best, best_bytes);
    };
    if (const auto [type, count] = most(false); count > 0) {
      quantisation_ = gguf::facts_of(type).name;
    } else {
      Entry plain;
      plain.type = most(true).first;
      main_dtype_ = plain.dtype();
    }
  }

  bool has(std::string_view name) const override { return entries_.contains(name); }
  Result<SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    return get_part(name, shape, 0, shape);
  }

  Result<SourceTensor> get_part(std::string_view name, std::span<const int64_t> whole, int64_t first,
                                std::span<const int64_t> shape) const override {
    VOLLEY_RETURN_IF_ERROR(check(name, whole));
    const Entry& entry = entries_.find(name)->second;
    const int64_t count = count_of(shape), columns = entry.columns();
    VOLLEY_CHECK(first >= 0 && count <= count_of(whole) - first);
    SourceTensor tensor{nullptr, entry.dtype(), {shape.begin(), shape.end()}, nullptr};
    const uint64_t size = dtype_size(tensor.dtype);
    if (entry.is_as_stored()) {
      const uint64_t begin = entry.begin + static_cast<uint64_t>(first) * size;
      VOLLEY_ASSIGN(TensorFile::Bytes bytes, entry.file->read(begin, begin + static_cast<uint64_t>(count) * size));
      tensor.data = bytes.data;
      tensor.owner = std::move(bytes.owner);
      return tensor;
    }
    VOLLEY_ASSIGN(const TensorFile::Bytes bytes, entry.file->read(entry.begin, entry.end));
    const std::shared_ptr<std::byte[]> values(new std::byte[static_cast<uint64_t>(count) * size]);
    const bool copies = entry.facts().is_plain() && entry.minus == 0;
    std::vector<float> row(copies ? 0 : static_cast<size_t>(columns));
    for (int64_t done = 0; done < count;) {
      const int64_t at = first + done, in_row = at % columns, n = std::min(columns - in_row, count - done);
      const std::byte* stored = bytes.data + static_cast<uint64_t>(entry.stored_row(at / columns)) * entry.row_bytes();
      if (!copies) {
        gguf_row(entry, stored, row);
        stored = reinterpret_cast<const std::byte*>(row.data());
      }
      std::memcpy(values.get() + static_cast<uint64_t>(done) * size, stored + static_cast<uint64_t>(in_row) * size,
                  static_cast<uint64_t>(n) * size);
      done += n;
    }
    entry.file->drop({bytes.data, entry.end - entry.begin});
    tensor.data = values.get();
    tensor.owner = values;
    return tensor;
  }

  Status check(std::string_view name, std::span<const int64_t> shape) const override {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      return not_found(origin() + " has no tensor for \"" + std::string(name) + "\" (shape " + shape_text(shape) +
                       "): the file is incomplete, or of another architecture than it says.");
    }
    const Entry& entry = found->second;
    const std::string where = entry.file->path() + ": the tensor for \"" + std::string(name) + "\"";
    if (!entry.is_built()) {
      return unimplemented(where + " is stored as " + entry.facts().name +
                           ", which is not built: fetch another quantisation of the model, such as Q4_K_M or Q8_0.");
    }
    if (std::ranges::equal(shape, entry.shape)) return {};
    return failed_precondition(where + " has shape " + shape_text(entry.shape) + ", but the file's metadata ask for " +
                               shape_text(shape) + ".");
  }

  Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const override {
    return check_integers(name, count).error();
  }
  Status check_integers(std::string_view name, int64_t count) const override {
    return not_found(origin() + " has no whole numbers \"" + std::string(name) + "\".");
  }

  std::optional<TensorInfo> info(std::string_view name) const override {
    const auto found = entries_.find(name);
    if (found == entries_.end()) return std::nullopt;
    const Entry& entry = found->second;
    return TensorInfo{entry.facts().name, entry.shape, entry.end - entry.begin};
  }

  Result<std::optional<CodeFormat>> code_format(std::string_view name, std::span<const int64_t> shape) const override {
    const auto found = entries_.find(name);
    if (found == entries_.end() || !found->second.codes) return std::optional<CodeFormat>();
    VOLLEY_RETURN_IF_ERROR(check(name, shape));
    const Entry& entry = found->second;
    CodeFormat format = *entry.codes;
    format.name = entry.facts().name;
    format.bytes = static_cast<int64_t>(entry.end - entry.begin);
    return std::optional(format);
  }

  Result<std::shared_ptr<const CodedMatrix>> coded(std::string_view name,
                                                   std::span<const int64_t> shape) const override {
    VOLLEY_ASSIGN(const std::optional<CodeFormat> format, code_format(name, shape));
    VOLLEY_CHECK_MSG(format.has_value(), std::string(name));
    const Entry& entry = entries_.find(name)->second;
    VOLLEY_ASSIGN(TensorFile::Bytes bytes, entry.file->read(entry.begin, entry.end));
    return std::shared_ptr<const CodedMatrix>(std::make_shared<BlockMatrix>(*format, entry, std::move(bytes)));
  }

  std::string quantisation() const override { return quantisation_; }
  DType main_dtype() const override { return main_dtype_; }
  DType dtype_of(std::string_view name) const override {
    const auto found = entries_.find(name);
    return found == entries_.end() ? DType::kBF16 : found->second.dtype();
  }
  bool takes_memory() const override { return takes_memory_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) names.push_back(name);
    return names;
  }
  std::string origin() const override { return files_.front()->path(); }

  void done_with(const SourceTensor& tensor) const override {
    const auto bytes = static_cast<size_t>(count_of(tensor.shape)) * dtype_size(tensor.dtype);
    for (const auto& file : files_) file->drop({tensor.data, bytes});
  }

 private:
  static constexpr const char* kEmbedding = "model.embed_tokens.weight";

  static void gguf_row(const Entry& entry, const std::byte* stored, std::vector<float>& row) {
    widen_blocks(entry.type, stored, static_cast<int64_t>(row.size()) / entry.facts().values, row.data());
    for (float& value : row) value -= entry.minus;
  }

  const std::vector<std::shared_ptr<const TensorFile>> files_;
  const EntryTable entries_;
  std::string quantisation_;
  DType main_dtype_ = DType::kBF16;
  bool takes_memory_ = false;
};

// The matrices of one product share a name.
std::string product_of(std::string name) {
  for (const auto& [part, product] :
       {std::pair{".q_proj.", ".qkv."}, std::pair{".k_proj.", ".qkv."}, std::pair{".v_proj.", ".qkv."},
        std::pair{".gate_proj.", ".gate_up."}, std::pair{".up_proj.", ".gate_up."}}) {
    if (const size_t at = name.find(part); at != std::string::npos) return name.replace(at, std::strlen(part), product);
  }
  return name;
}

// The format of codes that holds blocks of all these types exactly; kF32 if there is none.
CodeFormat common_format(std::span<const TensorType> types) {
  CodeFormat format = {.code = DType::kF32};
  if (std::ranges::count(types, TensorType::kMXFP4) == std::ssize(types)) {
    format.code = DType::kF4E2M1;
    format.group = 32;
    return format;
  }
  for (const TensorType type : types) {
    const auto integers = integers_of(type);
    if (!integers) return {.code = DType::kF32};
    const auto bits = [](DType code) { return code == DType::kI8 ? 8 : code == DType::kI6 ? 6 : 4; };
    if (format.group == 0 || bits(integers->code) > bits(format.code)) format.code = integers->code;
    format.group = format.group == 0 ? integers->group : std::min(format.group, integers->group);
    format.minimums = format.minimums || integers->minimums;
  }
  return format;
}

// Matrices that one product takes get one format.
void choose_formats(EntryTable& entries) {
  std::map<std::string, std::vector<TensorType>> types;
  for (const auto& [name, entry] : entries) types[product_of(name)].push_back(entry.type);
  for (auto& [name, entry] : entries) {
    if (entry.shape.size() != 2 || !name.ends_with(".weight") || !entry.is_built()) continue;
    const std::vector<TensorType>& together = types[product_of(name)];
    const bool plain = std::ranges::all_of(together, [](TensorType type) { return gguf::facts_of(type).is_plain(); });
    if (!plain) entry.codes = common_format(together);
  }
}

Status add_entry(const gguf::File& file, const gguf::Architecture& architecture, const gguf::Tensor& tensor,
                 const std::shared_ptr<const TensorFile>& bytes, EntryTable& entries) {
  const std::string name = hugging_face_name(architecture, tensor.name);
  Entry entry{bytes, tensor.type, tensor.shape, tensor.begin, tensor.end};
  const auto wrong = [&](const std::string& what) {
    return data_loss(bytes->path() + ": the tensor \"" + tensor.name + "\" " + what + ".");
  };
  if (architecture.pairs_rows) {
    const bool is_q = name.find("self_attn.q_proj.") != std::string::npos;
    if (is_q || name.find("self_attn.k_proj.") != std::string::npos) {
      const std::string key = std::string(architecture.name) + ".attention.head_count";
      const double of_q = file.header().number(key).value_or(0);
      const double heads = is_q ? of_q : file.header().number(key + "_kv").value_or(of_q);
      const auto rows = static_cast<double>(entry.shape[0]);
      if (!(heads >= 1 && heads <= rows) || std::fmod(rows, 2 * heads) != 0) return wrong("has no heads of pairs");
      entry.paired_heads = static_cast<int64_t>(heads);
    }
  }
  if (architecture.norms_hold_one && name.ends_with("norm.weight")) entry.minus = 1;
  const size_t star = name.find('*');
  if (star == std::string::npos || entry.shape.size() != 3) {
    return entries.emplace(name, std::move(entry)).second ? Status() : wrong("is there under another name, too");
  }
  const int64_t experts = entry.shape[0];
  if (experts > kMaxExperts) return wrong("is of " + std::to_string(experts) + " experts");
  const uint64_t size = (tensor.end - tensor.begin) / static_cast<uint64_t>(experts);
  entry.shape.erase(entry.shape.begin());
  for (int64_t i = 0; i < experts; ++i) {
    entry.begin = tensor.begin + static_cast<uint64_t>(i) * size;
    entry.end = entry.begin + size;
    entries.emplace(name.substr(0, star) + std::to_string(i) + name.substr(star + 1), entry);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_gguf(const std::string& path, FileAccess access) {
  VOLLEY_ASSIGN(const gguf::File file, gguf::open_file(path));
  VOLLEY_ASSIGN(const gguf::Architecture* architecture, architecture_of(file));
  EntryTable entries;
  std::vector<std::shared_ptr<const TensorFile>> files;
  for (const gguf::File::Part& part : file.parts) {
    VOLLEY_ASSIGN(const std::shared_ptr<const TensorFile> bytes, TensorFile::open(part.path, access));
    files.push_back(bytes);
    for (const gguf::Tensor& tensor : part.header.tensors()) {
      if (tensor.end > bytes->size()) return data_loss(part.path + " was cut short while it was read: start again.");
      VOLLEY_RETURN_IF_ERROR(add_entry(file, *architecture, tensor, bytes, entries));
    }
  }
  choose_formats(entries);
  return std::unique_ptr<Checkpoint>(std::make_unique<GgufCheckpoint>(std::move(files), std::move(entries), access));
}

}  // namespace volley::weights
