#include "gguf/header.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>

#include "base/file.h"

namespace volley::gguf {

static_assert(std::endian::native == std::endian::little, "values are used as they lie in the file");

namespace {

constexpr uint32_t kVersion = 3;
// Bounds that no model comes near.
constexpr uint64_t kMaxValues = 1 << 16, kMaxTensors = 1 << 18, kMaxNameBytes = 1 << 16;
constexpr uint32_t kMaxRank = 4;
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = 1 << 20;
constexpr uint64_t kMaxParts = 1000;

struct KnownType {
  TensorType type;
  TypeFacts facts;
};
const std::array<KnownType, 12> kTypes = {{{TensorType::kF32, {"F32", 1, 4}},
                                           {TensorType::kF16, {"F16", 1, 2}},
                                           {TensorType::kBF16, {"BF16", 1, 2}},
                                           {TensorType::kQ4_0, {"Q4_0", 32, 18}},
                                           {TensorType::kQ4_1, {"Q4_1", 32, 20}},
                                           {TensorType::kQ5_0, {"Q5_0", 32, 22}},
                                           {TensorType::kQ5_1, {"Q5_1", 32, 24}},
                                           {TensorType::kQ8_0, {"Q8_0", 32, 34}},
                                           {TensorType::kQ4_K, {"Q4_K", 256, 144}},
                                           {TensorType::kQ5_K, {"Q5_K", 256, 176}},
                                           {TensorType::kQ6_K, {"Q6_K", 256, 210}},
                                           {TensorType::kMXFP4, {"MXFP4", 32, 17}}}};
// Names alone, for messages.
struct OtherType {
  uint32_t type;
  const char* name;
};
constexpr OtherType kOtherTypes[] = {
    {9, "Q8_1"},   {10, "Q2_K"},   {11, "Q3_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},
    {26, "I32"},   {27, "I64"},    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},
};

}  // namespace

TypeFacts facts_of(TensorType type) {
  for (const KnownType& known : kTypes) {
    if (known.type == type) return known.facts;
  }
  for (const OtherType& other : kOtherTypes) {
    if (other.type == static_cast<uint32_t>(type)) return {other.name};
  }
  return {"number " + std::to_string(static_cast<uint32_t>(type))};
}

// Reads through the bytes once. After the first error, or where bytes are missing, every function returns zeros.
class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> begin, uint64_t file_bytes, const std::string& path)
      : begin_(begin), file_bytes_(file_bytes), path_(path) {}

  Result<std::optional<Header>> parse() {
    VOLLEY_RETURN_IF_ERROR(check_magic());
    const uint64_t tensors = number<uint64_t>(), values = number<uint64_t>();
    if (tensors > kMaxTensors) fail("says that it has " + std::to_string(tensors) + " tensors: it is damaged");
    if (values > kMaxValues) fail("says that it has " + std::to_string(values) + " values: it is damaged");
    for (uint64_t i = 0; i < values && going(); ++i) read_value();
    for (uint64_t i = 0; i < tensors && going(); ++i) read_tensor();
    if (error_) return *error_;
    if (incomplete_) return std::optional<Header>();
    place_tensors();
    if (error_) return *error_;
    return std::optional(std::move(header_));
  }

 private:
  using Kind = Header::Kind;

  bool going() const { return !error_ && !incomplete_; }
  void fail(const std::string& what) {
    if (going()) error_ = data_loss(path_ + " " + what + ".");
  }

  Status check_magic() {
    constexpr std::string_view kMagic = "GGUF";
    const std::string_view text(reinterpret_cast<const char*>(begin_.data()), std::min<size_t>(begin_.size(), 64));
    VOLLEY_RETURN_IF_ERROR(refuse_lfs_pointer(text, path_));
    if (!text.starts_with(kMagic)) {
      return invalid_argument(path_ +
                              " is a file, not a folder, and no GGUF file, as it does not begin with \"GGUF\": name a "
                              "GGUF file, or the Hugging Face folder of a model.");
    }
    take(kMagic.size());
    const auto version = number<uint32_t>();
    if (!going()) return {};  // the error names the reason: the file ends
    if ((version & 0xffff) == 0) {
      return unimplemented(path_ + " is a GGUF file for big-endian machines: fetch or convert one for little-endian.");
    }
    if (version == kVersion) return {};
    return unimplemented(path_ + " is a GGUF file of version " + std::to_string(version) + ", but " +
                         std::to_string(kVersion) + " is what is built: " +
                         (version < kVersion ? "convert the model again, or fetch a newer file."
                                             : "use a file that an older llama.cpp can read, too."));
  }

  // The next `n` bytes; null if there are fewer.
  const std::byte* take(uint64_t n) {
    if (!going()) return nullptr;
    if (n > file_bytes_ - at_) {
      fail("ends in its header: it was cut off or is damaged, so fetch it again");
      return nullptr;
    }
    if (n > begin_.size() - at_) {
      incomplete_ = true;
      return nullptr;
    }
    const std::byte* data = begin_.data() + at_;
    at_ += n;
    return data;
  }
  template <typename T>
  T number() {
    T value = 0;
    if (const std::byte* data = take(sizeof(T))) std::memcpy(&value, data, sizeof(T));
    return value;
  }
  std::string name() {
    const auto bytes = number<uint64_t>();
    if (bytes > kMaxNameBytes) fail("has a name of " + std::to_string(bytes) + " bytes: it is damaged");
    const std::byte* data = take(bytes);
    return data != nullptr ? std::string(reinterpret_cast<const char*>(data), bytes) : std::string();
  }

  Kind kind(const std::string& key) {
    const auto kind = number<uint32_t>();
    if (kind > static_cast<uint32_t>(Kind::kF64)) {
      fail("has a value \"" + key + "\" of the unknown type " + std::to_string(kind) + ": it is damaged");
    }
    return static_cast<Kind>(kind);
  }

  void read_value() {
    const std::string key = name();
    Header::Value value;
    value.kind = kind(key);
    value.is_array = value.kind == Kind::kArray;
    if (value.is_array) {
      value.kind = kind(key);
      if (value.kind == Kind::kArray) fail("has arrays in the array \"" + key + "\", which no model needs");
      value.count = number<uint64_t>();
    }
    if (!going()) return;
    value.data = begin_.data() + at_;
    const size_t size = Header::size_of(value.kind);
    if (size > 0) {
      // If an array claims more elements than the file has bytes, not even its memory is requested.
      take(value.count > file_bytes_ ? UINT64_MAX : value.count * size);
    } else {
      for (uint64_t i = 0; i < value.count && going(); ++i) take(number<uint64_t>());
    }
    if (going() && !header_.values_.emplace(key, value).second) fail("has the value \"" + key + "\" twice");
  }

  void read_tensor() {
    Tensor tensor;
    tensor.name = name();
    const auto rank = number<uint32_t>();
    if (rank == 0 || rank > kMaxRank) fail(of(tensor) + "has " + std::to_string(rank) + " dimensions");
    for (uint32_t i = 0; i < rank && going(); ++i) {
      const auto dim = number<uint64_t>();
      if (going() && (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX))) {
        fail(of(tensor) + "has a dimension of " + std::to_string(dim));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
    }
    tensor.type = static_cast<TensorType>(number<uint32_t>());
    tensor.begin = number<uint64_t>();
    if (going() && !names_.insert(tensor.name).second) fail(of(tensor) + "is there twice");
    if (going()) header_.tensors_.push_back(std::move(tensor));
  }

  // Turns offsets into checked positions in the file.
  void place_tensors() {
    const double stated = header_.number("general.alignment").value_or(kDefaultAlignment);
    const auto alignment = stated >= 8 && stated <= kMaxAlignment ? static_cast<uint64_t>(stated) : 0;
    if (!std::has_single_bit(alignment)) {
      return fail("has a general.alignment that is no power of two from 8 to " + std::to_string(kMaxAlignment));
    }
    const uint64_t data = (at_ + alignment - 1) / alignment * alignment;
    for (Tensor& tensor : header_.tensors_) {
      if (tensor.begin % alignment != 0) {
        return fail(of(tensor) + "begins at " + std::to_string(tensor.begin) + ", which is no multiple of the " +
                    std::to_string(alignment) + " bytes of general.alignment");
      }
      const TypeFacts facts = facts_of(tensor.type);
      uint64_t bytes = static_cast<uint64_t>(facts.bytes);
      if (facts.values > 0) {
        if (tensor.shape.back() % facts.values != 0) {
          return fail(of(tensor) + "has rows of " + std::to_string(tensor.shape.back()) + " values, but blocks of " +
                      facts.name + " hold " + std::to_string(facts.values));
        }
        bool fits = true;
        for (size_t i = 0; i < tensor.shape.size(); ++i) {
          const bool last = i + 1 == tensor.shape.size();
          const int64_t units = last ? tensor.shape[i] / facts.values : tensor.shape[i];
          fits = fits && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(units), &bytes);
        }
        if (!fits) return fail(of(tensor) + "has more elements than memory can hold");
      }
      if (data > file_bytes_ || tensor.begin > file_bytes_ - data || bytes > file_bytes_ - data - tensor.begin) {
        return fail("ends before its tensor \"" + tensor.name +
                    "\" does: it was cut off or is damaged, so fetch it again");
      }
      tensor.begin += data;
      tensor.end = tensor.begin + bytes;
    }
    std::vector<const Tensor*> by_place;
    for (const Tensor& tensor : header_.tensors_) by_place.push_back(&tensor);
    std::ranges::sort(by_place, {}, [](const Tensor* tensor) { return std::pair(tensor->begin, tensor->end); });
    for (size_t i = 1; i < by_place.size(); ++i) {
      if (by_place[i]->begin < by_place[i - 1]->end) fail(of(*by_place[i]) + "overlaps another tensor's data");
    }
  }

  static std::string of(const Tensor& tensor) { return "is damaged: its tensor \"" + tensor.name + "\" "; }

  std::span<const std::byte> begin_;
  const uint64_t file_bytes_;
  const std::string& path_;
  uint64_t at_ = 0;
  bool incomplete_ = false;
  std::optional<Error> error_;
  std::set<std::string> names_;
  Header header_;
};

