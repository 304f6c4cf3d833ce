// Snapshots of recurrent states in the cache: which ones exist, which requests may use them, and the tails that end at
// them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kv/cache.h"
#include "kv/tokens_for_test.h"

namespace volley::kv {
namespace {

int64_t hit_of(Cache& cache, const Tokens& tokens) {
  return cache.open("", tokens, true).cached();
}

// A cache with snapshots; the test knows the content of each.
CacheConfig recurrent(int64_t pages, int64_t snapshots) {
  return {.page_size = 4, .groups = {{.pages = pages}, {.life = Life::kState, .pages = snapshots}}};
}

// Computes all tokens, with snapshots at these positions.
void run_with(Cache& cache, const Tokens& tokens, const std::vector<int64_t>& positions) {
  Lease lease = cache.open("", tokens, true);
  ASSERT_TRUE(cache.grow(lease, {.positions = std::ssize(tokens), .ahead = std::ssize(tokens)}));
  lease.take_beginning();
  for (const int64_t position : positions) {
    if (position <= lease.last_snapshot()) continue;
    ASSERT_TRUE(cache.snapshot(lease, position, SnapshotKind::kPrompt, SnapshotPlace::kWanted));
  }
  cache.keep("", tokens, lease);
}

TEST(KvCache, AHitWithStatesNeedsASnapshotThere) {
  Cache cache(recurrent(40, 4));
  const Tokens tokens = counting(0, 30);
  run_with(cache, tokens, {});
  EXPECT_EQ(hit_of(cache, tokens), 0) << "pages alone";
  EXPECT_EQ(cache.open("", tokens, true).shared(), 28);
  run_with(cache, tokens, {8, 20});
  EXPECT_EQ(hit_of(cache, tokens), 20);
  EXPECT_EQ(hit_of(cache, counting(0, 19)), 8);
  EXPECT_EQ(hit_of(cache, counting(0, 7)), 0);
  EXPECT_EQ(cache.use(1).used, 2);
  run_with(cache, tokens, {30});
  EXPECT_EQ(hit_of(cache, tokens), 30) << "a tail";
  EXPECT_EQ(hit_of(cache, counting(0, 50)), 30);
  EXPECT_EQ(hit_of(cache, counting(0, 29)), 20);
  cache.drop_prefixes();
  EXPECT_EQ(cache.use(0).used, 0);
  EXPECT_EQ(cache.use(1).used, 0);
}

// A request that continues from the middle of a page writes to its own copy.
TEST(KvCache, ATailIsCopied) {
  Cache cache(recurrent(10, 4));
  const Tokens tokens = counting(0, 6);
  run_with(cache, tokens, {6});
  EXPECT_EQ(cache.use(0).used, 2);
  Lease lease = cache.open("", counting(0, 12), true);
  EXPECT_EQ(lease.cached(), 6);
  ASSERT_TRUE(cache.grow(lease, {.computed = 6, .positions = 12}));
  const Beginning beginning = lease.take_beginning();
  EXPECT_TRUE(beginning.snapshot);
  ASSERT_EQ(beginning.copies.size(), 1u);
  EXPECT_EQ(beginning.copies[0].group, 0);
  const std::vector<PageEdit> edits = lease.take_edits();
  ASSERT_EQ(edits.size(), 3u);
  EXPECT_EQ(edits[1].page, beginning.copies[0].to);
  EXPECT_NE(beginning.copies[0].from, beginning.copies[0].to);
  EXPECT_EQ(cache.use(0).used, 4) << "the tail is still the cache's";
  EXPECT_EQ(cache.hits(SnapshotKind::kPrompt), 1);
}

// A tail without the drafter's page is a hit_of too. The request's own page then lacks the tail's positions, so the
// cache never takes that page.
TEST(KvCache, ATailWithoutTheDraftersPageIsOfUse) {
  CacheConfig config = recurrent(40, 4);
  config.groups.insert(config.groups.begin() + 1,
                       Group{.life = Life::kWindow, .window = 8, .pages = 12, .required = false});
  Cache cache(config);
  const Tokens tokens = counting(0, 20);
  run_with(cache, counting(0, 6), {6});
  {
    Lease all = cache.open("", {}, true);
    ASSERT_TRUE(cache.grow(all, {.computed = 0, .positions = 48, .ahead = 48}));
    EXPECT_EQ(cache.use(1).cached, 0);
  }
  {
    Lease lease = cache.open("", tokens, true);
    EXPECT_EQ(lease.cached(), 6);
    EXPECT_EQ(lease.optional_from(), 6);
    ASSERT_TRUE(cache.grow(lease, {.computed = 6, .positions = 20, .ahead = 14}));
    EXPECT_EQ(lease.take_beginning().copies.size(), 1u) << "of group 0 alone";
    ASSERT_TRUE(cache.snapshot(lease, 20, SnapshotKind::kEnd, SnapshotPlace::kWanted));
    cache.keep("", tokens, lease);
    EXPECT_EQ(cache.use(1).used, 4);
  }
  EXPECT_EQ(cache.use(1).cached, 3) << "page 1 was the lease's alone";
  Lease lease = cache.open("", tokens, true);
  EXPECT_EQ(lease.cached(), 20);
  EXPECT_EQ(lease.optional_from(), 0) << "a row at 20 sees 13 …, in page 3";
}

TEST(KvCache, TheLeastRecentlyUsedSnapshotGoes) {
  Cache cache(recurrent(40, 2));
  const Tokens a = counting(0, 8), b = counting(100, 8), c = counting(200, 6);
  run_with(cache, a, {8});
  run_with(cache, b, {8});
  EXPECT_EQ(hit_of(cache, a), 8);
  run_with(cache, c, {6});
  EXPECT_EQ(hit_of(cache, b), 0);
  EXPECT_EQ(hit_of(cache, a), 8);
  EXPECT_EQ(hit_of(cache, c), 6);
  Lease lease = cache.open("", a, true);
  Lease one = cache.open("", {}, true), two = cache.open("", {}, true);
  EXPECT_TRUE(cache.snapshot(one, 4, SnapshotKind::kEnd, SnapshotPlace::kWanted)) << "the other one's";
  EXPECT_FALSE(cache.snapshot(two, 4, SnapshotKind::kEnd, SnapshotPlace::kWanted)) << "both are in use";
}

// No request can continue from a tail whose snapshot is gone: the tail's pages are freed at once, not when they become
// the oldest.
TEST(KvCache, ATailGoesWithItsSnapshot) {
  CacheConfig config = recurrent(40, 1);
  config.groups.insert(config.groups.begin() + 1, Group{.life = Life::kWindow, .window = 8, .pages = 20});
  Cache cache(config);
  run_with(cache, counting(0, 6), {6});
  EXPECT_EQ(cache.use(0).used, 2);
  run_with(cache, counting(100, 8), {8});
  EXPECT_EQ(cache.use(0).used, 1 + 2);
  EXPECT_EQ(cache.use(1).used, 1 + 2);
  // Alone in its namespace, and while its request still holds the page.
  const Tokens tokens = counting(200, 3);
  Lease lease = cache.open("other", tokens, true);
  ASSERT_TRUE(cache.grow(lease, {.positions = 8, .ahead = 8}));
  ASSERT_TRUE(cache.snapshot(lease, 3, SnapshotKind::kEnd, SnapshotPlace::kWanted));
  cache.keep("other", tokens, lease);
  EXPECT_EQ(cache.open("other", counting(200, 9), true).cached(), 3);
  run_with(cache, counting(300, 8), {8});
  EXPECT_EQ(cache.open("other", counting(200, 9), true).cached(), 0);
  EXPECT_EQ(lease.pages(0), 2);
  lease = cache.open("", {}, false);
  EXPECT_EQ(cache.use(0).used, 1 + 2 + 2);
  EXPECT_EQ(cache.use(0).cached, 1 + 2 + 2);
}

// Positions at which there is a snapshot of `tokens`.
std::vector<int64_t> snapshots_of(Cache& cache, const Tokens& tokens) {
  std::vector<int64_t> found;
  for (size_t n = 1; n <= tokens.size(); ++n) {
    if (hit_of(cache, Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n))) == static_cast<int64_t>(n)) {
      found.push_back(static_cast<int64_t>(n));
    }
  }
  return found;
}

