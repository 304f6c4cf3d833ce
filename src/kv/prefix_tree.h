// Radix tree over page-aligned token runs: which pages hold the K and V (of target and drafter) of a prefix. The tree
// holds one reference on each of its pages; requests that use a page hold their own.
// After SGLang's RadixAttention (Zheng et al. 2024), with whole pages as the unit. Threads: one.
#pragma once

#include <volley/sampling.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/page_pool.h"

namespace volley::kv {

class PrefixTree {
 public:
  PrefixTree(PagePool& pool, int32_t page_size);
  ~PrefixTree();  // releases its pages

  // Pages of the longest cached prefix of `tokens` in `space` (a namespace: cache salt, adapter, image hash), whole pages
  // only, each with a reference for the caller. Marks them as just used.
  std::vector<PageId> match(const std::string& space, std::span<const TokenId> tokens);

  // Adds the pages of a prefix: tokens.size() == pages.size() * page_size. Where the tree has a run already its own page
  // stays and the caller's is not taken. The caller keeps its references.
  void insert(const std::string& space, std::span<const TokenId> tokens, std::span<const PageId> pages);

  // Drops least recently used leaf pages that nobody else references, until `pages` became free or none is left. Returns how
  // many became free.
  int64_t evict(int64_t pages);

  int64_t pages() const { return pages_; }      // held by the tree
  int64_t evictable() const;                    // of those, how many evict() could free by and by

 private:
  struct Node;
  struct Space;
  PagePool& pool_;
  int32_t page_size_;
  int64_t pages_ = 0;
  uint64_t clock_ = 0;
  std::vector<std::unique_ptr<Space>> spaces_;
};

}  // namespace volley::kv