Result<std::optional<Header>> Header::parse(std::span<const std::byte> begin, uint64_t file_bytes,
                                            const std::string& path) {
  return HeaderParser(begin, file_bytes, path).parse();
}

size_t Header::size_of(Kind kind) {
  switch (kind) {
    case Kind::kU8:
    case Kind::kI8:
    case Kind::kBool:
      return 1;
    case Kind::kU16:
    case Kind::kI16:
      return 2;
    case Kind::kU32:
    case Kind::kI32:
    case Kind::kF32:
      return 4;
    case Kind::kU64:
    case Kind::kI64:
    case Kind::kF64:
      return 8;
    default:
      return 0;
  }
}

const Header::Value* Header::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string_view> Header::texts(std::string_view key) const {
  std::vector<std::string_view> texts;
  const Value* value = find(key);
  if (value == nullptr || value->kind != Kind::kString) return texts;
  texts.reserve(value->count);
  const std::byte* at = value->data;
  for (uint64_t i = 0; i < value->count; ++i) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, at, sizeof(bytes));
    texts.emplace_back(reinterpret_cast<const char*>(at + sizeof(bytes)), bytes);
    at += sizeof(bytes) + bytes;
  }
  return texts;
}

std::vector<double> Header::numbers(std::string_view key) const {
  std::vector<double> numbers;
  const Value* value = find(key);
  if (value == nullptr || value->kind == Kind::kString || value->kind == Kind::kBool) return numbers;
  numbers.reserve(value->count);
  const auto append = [&]<typename T>(T) {
    for (uint64_t i = 0; i < value->count; ++i) {
      T element;
      std::memcpy(&element, value->data + i * sizeof(T), sizeof(T));
      numbers.push_back(static_cast<double>(element));
    }
  };
  switch (value->kind) {
    case Kind::kU8:
      append(uint8_t{});
      break;
    case Kind::kI8:
      append(int8_t{});
      break;
    case Kind::kU16:
      append(uint16_t{});
      break;
    case Kind::kI16:
      append(int16_t{});
      break;
    case Kind::kU32:
      append(uint32_t{});
      break;
    case Kind::kI32:
      append(int32_t{});
      break;
    case Kind::kU64:
      append(uint64_t{});
      break;
    case Kind::kI64:
      append(int64_t{});
      break;
    case Kind::kF32:
      append(float{});
      break;
    default:
      append(double{});
      break;
  }
  return numbers;
}

