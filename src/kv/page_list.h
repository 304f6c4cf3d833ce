// The consecutive pages that one sequence owns in one group, with a reference on each that ends with the list, and the
// changes that a page table has not seen yet. Movable, not copyable. Threads: one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "kv/page_pool.h"

namespace volley::kv {

class PageList {
 public:
  // Takes over a reference on each of `pages`, the sequence's pages from `begin` on. The pool must outlive the list.
  explicit PageList(PagePool& pool, size_t begin = 0, std::vector<PageId> pages = {})
      : pool_(&pool), begin_(begin), pages_(std::move(pages)) {}
  PageList(PageList&& other) noexcept
      : pool_(other.pool_),
        begin_(other.begin_),
        pages_(std::exchange(other.pages_, {})),
        complete_from_(other.complete_from_),
        hidden_(other.hidden_),
        published_(other.published_) {}
  PageList& operator=(PageList&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(begin_, other.begin_);
    std::swap(pages_, other.pages_);
    std::swap(complete_from_, other.complete_from_);
    std::swap(hidden_, other.hidden_);
    std::swap(published_, other.published_);
    return *this;
  }
  ~PageList() {
    for (const PageId page : pages_) pool_->release(page);
  }

  // The list has pages [begin(), end()) of the sequence.
  size_t begin() const { return begin_; }
  size_t end() const { return begin_ + pages_.size(); }
  size_t size() const { return pages_.size(); }
  bool has(size_t index) const { return index >= begin() && index < end(); }
  PageId operator[](size_t index) const { return pages_[index - begin_]; }  // REQUIRES: has(index)
  std::span<const PageId> view() const { return pages_; }
  // Pages before this index lack K and V of some of their first positions, so they must not be shared with other
  // sequences.
  void set_complete_from(size_t index) { complete_from_ = index; }
  bool offers(size_t index) const { return has(index) && index >= complete_from_; }

  // Takes pages from the pool until the list ends at `end`. REQUIRES: the pool has them.
  void grow_to(size_t end) {
    while (this->end() < end) pages_.push_back(pool_->take());
  }
  // Gives back the pages before `begin`.
  void drop_before(size_t begin) {
    const size_t n = std::min(pages_.size(), begin - std::min(begin, begin_));
    for (size_t i = 0; i < n; ++i) pool_->release(pages_[i]);
    pages_.erase(pages_.begin(), pages_.begin() + static_cast<ptrdiff_t>(n));
    begin_ = std::max(begin_, begin);
  }
  // Replaces a page by another one with the same K and V. The list takes a reference of its own.
  void replace(size_t index, PageId page) {
    PageId& own = pages_[index - begin_];
    if (own == page) return;
    pool_->retain(page);
    pool_->release(own);
    own = page;
    published_ = std::min(published_, index);
  }

  // Calls edit(index, page) for each entry of the sequence's page table that has changed since the last call: new
  // pages, and the scrap page in place of a page that was given back.
  template <typename Edit>
  void take_edits(const Edit& edit) {
    for (; hidden_ < begin(); ++hidden_) edit(hidden_, pool_->scrap_page());
    published_ = std::max(published_, begin());
    for (; published_ < end(); ++published_) edit(published_, (*this)[published_]);
  }

 private:
  PagePool* pool_;
  size_t begin_;
  std::vector<PageId> pages_;
  size_t complete_from_ = 0;
  size_t hidden_ = 0;     // leading table entries that hold the scrap page
  size_t published_ = 0;  // the entries after those, up to here, are right
};

}  // namespace volley::kv
