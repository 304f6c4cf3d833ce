// Radix tree over page-aligned token runs: which pages hold the K and V (of target and drafter) of a prefix. The tree
// holds the cache's reference on each of its pages; requests that use a page hold their own.
// After SGLang's RadixAttention (Zheng et al. 2024), with whole pages as the unit. Threads: one.
//
// Every page of a run has its page of group 0. In the other groups (windows) pages may be missing: a prefix can be used
// up to a place at which every required group has the pages that the next row sees. Where there are snapshots of states
// it must lie at one besides: page i of that group is the snapshot at the end of page i of the run.
//
// A sequence with a snapshot may end inside a page: its last positions are a page of their own, a tail, which is a
// leaf and goes with its snapshot. Who goes on from there copies that page.
//
// Who holds a page of group 0 of the tree holds those before it too: match() hands out whole prefixes, and insert()
// moves the caller to the tree's pages. So a page that nobody uses never has one behind it that somebody uses, and
// every page that only the tree holds can be evicted. In the other groups it can be in any case.
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
  // A pool for each group; both must outlive the tree, and the pools serve no other. events: whether take_events() is
  // called; otherwise nothing is hashed or kept for it. REQUIRES: group 0 is whole.
  PrefixTree(std::span<PagePool> pools, std::span<const Group> groups, int32_t page_size, bool events = false);
  ~PrefixTree();  // releases its pages
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest cached prefix of `tokens` in `space` (a namespace: cache salt, adapter, image hash) that can be used,
  // whole pages only: for each group a list that ends where the prefix does. Of windows it has what the next row sees;
  // of those that are not required, what there is of it without a gap. Marks the prefix as just used.
  struct Match {
    std::vector<PageList> lists;  // of whole pages; of snapshots always empty
    std::vector<PageList> tail;   // empty, or for each group the page of a tail, and the snapshot's list
    size_t tokens = 0;            // of the prefix, the tail's too
    size_t pages_found = 0;       // whole pages of group 0 that are there, usable or not
    size_t optional_from = 0;     // not 0: groups that are not required have nothing before this position
  };
  Match match(const std::string& space, std::span<const TokenId> tokens);

  // Adds the pages of a prefix, a whole number of pages: lists[0] has all of them, the others what is left. Where the
  // tree has a page already it keeps that one, and the caller's list moves to it. So duplicates of a prefix that two
  // requests computed at the same time end here. With snapshots `tokens` may end inside a page: that end becomes a
  // tail, if the snapshots' list has the page that it ends in.
  void insert(const std::string& space, std::span<const TokenId> tokens, std::span<PageList> lists);

  // Drops pages of a group that nobody else references, until `pages` became free or none is left. Returns how many
  // became free. Group 0: the ends of runs, least recently used first, and with them what windows have there. Windows:
  // first pages that end no run, because a prefix can be used only where its window ends; each least recently used
  // first. A tail's snapshot takes the tail's pages along.
  int64_t evict(size_t group, int64_t pages);
  void drop();  // evicts all that it can

  // What became of whole pages of group 0 since the last call, in order. Empty without `events`.
  std::vector<CacheEvent> take_events();

  // The longest prefixes there are, in whole pages. Takes time: for checks.
  struct Prefix {
    std::string space;
    std::vector<TokenId> tokens;
  };
  std::vector<Prefix> prefixes() const;

  int64_t pages(size_t group) const { return held_[group]; }                    // held by the tree
  int64_t evictable(size_t group) const { return pools_[group].cache_only(); }  // of those, how many evict() can free

 private:
  struct Node;
  static constexpr PageId kNoPage = PageId(-1);
  using Age = std::pair<uint64_t, uint64_t>;  // last use, and the node's own number

  // Where a node's pages of a window are: in its last pages, which a prefix that ends with the node needs, or not.
  enum Place { kBehind, kAtEnd };
  using Windowed = std::array<std::map<Age, Node*>, 2>;  // by Place: nodes that have some, by age

  std::vector<Node*> descend(Node& root, std::span<const TokenId> tokens);
  void touch(Node& node);
  void split(Node& node, size_t pages);
  Node* append(Node& end, std::span<const TokenId> tokens, std::span<const PageList> lists, size_t begin);
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
  Usable usable(std::span<Node* const> path, std::span<const TokenId> tokens) const;
  Node* tail_of(const Node& node, std::span<const TokenId> rest) const;
  void insert_tail(Node& end, std::span<const TokenId> tokens, std::span<PageList> lists, size_t page);
  bool has_states() const { return groups_.back().life == Life::kState; }

  size_t page_tokens(size_t pages) const { return pages * static_cast<size_t>(page_size_); }

  std::span<PagePool> pools_;
  std::span<const Group> groups_;
  int32_t page_size_;
  bool events_;
  std::vector<CacheEvent> news_;  // not taken yet
  std::vector<int64_t> held_;     // by group
  uint64_t clock_ = 0;            // one tick an operation
  uint64_t nodes_ = 0;            // made so far
  std::unordered_map<std::string, std::unique_ptr<Node>> roots_;
  // Leaves by last use. The key is unique: one operation marks one path, and a path has one leaf.
  std::map<uint64_t, Node*> leaves_;
  std::vector<Windowed> windowed_;  // by group
};

}  // namespace volley::kv
