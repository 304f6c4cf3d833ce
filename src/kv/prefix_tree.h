// Radix tree over page-aligned runs of keys (CacheKey): which pages hold the K and V (of target and drafter) of a
// prefix. The tree holds the cache's reference on each of its pages; requests that use a page hold their own. After
// SGLang's RadixAttention (Zheng et al. 2024), with whole pages as the unit. Threads: one.
//
// A run has all its pages of group 0. In the other groups (windows) pages may be missing: a prefix is usable up to a
// position where every required group has the pages that the next row sees. In a model with state snapshots the prefix
// must also end at a snapshot: page i of that group is the snapshot at the end of page i of the run.
//
// A sequence with a snapshot may end inside a page: its last positions are a page of their own, a tail. A tail is a
// leaf and is dropped with its snapshot. A request that continues from a tail copies its page.
//
// A request that holds a group-0 page of the tree also holds all pages before it: match() returns whole prefixes, and
// insert() moves the caller to the tree's pages. So no used page comes after an unused one, and every group-0 page that
// only the tree holds can be evicted. In the other groups every such page can be evicted anyway.
#pragma once

#include <volley/cache_events.h>
#include <volley/sampling.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/layout.h"
#include "kv/page_list.h"

namespace volley::kv {

class PrefixTree {
 public:
  // One pool for each group. Groups and pools must outlive the tree, and no other tree may use the pools. events:
  // whether take_events() will be called; if not, no hashes or events are kept. REQUIRES: group 0 is whole.
  PrefixTree(std::span<PagePool> pools, std::span<const Group> groups, int32_t page_size, bool events = false);
  ~PrefixTree();  // releases its pages
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest usable cached prefix of `keys` in `space` (a namespace: cache salt, adapter), in whole
  // pages: one list for each group, which ends where the prefix ends. A window's list has the pages that the next row
  // sees. The list of a window that is not required has the last of these pages up to the first missing one. Marks the
  // prefix as just used.
  struct Match {
    std::vector<PageList> lists;  // lists of whole pages; always empty for snapshots
    std::vector<PageList> tail;   // empty, or for each group the tail's page, and the snapshot's list
    size_t tokens = 0;            // positions of the prefix, including the tail's
    size_t pages_found = 0;       // whole pages of group 0 that are cached, usable or not
    size_t optional_from = 0;     // if not 0, groups that are not required have no pages before this position
  };
  Match match(const std::string& space, std::span<const CacheKey> keys);

  // Adds the pages of a prefix, a whole number of pages: lists[0] has all of them, the other lists may lack some. Where
  // the tree already has a page, the caller's list switches to that page. So a prefix that two requests computed at the
  // same time is stored once. With snapshots `keys` may end inside a page: those last keys become a tail if the
  // list of snapshots has a page there.
  void insert(const std::string& space, std::span<const CacheKey> keys, std::span<PageList> lists);

  // Evicts pages of a group that only the tree references, until `pages` are free or none is left. Returns how many
  // became free. In group 0 it evicts the ends of runs, least recently used first, together with the window pages
  // there. In a window it first evicts pages that end no run, because a prefix is usable only where its window ends;
  // least recently used first in each case. Evicting a tail's snapshot evicts the tail's pages too.
  int64_t evict(size_t group, int64_t pages);
  void drop();  // evicts all that it can

  // Whole pages of group 0 that were cached or evicted since the last call, in order. Empty without `events`.
  std::vector<CacheEvent> take_events();

  // The longest cached prefixes, in whole pages. Slow: for checks.
  struct Prefix {
    std::string space;
    std::vector<CacheKey> tokens;
  };
  std::vector<Prefix> prefixes() const;

  int64_t pages(size_t group) const { return held_[group]; }                    // pages that the tree holds
  int64_t evictable(size_t group) const { return pools_[group].cache_only(); }  // how many of those evict() can free

 private:
  struct Node;
  static constexpr PageId kNoPage = PageId(-1);
  using Age = std::pair<uint64_t, uint64_t>;  // last use, and the node's own number

  // Where a node's pages of a window lie: some among its last pages, which a prefix that ends with the node needs, or
  // all before those.
  enum Place { kBehind, kAtEnd };
  using Windowed = std::array<std::map<Age, Node*>, 2>;  // by Place: nodes that have such pages, by age

  std::vector<Node*> descend(Node& root, std::span<const CacheKey> keys);
  void touch(Node& node);
  void split(Node& node, size_t pages);
  Node* append(Node& end, std::span<const CacheKey> keys, std::span<const PageList> lists, size_t begin);
  void note_stored(const std::string& space, Node& node);
  void note_removed(Node& leaf);
  void merge(Node& node, std::span<PageList> lists, size_t begin);
  void remove_leaf(Node& leaf);

  void hold(size_t group, PageId page);
  void let_go(size_t group, PageId& page);
  int64_t evict_ends(int64_t pages);
  int64_t evict_windows(size_t group, Place place, int64_t pages);
  void drop_tail(Node& tail);
  void list_windows(Node& node);
  void unlist_windows(Node& node);
  size_t pages_at_end(size_t group, const Node& node) const;
  struct Usable;
  Usable usable(std::span<Node* const> path, std::span<const CacheKey> keys) const;
  Node* tail_of(const Node& node, std::span<const CacheKey> rest) const;
  void insert_tail(Node& end, std::span<const CacheKey> keys, std::span<PageList> lists, size_t page);
  bool has_states() const { return groups_.back().life == Life::kState; }

  size_t page_tokens(size_t pages) const { return pages * static_cast<size_t>(page_size_); }

  std::span<PagePool> pools_;
  std::span<const Group> groups_;
  int32_t page_size_;
  bool events_;
  std::vector<CacheEvent> news_;  // not taken yet
  std::vector<int64_t> held_;     // by group
  uint64_t clock_ = 0;            // one tick an operation
  uint64_t nodes_ = 0;            // nodes made so far
  std::unordered_map<std::string, std::unique_ptr<Node>> roots_;
  // Leaves by last use. The key is unique: one operation marks one path, and a path has one leaf.
  std::map<uint64_t, Node*> leaves_;
  std::vector<Windowed> windowed_;  // by group
};

}  // namespace volley::kv
