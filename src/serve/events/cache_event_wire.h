// Numbers in the cache events' messages: 8 bytes, big endian.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace volley::serve {

inline std::array<uint8_t, 8> big_endian(uint64_t number) {
  std::array<uint8_t, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(number >> (56 - 8 * i));
  return bytes;
}

inline uint64_t from_big_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

inline constexpr int64_t kMaxRequestBytes = 4096;  // most bytes of a client's frame

}  // namespace volley::serve
