// Page numbers of one cache group, with reference counts; the engine owns the memory. Requests hold ordinary
// references. A prefix cache holds at most one reference of its own on a page, counted apart so that cache_only() is
// always known. Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace volley::kv {

class PagePool {
 public:
  explicit PagePool(int64_t pages);

  int64_t total() const { return static_cast<int64_t>(pages_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return total() - free(); }
  int64_t cache_only() const { return cache_only_; }  // used pages with the cache's reference alone
  PageId scrap_page() const { return PageId(static_cast<int32_t>(total())); }  // the page after the last (kv/layout.h)

  // Takes a page, with one reference. REQUIRES: free() > 0.
  PageId take();
  void retain(PageId page);               // REQUIRES: the page is in use
  void release(PageId page);              // the last reference frees the page; releasing a free page is a CHECK failure
  int32_t references(PageId page) const;  // includes the cache's reference

  void retain_for_cache(PageId page);    // REQUIRES: in use, and not in the cache yet
  void release_from_cache(PageId page);  // REQUIRES: in the cache

 private:
  struct Page {
    int32_t references = 0;
    bool cached = false;
  };

  Page& used_page(PageId page);

  std::vector<Page> pages_;
  std::vector<PageId> free_;  // a stack: the page released last is taken next
  int64_t cache_only_ = 0;
};

}  // namespace volley::kv
