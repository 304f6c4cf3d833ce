// The index of real events. (A scheduler's events under pressure are in sched/simulation_test.cc.)
#include "kv/cache_index.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kv/cache.h"
#include "kv/page_hash.h"

namespace volley::kv {
namespace {

using Tokens = std::vector<TokenId>;

CacheConfig two_token_pages() {
  return {.page_size = 2, .groups = {{.pages = 8}}, .events = true};
}

void compute(Cache& cache, const Tokens& tokens, const std::string& space = "") {
  Lease lease = cache.open(space, tokens, true);
  ASSERT_TRUE(cache.grow(lease, {.positions = static_cast<int64_t>(tokens.size())}));
  cache.keep(space, tokens, lease);
}

size_t cached(const CacheIndex& index, const Tokens& tokens, const std::string& space = "") {
  return index.leading(page_hashes(space, tokens, 2));
}

TEST(CacheEvents, SayWhatIsCachedUnderWhichPrefix) {
  Cache cache(two_token_pages());
  compute(cache, {1, 2, 3, 4, 5});
  const std::vector<CacheEvent> events = cache.take_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, CacheEvent::Kind::kStored);
  EXPECT_EQ(events[0].parent, 0u);
  EXPECT_EQ(events[0].tokens, (Tokens{1, 2}));
  EXPECT_EQ(events[0].page_size, 2);
  EXPECT_EQ(events[1].parent, events[0].hash);
  EXPECT_EQ(events[1].tokens, (Tokens{3, 4}));
  EXPECT_TRUE(cache.take_events().empty());

  CacheIndex index;
  index.apply(events);
  compute(cache, {1, 2, 7, 8}, "");
  compute(cache, {1, 2, 3, 4}, "salt");
  index.apply(cache.take_events());
  EXPECT_EQ(index.size(), 5u);
  EXPECT_EQ(cached(index, {1, 2, 3, 4, 5}), 2u);
  EXPECT_EQ(cached(index, {1, 2, 7, 8, 9, 9}), 2u);
  EXPECT_EQ(cached(index, {3, 4}), 0u) << "the same tokens behind others are another page";
  EXPECT_EQ(cached(index, {1, 2, 7, 8}, "salt"), 1u);
  EXPECT_EQ(cached(index, {1, 2}, "pepper"), 0u);
}

TEST(CacheEvents, SayWhatWasEvictedAndDropped) {
  Cache cache(two_token_pages());
  compute(cache, {1, 2, 3, 4, 5, 6});
  compute(cache, {1, 2, 9, 9});
  CacheIndex index;
  index.apply(cache.take_events());
  compute(cache, {7, 7, 7, 7, 7, 7, 7, 7, 7, 7});  // five pages; four are free
  index.apply(cache.take_events());
  EXPECT_EQ(cached(index, {1, 2, 3, 4, 5, 6}), 2u) << "of the older run the last page";
  EXPECT_EQ(cached(index, {1, 2, 9, 9}), 2u);
  EXPECT_EQ(index.size(), 8u);

  Lease lease = cache.open("", Tokens{1, 2, 3, 4}, true);
  cache.drop_prefixes();
  index.apply(cache.take_events());
  EXPECT_EQ(index.size(), 2u) << "somebody uses these";
  lease = Lease();
  cache.drop_prefixes();
  const std::vector<CacheEvent> events = cache.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, CacheEvent::Kind::kCleared);
}

// The hash is not cryptographic, so a client may find two pages with one hash: the index must keep working.
TEST(CacheEvents, OneHashOfTwoPagesIsHeldUntilBothAreGone) {
  const CacheEvent stored{.kind = CacheEvent::Kind::kStored, .hash = 7, .tokens = {}};
  const CacheEvent removed{.kind = CacheEvent::Kind::kRemoved, .hash = 7, .tokens = {}};
  CacheIndex index;
  index.apply(std::vector<CacheEvent>{stored, stored, removed});
  EXPECT_TRUE(index.holds(7));
  index.apply(std::vector<CacheEvent>{removed});
  EXPECT_FALSE(index.holds(7));
  EXPECT_EQ(index.size(), 0u);
}

TEST(CacheEvents, AreNotMadeForNobody) {
  CacheConfig config = two_token_pages();
  config.events = false;
  Cache cache(config);
  compute(cache, {1, 2, 3, 4});
  cache.drop_prefixes();
  EXPECT_TRUE(cache.take_events().empty());
}

}  // namespace
}  // namespace volley::kv
