#include "kv/page_pool.h"

#include <limits>

#include "base/check.h"

namespace volley::kv {

PagePool::PagePool(int64_t pages) {
  VOLLEY_CHECK_GE(pages, 0);
  VOLLEY_CHECK_LE(pages, int64_t{std::numeric_limits<int32_t>::max()});
  pages_.resize(static_cast<size_t>(pages));
  free_.reserve(pages_.size());
  for (int64_t page = pages; page-- > 0;) free_.emplace_back(static_cast<int32_t>(page));
}

PagePool::Page& PagePool::used_page(PageId page) {
  VOLLEY_CHECK_GE(page.value, 0);
  VOLLEY_CHECK_LT(int64_t{page.value}, total());
  Page& entry = pages_[static_cast<size_t>(page.value)];
  VOLLEY_CHECK_GT(entry.references, 0);
  return entry;
}

PageId PagePool::take() {
  VOLLEY_CHECK_GT(free(), 0);
  const PageId page = free_.back();
  free_.pop_back();
  pages_[static_cast<size_t>(page.value)].references = 1;
  return page;
}

void PagePool::retain(PageId page) {
  Page& entry = used_page(page);
  if (entry.cached && entry.references == 1) --cache_only_;
  ++entry.references;
}

void PagePool::release(PageId page) {
  Page& entry = used_page(page);
  --entry.references;
  if (entry.cached) {
    VOLLEY_CHECK_GT(entry.references, 0);  // the cache returns its own reference by release_from_cache()
    if (entry.references == 1) ++cache_only_;
  } else if (entry.references == 0) {
    free_.push_back(page);
  }
}

int32_t PagePool::references(PageId page) const {
  VOLLEY_CHECK_GE(page.value, 0);
  VOLLEY_CHECK_LT(int64_t{page.value}, total());
  return pages_[static_cast<size_t>(page.value)].references;
}

void PagePool::retain_for_cache(PageId page) {
  Page& entry = used_page(page);
  VOLLEY_CHECK(!entry.cached);
  entry.cached = true;
  ++entry.references;
}

void PagePool::release_from_cache(PageId page) {
  Page& entry = used_page(page);
  VOLLEY_CHECK(entry.cached);
  if (entry.references == 1) --cache_only_;
  entry.cached = false;
  release(page);
}

}  // namespace volley::kv
