#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "kv/page_list.h"

namespace volley::kv {
namespace {

// A page handed out twice would mix the K and V of two requests.
TEST(PagePool, HandsOutEveryPageOnce) {
  PagePool pool(5);
  std::set<PageId> seen;
  while (pool.free() > 0) EXPECT_TRUE(seen.insert(pool.take()).second);
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_EQ(pool.used(), 5);
  EXPECT_DEATH(pool.take(), "free\\(\\) > 0");
}

TEST(PagePool, LastReferenceReturnsThePage) {
  PagePool pool(2);
  const PageId page = pool.take();
  pool.retain(page);
  EXPECT_EQ(pool.references(page), 2);
  pool.release(page);
  EXPECT_EQ(pool.used(), 1);
  pool.release(page);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.references(page), 0);
}

TEST(PagePool, MisuseIsABug) {
  PagePool pool(2);
  EXPECT_DEATH(pool.release(PageId(0)), "references > 0");
  EXPECT_DEATH(pool.retain(PageId(1)), "references > 0");
  EXPECT_DEATH(pool.release(PageId(2)), "total");
  EXPECT_DEATH(pool.release(PageId(-1)), ">= 0");
  const PageId page = pool.take();
  EXPECT_DEATH(pool.release_from_cache(page), "cached");
  pool.retain_for_cache(page);
  EXPECT_DEATH(pool.retain_for_cache(page), "cached");
  pool.release(page);
  EXPECT_DEATH(pool.release(page), "references > 0");  // a request cannot release the cache's reference
}

// Admission counts cache_only() pages as free, so the count must be right after every order of retaining and releasing.
TEST(PagePool, CountsThePagesThatOnlyTheCacheHolds) {
  PagePool pool(2);
  const PageId page = pool.take();
  pool.retain_for_cache(page);
  EXPECT_EQ(pool.cache_only(), 0);
  pool.release(page);
  EXPECT_EQ(pool.cache_only(), 1);
  EXPECT_EQ(pool.used(), 1);
  pool.retain(page);
  pool.retain(page);
  EXPECT_EQ(pool.cache_only(), 0);
  pool.release(page);
  EXPECT_EQ(pool.cache_only(), 0);
  pool.release(page);
  EXPECT_EQ(pool.cache_only(), 1);
  pool.release_from_cache(page);
  EXPECT_EQ(pool.cache_only(), 0);
  EXPECT_EQ(pool.free(), 2);

  const PageId kept = pool.take();
  pool.retain_for_cache(kept);
  pool.release_from_cache(kept);  // a request still holds it
  EXPECT_EQ(pool.cache_only(), 0);
  EXPECT_EQ(pool.references(kept), 1);
}

TEST(PageList, ReturnsWhatItHoldsExactlyOnce) {
  PagePool pool(8);
  {
    PageList a(pool);
    a.grow_to(3);
    a.grow_to(2);  // never shrinks
    EXPECT_EQ(a.size(), 3u);
    PageList b(std::move(a));
    EXPECT_EQ(pool.used(), 3);
    PageList c(pool, 0, {pool.take()});
    c = std::move(b);
    EXPECT_EQ(c.size(), 3u);
    EXPECT_EQ(pool.used(), 4);
  }
  EXPECT_EQ(pool.used(), 0);
}

// The edits of a page table that is empty at first, as (index, page) pairs.
std::vector<std::pair<size_t, PageId>> edits_of(PageList& pages) {
  std::vector<std::pair<size_t, PageId>> edits;
  pages.take_edits([&](size_t index, PageId page) { edits.emplace_back(index, page); });
  return edits;
}

TEST(PageList, SaysWhatChangedInATable) {
  using Edits = std::vector<std::pair<size_t, PageId>>;
  PagePool pool(8);
  PageList a(pool), b(pool);
  a.grow_to(3);
  EXPECT_EQ(edits_of(a), (Edits{{0, a[0]}, {1, a[1]}, {2, a[2]}}));
  EXPECT_EQ(edits_of(a), Edits());
  a.grow_to(4);
  a.drop_before(2);
  EXPECT_EQ(pool.used(), 2);
  EXPECT_EQ(edits_of(a), (Edits{{0, pool.scrap_page()}, {1, pool.scrap_page()}, {3, a[3]}}));
  b.grow_to(1);
  a.replace(2, b[0]);
  EXPECT_EQ(pool.references(b[0]), 2);
  EXPECT_EQ(edits_of(a), (Edits{{2, b[0]}, {3, a[3]}}));
  a.drop_before(6);  // past the list's end
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(pool.used(), 1);
  a.grow_to(7);
  EXPECT_EQ(
      edits_of(a),
      (Edits{
          {2, pool.scrap_page()}, {3, pool.scrap_page()}, {4, pool.scrap_page()}, {5, pool.scrap_page()}, {6, a[6]}}));
}

}  // namespace
}  // namespace volley::kv
