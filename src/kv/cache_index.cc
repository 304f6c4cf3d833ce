#include "kv/cache_index.h"

#include <algorithm>

#include "base/check.h"

namespace volley::kv {

void CacheIndex::apply(std::span<const CacheEvent> events) {
  for (const CacheEvent& event : events) {
    switch (event.kind) {
      case CacheEvent::Kind::kStored:
        VOLLEY_CHECK(event.parent == 0 || pages_.contains(event.parent));
        ++pages_[event.hash];
        break;
      case CacheEvent::Kind::kRemoved: {
        const auto page = pages_.find(event.hash);
        VOLLEY_CHECK(page != pages_.end());
        if (--page->second == 0) pages_.erase(page);
        break;
      }
      case CacheEvent::Kind::kCleared:
        pages_.clear();
    }
  }
}

size_t CacheIndex::leading(std::span<const uint64_t> pages) const {
  const auto missing = std::ranges::find_if_not(pages, [this](uint64_t page) { return pages_.contains(page); });
  return static_cast<size_t>(missing - pages.begin());
}

}  // namespace volley::kv
