// Tensors of a GGUF file under the names of Hugging Face's checkpoints.
#include <algorithm>
#include <array>
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

struct Entry {
  std::shared_ptr<const TensorFile> file;
  TensorType type = TensorType::kF32;
  gguf::Place place;
  std::optional<CodeFormat> codes = {};  // of a matrix of blocks; without a name and bytes
  // Set where two tensors of a matrix for each head make one matrix: the first rows of a head are the columns of the
  // first tensor's matrix, the others the rows of the second's.
  std::shared_ptr<const std::array<Entry, 2>> halves = {};

  gguf::TypeFacts facts() const { return facts_of(type); }
  bool is_built() const { return facts().is_plain() || (facts().values > 0 && !is_vector_in_order()); }
  uint64_t bytes() const { return place.end - place.begin; }
  bool is_vector_in_order() const { return place.shape.size() == 1 && (!place.rows.is_plain() || place.first_row > 0); }
  // Elements of a vector in another order than Hugging Face's are treated as rows of one.
  int64_t columns() const { return is_vector_in_order() ? 1 : place.shape.back(); }
  uint64_t row_bytes() const {
    return static_cast<uint64_t>(columns() / facts().values) * static_cast<uint64_t>(facts().bytes);
  }
  // Where a row of Hugging Face's begins, from the tensor's begin on.
  uint64_t row_at(int64_t row) const { return static_cast<uint64_t>(place.rows(place.first_row + row)) * row_bytes(); }
  bool is_copied() const {
    return facts().is_plain() && place.change == gguf::Change::kNone && place.columns.is_plain();
  }
  // The result of get().
  DType dtype() const {
    if (is_copied() && type == TensorType::kBF16) return DType::kBF16;
    return is_copied() && type == TensorType::kF16 ? DType::kF16 : DType::kF32;
  }
  bool is_as_stored() const { return !halves && is_copied() && place.rows.is_plain() && place.first_row == 0; }
};

// The values of a row's columns [first, first + n), which are `values.size()`.
void read_row(const Entry& entry, const std::byte* row, int64_t first, std::span<float> values) {
  const gguf::TypeFacts facts = entry.facts();
  const gguf::Order& order = entry.place.columns;
  const auto n = static_cast<int64_t>(values.size());
  const int64_t width = facts.values, columns = entry.columns();
  const int64_t begin = order.is_plain() ? first / width : 0;
  const int64_t end = order.is_plain() ? (first + n + width - 1) / width : columns / width;
  if (order.is_plain() && first % width == 0 && n % width == 0) {
    widen_blocks(entry.type, row + begin * facts.bytes, end - begin, values.data());
  } else {
    std::vector<float> whole(static_cast<size_t>((end - begin) * width));
    widen_blocks(entry.type, row + begin * facts.bytes, end - begin, whole.data());
    for (int64_t i = 0; i < n; ++i) values[i] = whole[order(first + i) - begin * width];
  }
  for (float& value : values) {
    if (entry.place.change == gguf::Change::kPlusOne) value -= 1;
    if (entry.place.change == gguf::Change::kMinusExp) value = std::log(-value);
  }
}

// Copies `count` values from `first` on, in the order of rows. REQUIRES: entry.halves.
Status read_halves(const Entry& entry, int64_t first, int64_t count, float* values) {
  const auto& [k, v] = *entry.halves;
  const int64_t width = entry.columns(), keys = k.place.shape[2], each = keys + v.place.shape[1];
  VOLLEY_ASSIGN(const TensorFile::Bytes k_bytes, k.file->read(k.place.begin, k.place.end));
  VOLLEY_ASSIGN(const TensorFile::Bytes v_bytes, v.file->read(v.place.begin, v.place.end));
  std::vector<float> turned(static_cast<size_t>(width * keys)), row(static_cast<size_t>(width));
  for (int64_t at = first, head = -1; at < first + count;) {
    const int64_t r = at / width, n = std::min(width - at % width, first + count - at), in_head = r % each;
    if (in_head < keys && head != r / each) {
      head = r / each;
      for (int64_t i = 0; i < width; ++i) {
        read_row(k, k_bytes.data + k.row_at(head * width + i), 0, std::span(turned).subspan(i * keys, keys));
      }
    }
    if (in_head < keys) {
      for (int64_t i = 0; i < width; ++i) row[i] = turned[i * keys + in_head];
    } else {
      read_row(v, v_bytes.data + v.row_at(r / each * v.place.shape[1] + in_head - keys), 0, row);
    }
    std::copy_n(row.begin() + at % width, n, values + at - first);
    at += n;
  }
  k.file->drop({k_bytes.data, k.bytes()});
  v.file->drop({v_bytes.data, v.bytes()});
  return {};
}

