// The one owner of KV pages: pools and page tables by group, the prefix tree, and the pages of each request. Page
// numbers only: the engine owns the memory (model/kv_memory.h). Threads: one.
//
// A windowed group gives back, while a request runs, the pages that no later row can see. Only the positions known to
// be computed decide which pages those are. All rows of steps under way begin there or later, so no step, rollback or
// draft can need a page that was given back. With the prefix cache such pages stay in the tree until their memory is
// needed.
//
// A hit needs the windows of all required groups. Pages that only the drafter reads decide no token, so their absence
// prevents no hit: the request begins without them and drafts with less context until it has computed its own.
//
// Where layers are recurrent a hit needs a snapshot of their state exactly where it ends. A snapshot is the copy of a
// slot's memory: the owner of the cache says when a slot stands at a position (snapshot()), makes the copy, and keeps
// it once the tokens up to there are known to be computed (keep()). Such a prefix may end inside a page; a request that
// continues from it copies that page.
//
// Until keep() a snapshot belongs to its request alone and cannot be evicted. A long prompt takes many regular
// snapshots, so regular ones may use at most half of the pool. Beyond that a request frees one of its own for each new
// one: its snapshots stay spread over its prompt and include the latest. The other half is for wanted snapshots.
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

// A changed entry of a page table: page_table of the group at [the lease's slot][index].
struct PageEdit {
  int32_t group = 0;
  int32_t index = 0;
  PageId page;
};

// Copies to make before a request's first row.
struct Beginning {
  std::optional<PageId> snapshot;  // the state that the slot begins with; without one the request begins at position 0
  std::vector<MemoryCopy> copies;
};

enum class SnapshotKind { kPrompt, kEnd };  // taken where a prompt was computed, and where a request ended or paused
// Whether other requests are likely to continue from this position, or the snapshot is one of many along a prompt.
enum class SnapshotPlace { kWanted, kRegular };

// The pages of one request. The lease returns its pages when it ends; the cache must outlive the lease. Movable.
class Lease {
 public:
  // Leading positions whose K and V came from the prefix cache.
  int64_t cached() const { return cached_; }
  int64_t pages(size_t group) const { return static_cast<int64_t>(lists_[group].size()); }
  // Edits since the last call, for a table that at first holds no page of this request.
  std::vector<PageEdit> take_edits();
  // Call once, after the first grow(). The cache owns the sources of the copies again, so later copies must be ordered
  // after these.
  Beginning take_beginning();
  // Leading positions in whole pages that the prefix cache had, even where no snapshot lies at their end.
  int64_t shared() const { return shared_; }
  // If not 0, groups that are not required have no K and V before this position.
  int64_t optional_from() const { return optional_from_; }
  // The last position at which the lease has a snapshot, or one being made.
  int64_t last_snapshot() const { return snapshots_.empty() ? last_snapshot_ : snapshots_.back().position; }

 private:
  struct Snapshot {
    int64_t position = 0;
    SnapshotPlace place = SnapshotPlace::kWanted;
    PageList page;
  };

  friend class Cache;
  std::vector<PageList> lists_;     // by group; always empty for snapshots
  std::vector<PageList> borrowed_;  // until take_beginning(): for each group, the page that the hit copies from
  std::vector<MemoryCopy> copies_;
  std::vector<Snapshot> snapshots_;  // made or being made, and not in the cache yet; by position
  int64_t cached_ = 0, shared_ = 0, last_snapshot_ = 0, optional_from_ = 0;
};

class Cache {
 public:
  explicit Cache(const CacheConfig& config);
  ~Cache();  // CHECKs that every page is accounted for: REQUIRES that all leases have ended
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // The longest prefix of `keys` cached in `space`; nothing without `reuse` or without a prefix cache.
  Lease open(const std::string& space, std::span<const CacheKey> keys, bool reuse);

  // Takes pages for `need` from free and cached ones. Returns false, and changes nothing, if a group has too few.
  bool grow(Lease& lease, const Need& need);

  // The K and V of `computed`, the keys of the request's first positions, exist: whole pages of them stay in the cache.
  // If a snapshot lies at their end, all of them stay.
  void keep(const std::string& space, std::span<const CacheKey> computed, Lease& lease);

  // Memory for a snapshot at `position`, until keep() takes it: a free page, or that of the least recently used
  // snapshot, or that of a regular snapshot of the lease, which is then given up. No value if the group has no
  // snapshots or none can be freed. Once leases hold half of all snapshots, a regular one can only replace another of
  // the same lease. The copy to it must be ordered after earlier copies. REQUIRES: the lease has no snapshot at
  // `position` or later.
  std::optional<PageId> snapshot(Lease& lease, int64_t position, SnapshotKind kind, SnapshotPlace place);
  bool has_snapshots() const { return config_.prefix_cache && config_.groups.back().life == Life::kState; }

  // Like keep() without the snapshots, called when a window has moved on; then frees the pages that no later row sees.
  void advance(const std::string& space, std::span<const CacheKey> computed, Lease& lease);

  void drop_prefixes();  // pages that no request uses

  // As documented at PrefixTree.
  std::vector<CacheEvent> take_events() { return tree_.take_events(); }
  std::vector<PrefixTree::Prefix> prefixes() const { return tree_.prefixes(); }

  // Whether a lease can ever satisfy need.positions with windows that move by steps of need.ahead: the first group that
  // has too few pages, or -1.
  int32_t too_small(const Need& need) const;

  // Pages that grow() could hand out, by group.
  std::vector<int64_t> room() const;
  // Pages of each group that a request without a hit would take.
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
  void keep_pages(const std::string& space, std::span<const CacheKey> computed, Lease& lease);
  bool recycle(Lease& lease, int64_t position);
  int64_t missing(const Lease& lease, size_t group, const Need& need) const;

  const CacheConfig config_;
  std::vector<PagePool> pools_;
  PrefixTree tree_;
  std::vector<SnapshotKind> kinds_;  // by snapshot page
  std::array<int64_t, 2> hits_ = {};
};

}  // namespace volley::kv
