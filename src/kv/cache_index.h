// What a prefix cache holds, as its events tell (volley/cache_events.h): to ask how much of a prompt is cached without
// the cache's thread. Threads: one at a time.
#pragma once

#include <volley/cache_events.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

namespace volley::kv {

class CacheIndex {
 public:
  // In the order in which they came. Events that do not fit to those before them are a CHECK failure.
  void apply(std::span<const CacheEvent> events);
  void clear() { pages_.clear(); }

  bool holds(uint64_t page) const { return pages_.contains(page); }
  size_t size() const { return pages_.size(); }
  // How many of these are held, the leading ones. pages: hashes of a prompt's pages, in order.
  size_t leading(std::span<const uint64_t> pages) const;

 private:
  // How often a hash is held: twice only where two pages collide, and clients can make them.
  std::unordered_map<uint64_t, int32_t> pages_;
};

}  // namespace volley::kv