int64_t count_of(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

class BlockMatrix final : public CodedMatrix {
 public:
  BlockMatrix(const CodeFormat& format, const Entry& entry, TensorFile::Bytes bytes)
      : CodedMatrix(format, entry.place.shape[0], entry.place.shape[1]), entry_(entry), facts_(entry.facts()) {
    const auto size = static_cast<int64_t>(entry.bytes());
    sources_ = {{bytes.data, DType::kU8, {size}, std::move(bytes.owner)}};
  }

  void read(const Place& place, uint8_t* codes, float* scales, uint8_t*, float* minimums) const override {
    VOLLEY_CHECK(format().code != DType::kF32);
    const std::byte* block = row_at(place.row);
    const gguf::Order from_stored = entry_.place.columns.inverse();
    const int64_t width = facts_.values, group = format().group, last = place.first + place.n;
    if (entry_.place.columns.is_plain() && place.n == columns() && group == own_group()) {
      return read_blocks(block, columns() / width, {codes, scales, minimums});
    }
    Block values;
    for (int64_t begin = 0; begin < columns(); begin += width, block += facts_.bytes) {
      read_blocks(block, 1, {values.codes, values.scales, values.minimums});
      for (int64_t i = 0; i < width; i += group) {
        const int64_t to = from_stored(begin + i), g = i / own_group();
        scales[to / group] = values.scales[g];
        if (format().minimums) minimums[to / group] = values.minimums[g];
        const int64_t at = std::max(to, place.first), end = std::min(to + group, last);
        if (at < end) std::memcpy(codes + at - place.first, values.codes + i + at - to, static_cast<size_t>(end - at));
      }
    }
  }

  void widen(const Place& place, float* values) const override {
    read_row(entry_, row_at(place.row), place.first, {values, static_cast<size_t>(place.n)});
  }

 private:
  struct Block {
    uint8_t codes[kMostBlockValues];
    float scales[kMostBlockGroups], minimums[kMostBlockGroups];
  };

  const std::byte* row_at(int64_t row) const { return sources_[0].data + entry_.row_at(row); }

  int64_t own_group() const { return own_ ? own_->group : facts_.values; }  // values that share a scale

  // As CodedMatrix::read() gives them, for each group of their own. to.minimums may be null where the format has none.
  void read_blocks(const std::byte* blocks, int64_t count, const Integers& to) const {
    const int64_t values = count * facts_.values;
    if (entry_.type == TensorType::kMXFP4) {
      const int64_t width = facts_.values, half = width / 2;
      for (int64_t i = 0; i < values; ++i) {
        const std::byte* block = blocks + i / width * facts_.bytes;
        to.codes[i] = (static_cast<uint8_t>(block[1 + i % half]) >> (i % width / half * 4)) & 0xf;
        if (i % width == 0) to.scales[i / width] = std::ldexp(1.0f, static_cast<int>(block[0]) - 127);
      }
      return;
    }
    read_integers(entry_.type, blocks, count, to);
    const bool nibbles = format().code == DType::kI4;  // they count from the same zero, or it becomes a minimum
    if (const int more = nibbles ? 0 : (format().code == DType::kI6 ? 32 : 0) - own_->zero; more != 0) {
      for (int64_t i = 0; i < values; ++i) to.codes[i] = static_cast<uint8_t>(to.codes[i] + more);
    }
    if (own_->minimums || !format().minimums) return;
    const auto least = static_cast<float>(nibbles ? -own_->zero : 0);
    for (int64_t g = 0; g < values / own_group(); ++g) to.minimums[g] = least * to.scales[g];
  }

  Entry entry_;
  gguf::TypeFacts facts_;
  std::optional<IntegerBlocks> own_ = integers_of(entry_.type);
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
      bytes[entry.type] += entry.bytes();
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
      const uint64_t begin = entry.place.begin + static_cast<uint64_t>(first) * size;
      VOLLEY_ASSIGN(TensorFile::Bytes bytes, entry.file->read(begin, begin + static_cast<uint64_t>(count) * size));
      tensor.data = bytes.data;
      tensor.owner = std::move(bytes.owner);
      return tensor;
    }
    const std::shared_ptr<std::byte[]> values(new std::byte[static_cast<uint64_t>(count) * size]);
    tensor.data = values.get();
    tensor.owner = values;
    if (entry.halves) {
      VOLLEY_RETURN_IF_ERROR(read_halves(entry, first, count, reinterpret_cast<float*>(values.get())));
      return tensor;
    }
    VOLLEY_ASSIGN(const TensorFile::Bytes bytes, entry.file->read(entry.place.begin, entry.place.end));
    std::vector<float> part(entry.is_copied() ? 0 : static_cast<size_t>(columns));
    for (int64_t done = 0; done < count;) {
      const int64_t at = first + done, in_row = at % columns, n = std::min(columns - in_row, count - done);
      const std::byte* from = bytes.data + entry.row_at(at / columns) + static_cast<uint64_t>(in_row) * size;
      if (!entry.is_copied()) {
        read_row(entry, bytes.data + entry.row_at(at / columns), in_row, std::span(part).first(n));
        from = reinterpret_cast<const std::byte*>(part.data());
      }
      std::memcpy(values.get() + static_cast<uint64_t>(done) * size, from, static_cast<uint64_t>(n) * size);
      done += n;
    }
    entry.file->drop({bytes.data, entry.bytes()});
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
    if (std::ranges::equal(shape, entry.place.shape)) return {};
    return failed_precondition(where + " has shape " + shape_text(entry.place.shape) +
                               ", but the file's metadata ask for " + shape_text(shape) + ".");
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
    return TensorInfo{entry.facts().name, entry.place.shape, entry.bytes()};
  }

  Result<std::optional<CodeFormat>> code_format(std::string_view name, std::span<const int64_t> shape) const override {
    const auto found = entries_.find(name);
    if (found == entries_.end() || !found->second.codes) return std::optional<CodeFormat>();
    VOLLEY_RETURN_IF_ERROR(check(name, shape));
    const Entry& entry = found->second;
    CodeFormat format = *entry.codes;
    format.name = entry.facts().name;
    format.bytes = static_cast<int64_t>(entry.bytes());
    return std::optional(format);
  }

  Result<std::shared_ptr<const CodedMatrix>> coded(std::string_view name,
                                                   std::span<const int64_t> shape) const override {
    VOLLEY_ASSIGN(const std::optional<CodeFormat> format, code_format(name, shape));
    VOLLEY_CHECK_MSG(format.has_value(), std::string(name));
    const Entry& entry = entries_.find(name)->second;
    VOLLEY_ASSIGN(TensorFile::Bytes bytes, entry.file->read(entry.place.begin, entry.place.end));
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

  const std::vector<std::shared_ptr<const TensorFile>> files_;
  const EntryTable entries_;
  std::string quantisation_;
  DType main_dtype_ = DType::kBF16;
  bool takes_memory_ = false;
};

