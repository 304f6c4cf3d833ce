#include "kv/cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace volley::kv {
namespace {

std::vector<PagePool> make_pools(const CacheConfig& config) {
  std::vector<PagePool> pools;
  for (const Group& group : config.groups) pools.emplace_back(group.pages);
  return pools;
}

}  // namespace

std::vector<PageEdit> Lease::take_edits() {
  std::vector<PageEdit> edits;
  for (size_t group = 0; group < lists_.size(); ++group) {
    lists_[group].take_edits([&](size_t index, PageId page) {
      edits.push_back({static_cast<int32_t>(group), static_cast<int32_t>(index), page});
    });
  }
  return edits;
}

Beginning Lease::take_beginning() {
  Beginning beginning;
  if (!borrowed_.empty()) beginning.snapshot = borrowed_.back()[borrowed_.back().begin()];
  beginning.copies = std::exchange(copies_, {});
  borrowed_.clear();
  return beginning;
}

Cache::Cache(const CacheConfig& config)
    : config_(config), pools_(make_pools(config_)), tree_(pools_, config_.groups, config_.page_size, config_.events) {
  for (size_t i = 1; i < groups(); ++i) {
    if (group(i).life == Life::kState && i + 1 == groups()) {
      kinds_.resize(static_cast<size_t>(group(i).pages));
      continue;
    }
    VOLLEY_CHECK(group(i).life == Life::kWindow);
    VOLLEY_CHECK_GT(group(i).window, 0);
  }
}

Cache::~Cache() {
  for (size_t i = 0; i < groups(); ++i) {
    VOLLEY_CHECK_EQ(pools_[i].used(), tree_.pages(i));
    VOLLEY_CHECK_EQ(pools_[i].cache_only(), tree_.pages(i));
  }
}

Lease Cache::open(const std::string& space, std::span<const CacheKey> keys, bool reuse) {
  Lease lease;
  if (config_.prefix_cache && reuse) {
    PrefixTree::Match match = tree_.match(space, keys);
    lease.lists_ = std::move(match.lists);
    lease.borrowed_ = std::move(match.tail);
    lease.cached_ = lease.last_snapshot_ = static_cast<int64_t>(match.tokens);
    lease.shared_ = static_cast<int64_t>(match.pages_found) * config_.page_size;
    lease.optional_from_ = static_cast<int64_t>(match.optional_from);
  } else {
    for (PagePool& pool : pools_) lease.lists_.emplace_back(pool);
  }
  return lease;
}

int64_t Cache::missing(const Lease& lease, size_t group, const Need& need) const {
  const PageRange range = range_of(config_.groups[group], need, config_.page_size);
  return range.end - static_cast<int64_t>(lease.lists_[group].end());
}

bool Cache::grow(Lease& lease, const Need& need) {
  for (size_t i = 0; i < groups(); ++i) {
    if (missing(lease, i, need) > pools_[i].free() + tree_.evictable(i)) return false;
  }
  for (size_t i = 0; i < groups(); ++i) {
    const int64_t pages = missing(lease, i, need);
    if (pages <= 0) continue;
    const int64_t evicted = pages - pools_[i].free();
    if (evicted > 0) VOLLEY_CHECK_EQ(tree_.evict(i, evicted), evicted);
    lease.lists_[i].grow_to(lease.lists_[i].end() + static_cast<size_t>(pages));
  }
  begin(lease);
  return true;
}

// A page that the hit uses in part is copied to a page of the request's own.
void Cache::begin(Lease& lease) {
  if (lease.borrowed_.empty()) return;
  for (size_t i = 0; i + 1 < groups(); ++i) {
    const PageList& last = lease.borrowed_[i];
    if (last.size() == 0) continue;
    const size_t index = last.begin();
    lease.copies_.push_back(
        {.slot = {}, .group = static_cast<int32_t>(i), .from = last[index], .to = lease.lists_[i][index]});
  }
  const PageList& snapshot = lease.borrowed_.back();
  ++hits_[static_cast<size_t>(kinds_[static_cast<size_t>(snapshot[snapshot.begin()].value)])];
}

