// The content of a prefix cache, rebuilt from its events (volley/cache_events.h), so that other threads can ask how
// much of a prompt is cached. Threads: one at a time.
#pragma once

#include <volley/cache_events.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

namespace volley::kv {

class CacheIndex {
 public:
  // Applies events in the order in which the cache made them. An event that contradicts earlier ones is a CHECK
  // failure.
  void apply(std::span<const CacheEvent> events);
  void clear() { pages_.clear(); }

  bool holds(uint64_t page) const { return pages_.contains(page); }
  size_t size() const { return pages_.size(); }
  // How many leading pages of a prompt are cached. pages: hashes of the prompt's pages, in order.
  size_t leading(std::span<const uint64_t> pages) const;

 private:
  // How many cached pages have a hash. More than one only where hashes collide, which a client can bring about.
  std::unordered_map<uint64_t, int32_t> pages_;
};

}  // namespace volley::kv