// kv_b_proj, which newer files hold in two: k_b_proj [heads, width, keys] and v_b_proj [heads, values, width].
Status join_latents(EntryTable& entries, const std::string& path) {
  constexpr std::string_view kFirst = "k_b_proj.weight";
  constexpr int64_t kMost = 1 << 24;  // of a head; types that are not built have no bytes that bound them
  for (auto next = entries.begin(); next != entries.end();) {
    const auto k = next++;
    if (!k->first.ends_with(".k_b_proj.weight")) continue;
    const std::string folder = k->first.substr(0, k->first.size() - kFirst.size());
    const auto v = entries.find(folder + "v_b_proj.weight");
    const std::vector<int64_t> keys = k->second.place.shape;
    const std::vector<int64_t> values = v == entries.end() ? std::vector<int64_t>() : v->second.place.shape;
    if (keys.size() != 3 || values.size() != 3 || values[0] != keys[0] || values[2] != keys[1] || keys[2] > kMost ||
        values[1] > kMost) {
      return data_loss(path + ": the tensor for \"" + k->first +
                       "\" has no other half that fits: the file is damaged.");
    }
    Entry both{k->second.file, TensorType::kF32, k->second.place};
    both.place.shape = {keys[0] * (keys[2] + values[1]), keys[1]};
    both.halves = std::make_shared<const std::array<Entry, 2>>(std::array{k->second, v->second});
    for (const Entry& half : *both.halves) {
      if (!half.is_built()) both.type = half.type;
    }
    if (next == v) ++next;
    entries.erase(k);
    entries.erase(v);
    entries.insert_or_assign(folder + "kv_b_proj.weight", std::move(both));
  }
  return {};
}