// Gives up the regular snapshot of the lease that leaves the smallest gap; `position` is where the next one will be.
bool Cache::recycle(Lease& lease, int64_t position) {
  std::vector<Lease::Snapshot>& all = lease.snapshots_;
  auto least = all.end();
  int64_t smallest = 0;
  for (auto it = all.begin(); it != all.end(); ++it) {
    if (it->place != SnapshotPlace::kRegular) continue;
    const int64_t before = it == all.begin() ? lease.last_snapshot_ : std::prev(it)->position;
    const int64_t gap = (std::next(it) == all.end() ? position : std::next(it)->position) - before;
    if (least != all.end() && gap >= smallest) continue;
    least = it;
    smallest = gap;
  }
  if (least == all.end()) return false;
  all.erase(least);
  return true;
}

std::optional<PageId> Cache::snapshot(Lease& lease, int64_t position, SnapshotKind kind, SnapshotPlace place) {
  if (!has_snapshots()) return std::nullopt;
  VOLLEY_CHECK_GT(position, lease.last_snapshot());
  PagePool& pool = pools_.back();
  const int64_t of_leases = pool.used() - pool.cache_only();
  const bool enough = place == SnapshotPlace::kRegular && of_leases >= divide_up(pool.total(), 2);
  const bool more = !enough && (pool.free() > 0 || tree_.evict(groups() - 1, 1) > 0);
  if (!more && !recycle(lease, position)) return std::nullopt;
  // The snapshot takes the index of the page that `position` ends, or is in.
  PageList page(pool, static_cast<size_t>((position - 1) / config_.page_size));
  page.grow_to(page.begin() + 1);
  const PageId id = page[page.begin()];
  kinds_[static_cast<size_t>(id.value)] = kind;
  lease.snapshots_.push_back({position, place, std::move(page)});
  return id;
}

void Cache::keep(const std::string& space, std::span<const CacheKey> computed, Lease& lease) {
  if (!config_.prefix_cache) return;
  const auto position = static_cast<int64_t>(computed.size());
  auto next = lease.snapshots_.begin();
  for (; next != lease.snapshots_.end() && next->position <= position; ++next) {
    lease.last_snapshot_ = next->position;
    std::swap(lease.lists_.back(), next->page);
    tree_.insert(space, computed.first(static_cast<size_t>(next->position)), lease.lists_);
    lease.lists_.back() = PageList(pools_.back());
  }
  lease.snapshots_.erase(lease.snapshots_.begin(), next);
  keep_pages(space, computed, lease);
}

void Cache::keep_pages(const std::string& space, std::span<const CacheKey> computed, Lease& lease) {
  if (!config_.prefix_cache) return;
  const size_t whole =
      computed.size() / static_cast<size_t>(config_.page_size) * static_cast<size_t>(config_.page_size);
  tree_.insert(space, computed.first(whole), lease.lists_);
}

void Cache::advance(const std::string& space, std::span<const CacheKey> computed, Lease& lease) {
  const auto begin_of = [&](size_t group) {
    const auto position = static_cast<int64_t>(computed.size());
    return static_cast<size_t>(first_page(config_.groups[group], position, config_.page_size));
  };
  bool moves = false;
  for (size_t i = 1; i < groups(); ++i) moves |= begin_of(i) > lease.lists_[i].begin();
  if (!moves) return;
  keep_pages(space, computed, lease);
  for (size_t i = 1; i < groups(); ++i) lease.lists_[i].drop_before(begin_of(i));
}

void Cache::drop_prefixes() {
  tree_.drop();
}

int32_t Cache::too_small(const Need& need) const {
  for (size_t i = 0; i < groups(); ++i) {
    if (most_pages(group(i), need.positions, need.ahead, config_.page_size) > group(i).pages) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

std::vector<int64_t> Cache::room() const {
  std::vector<int64_t> room;
  for (size_t i = 0; i < groups(); ++i) room.push_back(pools_[i].free() + tree_.evictable(i));
  return room;
}

std::vector<int64_t> Cache::pages_of(const Need& need) const {
  std::vector<int64_t> pages;
  for (size_t i = 0; i < groups(); ++i) pages.push_back(range_of(group(i), need, config_.page_size).size());
  return pages;
}

int64_t Cache::bytes(const Lease& lease) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < groups(); ++i) bytes += lease.pages(i) * group(i).bytes;
  return bytes;
}

Cache::Use Cache::use(size_t group) const {
  return {.total = pools_[group].total(), .used = pools_[group].used(), .cached = pools_[group].cache_only()};
}

}  // namespace volley::kv
