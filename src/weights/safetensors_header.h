// Reads and validates the header of a safetensors file (format: github.com/huggingface/safetensors).
//
//   8 bytes   N, little-endian
//   N bytes   JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, …, "__metadata__": {…}}
//   the rest  the tensors' bytes; offsets count from here
#pragma once

#include <volley/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace volley::weights {

// A JSON header above this is refused, as every reader of the format does.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct HeaderEntry {
  std::string dtype;            // as the file spells it; may be unknown
  std::vector<int64_t> shape;   // each >= 0; empty for a scalar
  uint64_t begin = 0, end = 0;  // bytes of the file
};

using SafetensorsHeader = std::map<std::string, HeaderEntry, std::less<>>;

// Reads and checks the header of `file`, all of whose bytes are given. Every returned entry satisfies: begin <= end <=
// file.size(), and end - begin is the size for dtype and shape, if the dtype is known. The entries cover the data
// without overlap and without gap, as the format demands. Names are unique. kDataLoss names the file (`path`, for
// messages only), the tensor and what is wrong with it.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file, const std::string& path);

// The same for the beginning of a file of `file_bytes`. `begin` holds at least header_end() bytes.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> begin, uint64_t file_bytes,
                                                   const std::string& path);

// Where the header of a file of `file_bytes` ends. `begin` holds its first eight bytes, or all of a shorter file.
// kDataLoss: it is too short, or its header is too long.
Result<uint64_t> header_end(std::span<const std::byte> begin, uint64_t file_bytes, const std::string& path);

}  // namespace volley::weights
