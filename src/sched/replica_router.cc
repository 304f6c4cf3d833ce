#include "sched/replica_router.h"

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace volley::sched {

ReplicaRouter::ReplicaRouter(size_t replicas, int32_t page_size) : page_size_(page_size), replicas_(replicas) {
  VOLLEY_CHECK_GT(replicas, size_t{0});
  VOLLEY_CHECK_GT(page_size, 0);
}

size_t ReplicaRouter::add(Arrival arrival) {
  const size_t chosen = choose(arrival);
  Replica& replica = replicas_[chosen];
  Open open{.replica = chosen,
            .rows = arrival.prompt - cached_rows(replica, arrival),
            .tokens = std::min(arrival.max_tokens, kMostExpected),
            .pages = std::move(arrival.pages)};
  const auto [added, is_new] = open_.emplace(arrival.id, std::move(open));
  VOLLEY_CHECK(is_new);
  for (const uint64_t page : added->second.pages) ++replica.under_way[page];
  replica.work += added->second.rows + added->second.tokens;
  ++replica.sent;
  return chosen;
}

size_t ReplicaRouter::choose(const Arrival& arrival) const {
  std::optional<size_t> least, longest;
  int64_t longest_rows = 0;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    if (!usable(replica)) continue;
    const auto load = [this](size_t other) { return std::tuple(replicas_[other].work, replicas_[other].sent, other); };
    if (!least || load(i) < load(*least)) least = i;
    const int64_t rows = cached_rows(replica, arrival);
    if (!longest || rows > longest_rows || (rows == longest_rows && load(i) < load(*longest))) {
      longest = i;
      longest_rows = rows;
    }
  }
  const int64_t saved = longest_rows - cached_rows(replicas_[*least], arrival);
  if (saved < page_size_ || saved * kLeastShare < arrival.prompt) return *least;
  const int64_t own = arrival.prompt - longest_rows + std::min(arrival.max_tokens, kMostExpected);
  const double bound = kBusier * static_cast<double>(replicas_[*least].work) +
                       static_cast<double>(kWorthOfRow * saved + kWorthOfOwn * own);
  return static_cast<double>(replicas_[*longest].work) <= bound ? *longest : *least;
}

// The last token is always computed.
int64_t ReplicaRouter::cached_rows(const Replica& replica, const Arrival& arrival) const {
  const auto missing = std::ranges::find_if_not(
      arrival.pages, [&](uint64_t page) { return replica.cached.holds(page) || replica.under_way.contains(page); });
  return std::min<int64_t>(arrival.prompt - 1, (missing - arrival.pages.begin()) * page_size_);
}

void ReplicaRouter::progressed(RequestId id, int64_t tokens) {
  const auto found = open_.find(id);
  if (found == open_.end() || tokens == 0) return;
  Open& open = found->second;
  const int64_t made = std::min(tokens, open.tokens - 1);  // a request past its estimate still makes a token
  replicas_[open.replica].work -= open.rows + std::max<int64_t>(0, made);
  open.rows = 0;
  open.tokens -= std::max<int64_t>(0, made);
}

void ReplicaRouter::ended(RequestId id) {
  const auto found = open_.find(id);
  if (found == open_.end()) return;
  Replica& replica = replicas_[found->second.replica];
  replica.work -= found->second.rows + found->second.tokens;
  if (!found->second.pages.empty()) replica.ended.push_back(std::move(found->second.pages));
  open_.erase(found);
}

void ReplicaRouter::published(size_t index, std::span<const CacheEvent> events) {
  Replica& replica = replicas_[index];
  replica.cached.apply(events);
  for (const std::vector<uint64_t>& pages : replica.ended) release(replica, pages);
  replica.ended.clear();
}

void ReplicaRouter::release(Replica& replica, std::span<const uint64_t> pages) {
  for (const uint64_t page : pages) {
    const auto held = replica.under_way.find(page);
    if (--held->second == 0) replica.under_way.erase(held);
  }
}

void ReplicaRouter::set_available(size_t replica, bool available) {
  replicas_[replica].available = available;
  none_available_ = std::ranges::none_of(replicas_, &Replica::available);
}

}  // namespace volley::sched
