#include "weights/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "weights/json.h"

namespace volley::weights {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

constexpr uint64_t kPrefixBytes = 8;

// Bits of an element. Dtypes that are not listed cannot be checked against the shape; asking for such a tensor fails
// later.
std::optional<uint64_t> element_bits(std::string_view dtype) {
  struct Known {
    std::string_view name;
    uint64_t bits;
  };
  static constexpr std::array<Known, 20> kKnown = {{
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U16", 16}, {"I16", 16},    {"F16", 16},    {"BF16", 16},   {"U32", 32},
      {"I32", 32},    {"F32", 32},    {"U64", 64}, {"I64", 64},    {"F64", 64},    {"C64", 64},
  }};
  for (const Known& known : kKnown) {
    if (known.name == dtype) return known.bits;
  }
  return std::nullopt;
}

// Bytes that `dtype` and `shape` need; no value if the dtype is unknown. An error is the reason why there is no number.
Result<std::optional<uint64_t>> needed_bytes(const std::string& dtype, const std::vector<int64_t>& shape) {
  const std::optional<uint64_t> bits = element_bits(dtype);
  if (!bits) return std::optional<uint64_t>();
  // A dimension of 0 makes the product 0, whatever overflows elsewhere.
  uint64_t total = *bits;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) total = 0;
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(total, static_cast<uint64_t>(dim), &total)) {
      return data_loss("its shape has more elements than memory can hold");
    }
  }
  if (total % 8 != 0) return data_loss("its elements do not fill whole bytes");
  return std::optional<uint64_t>(total / 8);
}

// The members of one tensor's JSON object. The error's message is only the reason; the caller says where.
Result<HeaderEntry> parse_entry(const json& value, uint64_t data_begin, uint64_t data_bytes) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return data_loss("it is not described by exactly dtype, shape and data_offsets");
  }
  HeaderEntry entry;
  if (!value["dtype"].is_string()) return data_loss("its dtype is not a string");
  entry.dtype = value["dtype"].get<std::string>();
  if (!value["shape"].is_array()) return data_loss("its shape is not an array");
  for (const json& dim : value["shape"]) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return data_loss("its shape holds something that is not a dimension");
    }
    entry.shape.push_back(dim.get<int64_t>());
  }
  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return data_loss("its data_offsets are not two numbers");
  }
  const uint64_t begin = offsets[0].get<uint64_t>();
  const uint64_t end = offsets[1].get<uint64_t>();
  if (begin > end) return data_loss("its data_offsets run backwards");
  if (end > data_bytes) return data_loss("its data ends beyond the end of the file");
  VOLLEY_ASSIGN(const std::optional<uint64_t> needed, needed_bytes(entry.dtype, entry.shape));
  if (needed && *needed != end - begin) {
    return data_loss("its dtype and shape need " + std::to_string(*needed) + " bytes, but its data_offsets span " +
                     std::to_string(end - begin));
  }
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

// The format leaves no byte of the data unclaimed or claimed twice.
Status check_cover(const SafetensorsHeader& header, uint64_t data_begin, uint64_t file_bytes, const std::string& path) {
  std::vector<SafetensorsHeader::const_pointer> by_place;
  for (const auto& named : header) by_place.push_back(&named);
  std::sort(by_place.begin(), by_place.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t covered = data_begin;
  for (const auto* named : by_place) {
    const auto& [name, entry] = *named;
    if (entry.begin != covered) {
      return data_loss(path + ": tensor \"" + name + "\" " +
                       (entry.begin < covered ? "overlaps another tensor's data." : "leaves a gap before its data."));
    }
    covered = entry.end;
  }
  if (covered != file_bytes) {
    return data_loss(path + " has " + std::to_string(file_bytes - covered) + " bytes that belong to no tensor.");
  }
  return {};
}

Status check_metadata(const json& metadata, const std::string& path) {
  const bool strings = metadata.is_object() && std::all_of(metadata.begin(), metadata.end(),
                                                           [](const json& value) { return value.is_string(); });
  if (!strings) return data_loss(path + ": __metadata__ is not an object of strings.");
  return {};
}

}  // namespace

Result<uint64_t> header_end(std::span<const std::byte> begin, uint64_t file_bytes, const std::string& path) {
  if (file_bytes < kPrefixBytes || begin.size() < kPrefixBytes) {
    return data_loss(path + " is too short to be a safetensors file: it was cut off, or is of another kind.");
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, begin.data(), kPrefixBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kPrefixBytes) {
    return data_loss(path + " says that its header has " + std::to_string(header_bytes) + " bytes, but the file has " +
                     std::to_string(file_bytes) + " and a header at most " + std::to_string(kMaxHeaderBytes) +
                     ": it was cut off, or is not a safetensors file.");
  }
  return kPrefixBytes + header_bytes;
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file, const std::string& path) {
  return parse_safetensors_header(file, file.size(), path);
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> begin, uint64_t file_bytes,
                                                   const std::string& path) {
  VOLLEY_ASSIGN(const uint64_t data_begin, header_end(begin, file_bytes, path));
  VOLLEY_CHECK_LE(data_begin, begin.size());
  const std::span<const std::byte> text = begin.subspan(kPrefixBytes, data_begin - kPrefixBytes);
  if (text.empty() || static_cast<char>(text[0]) != '{') {
    return data_loss(path + ": the header does not begin with '{': not a safetensors file.");
  }
  VOLLEY_ASSIGN(const json object, parse_json_object(text, path + ": the header"));

  SafetensorsHeader header;
  for (const auto& [name, value] : object.items()) {
    if (name == "__metadata__") {
      VOLLEY_RETURN_IF_ERROR(check_metadata(value, path));
      continue;
    }
    Result<HeaderEntry> entry = parse_entry(value, data_begin, file_bytes - data_begin);
    if (!entry.ok()) return data_loss(path + ": tensor \"" + name + "\": " + entry.error().message + ".");
    header.emplace(name, *std::move(entry));
  }
  VOLLEY_RETURN_IF_ERROR(check_cover(header, data_begin, file_bytes, path));
  return header;
}

}  // namespace volley::weights
