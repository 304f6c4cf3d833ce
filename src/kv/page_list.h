// The pages of one sequence in order, with a reference on each that goes when the list goes. Movable, not copyable.
// Threads: one.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "kv/page_pool.h"

namespace volley::kv {

class PageList {
 public:
  // Takes over a reference on each of `pages`. The pool must outlive the list.
  explicit PageList(PagePool& pool, std::vector<PageId> pages = {}) : pool_(&pool), pages_(std::move(pages)) {}
  PageList(PageList&& other) noexcept : pool_(other.pool_), pages_(std::exchange(other.pages_, {})) {}
  PageList& operator=(PageList&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(pages_, other.pages_);
    return *this;
  }
  ~PageList() {
    for (const PageId page : pages_) pool_->release(page);
  }

  size_t size() const { return pages_.size(); }
  std::span<const PageId> view() const { return pages_; }
  std::span<PageId> first(size_t count) { return std::span(pages_).first(count); }  // for PrefixTree::insert

  // Takes pages from the pool until there are `count`. REQUIRES: the pool has them.
  void grow_to(size_t count) {
    while (pages_.size() < count) pages_.push_back(pool_->take());
  }

 private:
  PagePool* pool_;
  std::vector<PageId> pages_;
};

}  // namespace volley::kv
