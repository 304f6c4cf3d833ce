// Numbers of the pages of one cache group, with reference counts. Numbers only: the memory is the engine's.
// Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace volley::kv {

class PagePool {
 public:
  explicit PagePool(int64_t pages);

  int64_t total() const { return static_cast<int64_t>(references_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return total() - free(); }

  // A page with one reference. REQUIRES: free() > 0.
  PageId take();
  void retain(PageId page);   // REQUIRES: it is in use
  void release(PageId page);  // the last reference returns it; releasing a free page is a CHECK failure
  int32_t references(PageId page) const;

 private:
  std::vector<int32_t> references_;
  std::vector<PageId> free_;
};

}  // namespace volley::kv
