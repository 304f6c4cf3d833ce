// Radix tree over page-aligned token runs: which pages hold the K and V (of target and drafter) of a prefix. The tree
// holds the cache's reference on each of its pages; requests that use a page hold their own.
// After SGLang's RadixAttention (Zheng et al. 2024), with whole pages as the unit. Threads: one.
//
// Who holds a page of the tree holds the pages before it too: match() hands out whole prefixes, and insert() moves the
// caller to the tree's pages. So a page that nobody uses never has one behind it that somebody uses, and every page
// that only the tree holds can be evicted.
#pragma once

#include <volley/sampling.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/page_pool.h"

namespace volley::kv {

class PrefixTree {
 public:
  PrefixTree(PagePool& pool, int32_t page_size);  // the pool must outlive the tree, and serve no other
  ~PrefixTree();                                  // releases its pages
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Pages of the longest cached prefix of `tokens` in `space` (a namespace: cache salt, adapter, image hash), whole
  // pages only, each with a reference for the caller. Marks them as just used.
  std::vector<PageId> match(const std::string& space, std::span<const TokenId> tokens);

  // Adds the pages of a prefix: tokens.size() == pages.size() * page_size. Where the tree has a page for a run already
  // it keeps that one, and the caller's reference moves to it: pages[i] is rewritten. So duplicates of a prefix that
  // two requests computed at the same time end here.
  void insert(const std::string& space, std::span<const TokenId> tokens, std::span<PageId> pages);

  // Drops least recently used leaf pages that nobody else references, until `pages` became free or none is left.
  // Returns how many became free.
  int64_t evict(int64_t pages);

  int64_t pages() const { return pages_; }                  // held by the tree
  int64_t evictable() const { return pool_.cache_only(); }  // of those, how many evict() could free by and by

 private:
  struct Node;

  Node* descend(Node& root, std::span<const TokenId> tokens, std::vector<PageId>& found);
  void touch(Node& node);
  void split(Node& node, size_t pages);
  void append(Node& end, std::span<const TokenId> tokens, std::span<const PageId> pages);
  size_t page_tokens(size_t pages) const { return pages * static_cast<size_t>(page_size_); }
  void remove_leaf(Node& leaf);

  PagePool& pool_;
  int32_t page_size_;
  int64_t pages_ = 0;
  uint64_t clock_ = 0;  // one tick an operation
  std::unordered_map<std::string, std::unique_ptr<Node>> roots_;
  // Leaves by last use. The key is unique: one operation marks one path, and a path has one leaf.
  std::map<uint64_t, Node*> leaves_;
};

}  // namespace volley::kv