std::optional<std::string> Header::text(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr || value->is_array || value->kind != Kind::kString) return std::nullopt;
  return std::string(texts(key).front());
}

std::optional<double> Header::number(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr || value->is_array) return std::nullopt;
  const std::vector<double> list = numbers(key);
  return list.empty() ? std::nullopt : std::optional(list.front());
}

std::optional<bool> Header::boolean(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr || value->is_array || value->kind != Kind::kBool) return std::nullopt;
  return *value->data != std::byte{0};
}

std::vector<bool> Header::booleans(std::string_view key) const {
  std::vector<bool> booleans;
  const Value* value = find(key);
  if (value == nullptr || value->kind != Kind::kBool) return booleans;
  for (uint64_t i = 0; i < value->count; ++i) booleans.push_back(value->data[i] != std::byte{0});
  return booleans;
}

std::vector<std::string> Header::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

namespace {

// The header that was read last. A start asks for one many times.
struct LastHeader {
  std::mutex mutex;
  std::string path;
  struct stat file = {};
  std::optional<Header> header;
};
LastHeader last_header;

bool is_unchanged(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

void forget_headers() {
  const std::lock_guard lock(last_header.mutex);
  last_header.header.reset();
}

Result<Header> read_header(const std::string& path) {
  VOLLEY_ASSIGN(const OpenFile file, open_regular_file(path));
  struct stat now = {};
  ::fstat(file.fd.get(), &now);
  const std::lock_guard lock(last_header.mutex);
  if (last_header.header && last_header.path == path && is_unchanged(last_header.file, now)) return *last_header.header;
  for (uint64_t room = uint64_t{1} << 20;; room *= 4) {
    auto bytes = std::make_shared<std::vector<std::byte>>(std::min({room, uint64_t{file.bytes}, kMaxHeaderBytes}));
    VOLLEY_ASSIGN(const size_t got, read_at(file, 0, bytes->data(), bytes->size(), path));
    if (got != bytes->size()) return data_loss(path + " was cut short while it was read: start again.");
    VOLLEY_ASSIGN(std::optional<Header> header, Header::parse(*bytes, file.bytes, path));
    if (header) {
      header->bytes_ = std::move(bytes);
      // A file of this moment may be written again without another time.
      last_header.header.reset();
      if (std::time(nullptr) - now.st_mtim.tv_sec > 1) last_header.header = *header;
      last_header.path = path;
      last_header.file = now;
      return *std::move(header);
    }
    if (room >= kMaxHeaderBytes) {
      return data_loss(path + " has a header of more than " + std::to_string(kMaxHeaderBytes >> 20) +
                       " MiB: it is damaged.");
    }
  }
}

const Tensor* File::tensor(std::string_view name) const {
  for (const Part& part : parts) {
    for (const Tensor& tensor : part.header.tensors()) {
      if (tensor.name == name) return &tensor;
    }
  }
  return nullptr;
}

Result<File> open_file(const std::string& path) {
  File file;
  VOLLEY_ASSIGN(Header first, read_header(path));
  const double count = first.number("split.count").value_or(1), number = first.number("split.no").value_or(0);
  file.parts.push_back({path, std::move(first)});
  if (!(count > 1)) return file;
  if (count > kMaxParts) return data_loss(path + " says that it is in " + std::to_string(count) + " parts.");
  const auto ending = [&](int part) {
    char text[64];
    std::snprintf(text, sizeof(text), "-%05d-of-%05d.gguf", part, static_cast<int>(count));
    return std::string(text);
  };
  if (number != 0 || !path.ends_with(ending(1))) {
    return invalid_argument(path + " is one part of " + std::to_string(static_cast<int>(count)) +
                            ": name the first, whose name ends in " + ending(1) + ".");
  }
  std::set<std::string_view> names;
  for (int part = 1; part <= static_cast<int>(count); ++part) {
    if (part > 1) {
      const std::string name = path.substr(0, path.size() - ending(1).size()) + ending(part);
      Result<Header> header = read_header(name);
      if (!header.ok() && header.error().code == ErrorCode::kNotFound) {
        return not_found(path + " is in " + std::to_string(static_cast<int>(count)) + " parts, but there is no " +
                         name + ": fetch it, too.");
      }
      if (!header.ok()) return header.error();
      file.parts.push_back({name, *std::move(header)});
    }
    const File::Part& added = file.parts.back();
    for (const Tensor& tensor : added.header.tensors()) {
      if (names.insert(tensor.name).second) continue;
      return data_loss(added.path + " holds the tensor \"" + tensor.name + "\", as another part does: fetch it again.");
    }
  }
  return file;
}

}  // namespace volley::gguf