// A long prompt leaves half of the snapshots to other requests; its own stay spread over the prompt and include the
// latest.
TEST(KvCache, RegularSnapshotsAreThinnedOut) {
  Cache cache(recurrent(200, 8));
  std::vector<Tokens> others;
  for (int i = 0; i < 8; ++i) run_with(cache, others.emplace_back(counting(1000 * (i + 1), 8)), {8});
  const Tokens tokens = counting(0, 100);
  {
    Lease lease = cache.open("", tokens, true);
    ASSERT_TRUE(cache.grow(lease, {.positions = 100, .ahead = 100}));
    for (int64_t at = 4; at <= 96; at += 4) {
      ASSERT_TRUE(cache.snapshot(lease, at, SnapshotKind::kPrompt, SnapshotPlace::kRegular)) << at;
      EXPECT_EQ(lease.last_snapshot(), at);
    }
    EXPECT_EQ(cache.use(1).used - cache.use(1).cached, 4);
    cache.keep("", tokens, lease);
  }
  const std::vector<int64_t> positions = snapshots_of(cache, tokens);
  ASSERT_EQ(positions.size(), 4u);
  EXPECT_EQ(positions.back(), 96);
  for (size_t i = 0; i < 4; ++i) EXPECT_LE(positions[i] - (i > 0 ? positions[i - 1] : 0), 96 / 2) << i;
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(hit_of(cache, others[i]), i < 4 ? 0 : 8) << i;
}