// The matrices of one product share a name.
std::string product_of(std::string name) {
  for (const auto& [part, product] :
       {std::pair{".q_proj.", ".qkv."}, std::pair{".k_proj.", ".qkv."}, std::pair{".v_proj.", ".qkv."},
        std::pair{".gate_proj.", ".gate_up."}, std::pair{".up_proj.", ".gate_up."},
        std::pair{".in_proj_qkv.", ".in_proj."}, std::pair{".in_proj_z.", ".in_proj."},
        std::pair{".in_proj_b.", ".in_proj_ba."}, std::pair{".in_proj_a.", ".in_proj_ba."}}) {
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
    format.halves = (format.group == 0 || format.halves) && integers->halves;
    if (format.group == 0 || bits(integers->code) > bits(format.code)) format.code = integers->code;
    format.group = format.group == 0 ? integers->group : std::min(format.group, integers->group);
    format.minimums = format.minimums || integers->minimums;
  }
  return format;
}

// Matrices that one product takes get one format. Where columns are in another order, groups must keep together.
void choose_formats(EntryTable& entries) {
  std::map<std::string, std::vector<TensorType>> types;
  for (const auto& [name, entry] : entries) types[product_of(name)].push_back(entry.type);
  for (auto& [name, entry] : entries) {
    const gguf::Place& place = entry.place;
    if (place.shape.size() != 2 || !name.ends_with(".weight") || !entry.is_built()) continue;
    const std::vector<TensorType>& together = types[product_of(name)];
    const bool plain = std::ranges::all_of(together, [](TensorType type) { return gguf::facts_of(type).is_plain(); });
    if (plain) continue;
    entry.codes = common_format(together);
    if (entry.codes->group > 0 && !place.columns.is_plain() && place.columns.c % entry.codes->group != 0) {
      entry.codes = {.code = DType::kF32};
    }
  }
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
      VOLLEY_ASSIGN(std::vector<gguf::Place> places, places_of(file, *architecture, tensor));
      for (gguf::Place& place : places) {
        const std::string name = place.name;
        if (entries.emplace(name, Entry{bytes, tensor.type, std::move(place)}).second) continue;
        return data_loss(part.path + ": the tensor \"" + tensor.name +
                         "\" is there under another name, too: the file is damaged.");
      }
    }
  }
  VOLLEY_RETURN_IF_ERROR(join_latents(entries, path));
  choose_formats(entries);
  return std::unique_ptr<Checkpoint>(std::make_unique<GgufCheckpoint>(std::move(files), std::move(entries), access));
}

}  // namespace volley::weights
