// The one owner of KV pages: pools and page tables by group, the prefix tree, and what each request holds. Numbers
// only: the memory is the engine's (model/kv_memory.h). Threads: one.
//
// A windowed group gives pages back while a request runs: those that no row to come can see. They go by what is known
// to be computed, never by steps under way, whose rows all begin there or later; so nothing that runs, is rolled back
// or drafted can need them. With the prefix cache they stay in the tree until somebody needs their memory.
//
// A hit needs the windows of all groups that are required. What the drafter alone looks at decides no token and vetoes
// no hit: where its pages were evicted the request begins without, and drafts with less context until it has its own.
//
// Where layers are recurrent a hit needs a snapshot of their state exactly where it ends. A snapshot is the copy of a
// slot's memory: the owner of the cache says when a slot stands at a position (snapshot()), makes the copy, and keeps
// it once the tokens up to there are known to be computed (keep()). Such a prefix may end inside a page, which whoever
// goes on from it copies.
//
// Until keep() a snapshot is its request's alone, and nobody can evict it. So regular ones, of which a long prompt has
// many, stay below half of all: then a request makes room for the next one with one of its own, so that those it has
// stay spread over its prompt and the latest is among them. The other half is for snapshots that are wanted.
#pragma once

#include <volley/sampling.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/layout.h"
#include "kv/page_list.h"
#include "kv/prefix_tree.h"

namespace volley::kv {

struct CacheConfig {
  int32_t page_size = 0;
  std::vector<Group> groups;  // the first is whole; the last may be of snapshots
  bool prefix_cache = true;
  bool events = false;  // take_events() is called
};

// An entry of a page table that changed: page_table of the group at [the lease's slot][index].
struct PageEdit {
  int32_t group = 0;
  int32_t index = 0;
  PageId page;
};

// Memory of the device that is to be copied before a request's first row.
struct PageCopy {
  int32_t group = 0;
  PageId from, to;
};
struct Beginning {
  std::optional<PageId> snapshot;  // the state that the slot begins with; without: the request begins at position 0
  std::vector<PageCopy> copies;
};

enum class SnapshotKind { kPrompt, kEnd };  // taken where a prompt was computed, and where a request ended or paused
// Whether somebody is likely to go on from just there, or it is one of many along a prompt.
enum class SnapshotPlace { kWanted, kRegular };

// The pages of one request. They go back when it ends; the cache must outlive it. Movable.
class Lease {
 public:
  // Leading positions whose K and V came from the prefix cache.
  int64_t cached() const { return cached_; }
  int64_t pages(size_t group) const { return static_cast<int64_t>(lists_[group].size()); }
  // Edits since the last call, for a table in which nothing of this request is known at first.
  std::vector<PageEdit> take_edits();
  // After the first grow(), once. The copies' sources are the cache's again: what is copied later must stay behind
  // them.
  Beginning take_beginning();
  // Leading positions in whole pages that the prefix cache had, though perhaps no snapshot there.
  int64_t shared() const { return shared_; }
  // Not 0: groups that are not required have no K and V before this position.
  int64_t optional_from() const { return optional_from_; }
  // The last position at which it has a snapshot, or one under way.
  int64_t last_snapshot() const { return snapshots_.empty() ? last_snapshot_ : snapshots_.back().position; }

 private:
  struct Snapshot {
    int64_t position = 0;
    SnapshotPlace place = SnapshotPlace::kWanted;
    PageList page;
  };

  friend class Cache;
  std::vector<PageList> lists_;     // by group; of snapshots always empty
  std::vector<PageList> borrowed_;  // until take_beginning(): what the hit found, of each group the page to copy
  std::vector<PageCopy> copies_;
  std::vector<Snapshot> snapshots_;  // made or under way, and not in the cache yet; by position
  int64_t cached_ = 0, shared_ = 0, last_snapshot_ = 0, optional_from_ = 0;
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

  // The K and V of `computed`, the request's first tokens, are there: they stay in the cache as far as they fill pages,
  // and with a snapshot where they end, wholly.
  void keep(const std::string& space, std::span<const TokenId> computed, Lease& lease);

  // Memory for a snapshot at `position`, until keep() takes it: free, or the least recently used one's, or a regular
  // one's of the lease, which is then given up. Nothing where there are no snapshots, or none can be had; a regular one
  // has only one of the lease's where leases have half of all. What is copied to it must stay behind earlier copies.
  // REQUIRES: no snapshot of the lease lies there or behind.
  std::optional<PageId> snapshot(Lease& lease, int64_t position, SnapshotKind kind, SnapshotPlace place);
  bool has_snapshots() const { return config_.prefix_cache && config_.groups.back().life == Life::kState; }

  // As keep() without the snapshots, where it must be because a window has moved on; then what no row to come sees
  // goes.
  void advance(const std::string& space, std::span<const TokenId> computed, Lease& lease);

  void drop_prefixes();  // that nobody uses

  // As PrefixTree has them.
  std::vector<CacheEvent> take_events() { return tree_.take_events(); }
  std::vector<PrefixTree::Prefix> prefixes() const { return tree_.prefixes(); }

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
  // Requests that began with a snapshot, by kind.
  int64_t hits(SnapshotKind kind) const { return hits_[static_cast<size_t>(kind)]; }
  size_t groups() const { return config_.groups.size(); }
  const Group& group(size_t index) const { return config_.groups[index]; }

 private:
  void begin(Lease& lease);
  void keep_pages(const std::string& space, std::span<const TokenId> computed, Lease& lease);
  bool recycle(Lease& lease, int64_t position);
  int64_t missing(const Lease& lease, size_t group, const Need& need) const;

  const CacheConfig config_;
  std::vector<PagePool> pools_;
  PrefixTree tree_;
  std::vector<SnapshotKind> kinds_;  // by snapshot
  std::array<int64_t, 2> hits_ = {};
};

}  // namespace volley::kv