// A wanted snapshot is never given up for a later one, and wanted ones may use more than half of the pool.
TEST(KvCache, WantedSnapshotsStay) {
  Cache cache(recurrent(200, 4));
  const Tokens tokens = counting(0, 100);
  {
    Lease lease = cache.open("", tokens, true);
    ASSERT_TRUE(cache.grow(lease, {.positions = 100, .ahead = 100}));
    for (int64_t at = 4; at <= 96; at += 4) {
      const bool wanted = at == 20 || at == 56 || at == 92;
      const auto place = wanted ? SnapshotPlace::kWanted : SnapshotPlace::kRegular;
      EXPECT_TRUE(cache.snapshot(lease, at, SnapshotKind::kPrompt, place)) << at;
    }
    EXPECT_TRUE(cache.snapshot(lease, 98, SnapshotKind::kEnd, SnapshotPlace::kWanted));
    EXPECT_FALSE(cache.snapshot(lease, 100, SnapshotKind::kEnd, SnapshotPlace::kWanted)) << "only wanted ones are left";
    cache.keep("", std::span(tokens).first(98), lease);
  }
  EXPECT_EQ(snapshots_of(cache, tokens), (std::vector<int64_t>{20, 56, 92, 98}));
}

// advance() caches pages but no snapshots, because the request could not thin out cached ones any more.
TEST(KvCache, AWindowThatMovesKeepsNoSnapshots) {
  CacheConfig config = recurrent(200, 4);
  config.groups.insert(config.groups.begin() + 1, Group{.life = Life::kWindow, .window = 8, .pages = 100});
  Cache cache(config);
  const Tokens other = counting(1000, 8), another = counting(2000, 8), tokens = counting(0, 100);
  run_with(cache, other, {8});
  run_with(cache, another, {8});
  {
    Lease lease = cache.open("", tokens, true);
    for (int64_t at = 4; at <= 96; at += 4) {
      ASSERT_TRUE(cache.grow(lease, {.computed = at - 4, .positions = 100, .ahead = 8}));
      ASSERT_TRUE(cache.snapshot(lease, at, SnapshotKind::kPrompt, SnapshotPlace::kRegular)) << at;
      cache.advance("", std::span(tokens).first(static_cast<size_t>(at)), lease);
    }
    cache.keep("", std::span(tokens).first(96), lease);
  }
  EXPECT_EQ(hit_of(cache, tokens), 96);
  EXPECT_EQ(hit_of(cache, other), 8);
  EXPECT_EQ(hit_of(cache, another), 8);
}

}  // namespace
}  // namespace volley::kv
