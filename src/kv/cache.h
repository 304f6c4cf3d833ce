// The one owner of KV pages: pools and page tables by group, the prefix tree, and what each request holds. Numbers
// only: the memory is the engine's (model/kv_memory.h). Threads: one.
//
// A windowed group gives pages back while a request runs: those that no row to come can see. They go by what is known
// to be computed, never by steps under way, whose rows all begin there or later; so nothing that runs, is rolled back
// or drafted can need them. With the prefix cache they stay in the tree until somebody needs their memory.
//
// A hit needs the windows of all groups, the drafter's too, though its context decides no token: pages without content
// would make acceptance depend on what was evicted. Its pages go with the target's but under pressure in its own group.
#pragma once

#include <volley/sampling.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/layout.h"
#include "kv/page_list.h"
#include "kv/prefix_tree.h"

namespace volley::kv {

struct CacheConfig {
  int32_t page_size = 0;
  std::vector<Group> groups;  // the first is whole
  bool prefix_cache = true;
};

// An entry of a page table that changed: page_table of the group at [the lease's slot][index].
struct PageEdit {
  int32_t group = 0;
  int32_t index = 0;
  PageId page;
};

// The pages of one request. They go back when it ends; the cache must outlive it. Movable.
class Lease {
 public:
  // Leading positions whose K and V came from the prefix cache.
  int64_t cached() const { return cached_; }
  int64_t pages(size_t group) const { return static_cast<int64_t>(lists_[group].size()); }
  // Edits since the last call, for a table in which nothing of this request is known at first.
  std::vector<PageEdit> take_edits();

 private:
  friend class Cache;
  std::vector<PageList> lists_;  // by group
  int64_t cached_ = 0;
};

class Cache {
 public:
  explicit Cache(const CacheConfig& config);
  ~Cache();  // CHECKs that every page is accounted for: REQUIRES that all leases have ended
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // What the prefix cache has of `tokens` in `space`; without `reuse`, or without a prefix cache, nothing.
  Lease open(const std::string& space, std::span<const TokenId> tokens, bool reuse);

  // Pages for `need`, from free and cached ones. False when they are too few in some group; nothing has changed then.
  bool grow(Lease& lease, const Need& need);

  // The K and V of `computed`, the request's first tokens, are there: they stay in the cache as far as they fill pages.
  void keep(const std::string& space, std::span<const TokenId> computed, Lease& lease);

  // As keep(), where it must be because a window has moved on; then what no row to come sees goes.
  void advance(const std::string& space, std::span<const TokenId> computed, Lease& lease);

  void drop_prefixes();  // that nobody uses

  // Whether a lease can ever satisfy need.positions with windows that move by steps of need.ahead: the first group that
  // has too few pages, or -1.
  int32_t too_small(const Need& need) const;

  // Pages that grow() could hand out, by group.
  std::vector<int64_t> room() const;
  // Pages that a request without a hit would take of each group.
  std::vector<int64_t> pages_of(const Need& need) const;
  // Bytes of a lease's pages.
  int64_t bytes(const Lease& lease) const;

  struct Use {
    int64_t total = 0, used = 0, cached = 0;  // used: by leases or tree; cached: by the tree alone
  };
  Use use(size_t group) const;
  size_t groups() const { return config_.groups.size(); }
  const Group& group(size_t index) const { return config_.groups[index]; }

 private:
  int64_t missing(const Lease& lease, size_t group, const Need& need) const;

  const CacheConfig config_;
  std::vector<PagePool> pools_;
  PrefixTree tree_;
};

}  // namespace volley::kv
