// The chain hash of cached pages (CacheEvent::hash), made of a page's keys and the hash of the page before it. Never
// 0. Not cryptographic: a caller must stay correct when two pages collide.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/mix.h"
#include "kv/layout.h"

namespace volley::kv {

// The hash before the first page of a namespace.
inline uint64_t root_hash(std::string_view space) {
  uint64_t hash = kSplitMixStep;
  for (const char byte : space) hash = mix_bits(hash ^ static_cast<uint8_t>(byte)) + kSplitMixStep;
  return std::max<uint64_t>(1, hash);
}

inline uint64_t page_hash(uint64_t before, std::span<const CacheKey> keys) {
  uint64_t hash = before;
  for (const CacheKey key : keys) hash = mix_bits(hash ^ static_cast<uint32_t>(key)) + kSplitMixStep;
  return std::max<uint64_t>(1, hash);
}

// Hashes of the whole pages of `keys`, in order.
inline std::vector<uint64_t> page_hashes(std::string_view space, std::span<const CacheKey> keys, int32_t page_size) {
  std::vector<uint64_t> hashes;
  const auto size = static_cast<size_t>(page_size);
  for (uint64_t hash = root_hash(space); keys.size() >= size; keys = keys.subspan(size)) {
    hashes.push_back(hash = page_hash(hash, keys.first(size)));
  }
  return hashes;
}

}  // namespace volley::kv
