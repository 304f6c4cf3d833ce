#include "kv/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kv/page_list.h"

namespace volley::kv {
namespace {

using Tokens = std::vector<TokenId>;

// A tree with one group. (What windows add is in cache_test.cc.)
struct OneGroup {
  explicit OneGroup(int64_t pages = 16, int32_t page_size = 2)
      : pools{PagePool(pages)}, pool(pools[0]), tree(pools, groups, page_size) {}

  std::vector<PagePool> pools;
  PagePool& pool;
  std::vector<Group> groups = std::vector<Group>(1);
  PrefixTree tree;
};

PageList match(PrefixTree& tree, const Tokens& tokens, const std::string& space = "") {
  return std::move(tree.match(space, tokens).lists[0]);
}

// Inserts the list's pages into the tree. The list then has the tree's pages.
void insert(PrefixTree& tree, const Tokens& tokens, PageList& pages, const std::string& space = "") {
  tree.insert(space, tokens, {&pages, 1});
}

// Inserts `tokens` on fresh pages that no request keeps; returns the pages that the tree then has for them.
std::vector<PageId> fill(PagePool& pool, PrefixTree& tree, const Tokens& tokens, const std::string& space = "") {
  PageList pages(pool);
  pages.grow_to(tokens.size() / 2);
  insert(tree, tokens, pages, space);
  return {pages.view().begin(), pages.view().end()};
}

size_t matched(PrefixTree& tree, const Tokens& tokens, const std::string& space = "") {
  return match(tree, tokens, space).size();
}

TEST(PrefixTree, MatchesWholePagesOnly) {
  OneGroup one;
  const auto pages = fill(one.pool, one.tree, {1, 2, 3, 4, 5, 6});
  const PageList found = match(one.tree, Tokens{1, 2, 3, 4, 5});
  EXPECT_TRUE(std::ranges::equal(found.view(), std::span(pages).first(2)));
  EXPECT_EQ(one.pool.references(pages[0]), 2);
  EXPECT_EQ(one.pool.references(pages[2]), 1);
  EXPECT_EQ(matched(one.tree, {1}), 0u);
  EXPECT_EQ(matched(one.tree, {1, 3, 3, 4}), 0u);
  EXPECT_EQ(matched(one.tree, {1, 2, 3, 9, 5, 6}), 1u);
}

// Two prompts that differ from the middle of a page share the pages before it, and keep both ends.
TEST(PrefixTree, SplitsARunAtAPage) {
  OneGroup one;
  const auto a = fill(one.pool, one.tree, {1, 2, 3, 4, 5, 6});
  const auto b = fill(one.pool, one.tree, {1, 2, 3, 7, 8, 9});
  EXPECT_EQ(one.tree.pages(0), 5);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_NE(a[1], b[1]);
  EXPECT_EQ(matched(one.tree, {1, 2, 3, 4, 5, 6}), 3u);
  EXPECT_EQ(matched(one.tree, {1, 2, 3, 7, 8, 9}), 3u);
}

// A tenant must not be able to observe another tenant's text through cache hits.
TEST(PrefixTree, NamespacesDoNotMeet) {
  OneGroup one;
  fill(one.pool, one.tree, {1, 2, 3, 4}, "a");
  EXPECT_EQ(matched(one.tree, {1, 2, 3, 4}, "b"), 0u);
  EXPECT_EQ(matched(one.tree, {1, 2, 3, 4}, ""), 0u);
  fill(one.pool, one.tree, {1, 2, 3, 4}, "b");
  EXPECT_EQ(one.tree.pages(0), 4);
  EXPECT_EQ(one.tree.evict(0, 2), 2);  // all of "a", the older one
  EXPECT_EQ(matched(one.tree, {1, 2, 3, 4}, "a"), 0u);
  EXPECT_EQ(matched(one.tree, {1, 2, 3, 4}, "b"), 2u);
}

// The second of two requests that computed the same prompt gives its duplicates back and uses the first one's pages.
TEST(PrefixTree, InsertMovesTheCallerToPagesThatAreThere) {
  OneGroup one;
  PageList a(one.pool), b(one.pool);
  a.grow_to(2);
  b.grow_to(3);
  const std::vector<PageId> own(b.view().begin(), b.view().end());
  insert(one.tree, {1, 2, 3, 4}, a);
  insert(one.tree, {1, 2, 3, 4, 5, 6}, b);
  EXPECT_EQ(b.view()[0], a.view()[0]);
  EXPECT_EQ(b.view()[1], a.view()[1]);
  EXPECT_EQ(b.view()[2], own[2]);
  EXPECT_EQ(one.pool.used(), 3);
  EXPECT_EQ(one.pool.references(own[0]), 0);
  EXPECT_EQ(one.pool.references(a.view()[0]), 3);
}

TEST(PrefixTree, EvictsTheLeastRecentlyUsedEndFirst) {
  OneGroup one;
  fill(one.pool, one.tree, {1, 2, 3, 4, 5, 6});
  fill(one.pool, one.tree, {7, 8, 9, 10});
  EXPECT_EQ(matched(one.tree, {1, 2, 3, 4}), 2u);  // all of the first run but its end was used just now
  EXPECT_EQ(one.tree.evict(0, 1), 1);
  EXPECT_EQ(matched(one.tree, {1, 2, 3, 4, 5, 6}), 2u);
  EXPECT_EQ(one.tree.evict(0, 1), 1);
  EXPECT_EQ(matched(one.tree, {7, 8, 9, 10}), 1u);
  EXPECT_EQ(one.tree.evict(0, 100), 3);
  EXPECT_EQ(one.tree.pages(0), 0);
  EXPECT_EQ(one.pool.used(), 0);
}

TEST(PrefixTree, KeepsWhatARequestUses) {
  OneGroup one;
  fill(one.pool, one.tree, {1, 2, 3, 4, 5, 6});
  {
    const PageList held = match(one.tree, Tokens{1, 2, 3, 4});
    EXPECT_EQ(one.tree.evictable(0), 1);
    EXPECT_EQ(one.tree.evict(0, 100), 1);
    EXPECT_EQ(one.tree.pages(0), 2);
  }
  EXPECT_EQ(one.tree.evictable(0), 2);
}

TEST(PrefixTree, ReturnsItsPagesWhenItEnds) {
  std::vector<PagePool> pools{PagePool(16)};
  const std::vector<Group> groups(1);
  PagePool& pool = pools[0];
  PageList held(pool);
  {
    PrefixTree tree(pools, groups, 2);
    fill(pool, tree, {1, 2, 3, 4});
    fill(pool, tree, {1, 2, 5, 6}, "other");
    held = match(tree, Tokens{1, 2});
  }
  EXPECT_EQ(pool.used(), 1);
  EXPECT_EQ(pool.cache_only(), 0);
}

// A simple oracle: every page is a node of its own, and lookups search all of them.
class Oracle {
 public:
  struct Page {
    PageId id;
    uint64_t last_used = 0;
  };

  explicit Oracle(size_t page_size) : page_size_(page_size) {}

  std::vector<PageId> match(const std::string& space, const Tokens& tokens) {
    ++clock_;
    std::vector<PageId> found;
    for (size_t end = page_size_; end <= tokens.size(); end += page_size_) {
      const auto page = pages_.find(key(space, tokens, end));
      if (page == pages_.end()) break;
      page->second.last_used = clock_;
      found.push_back(page->second.id);
    }
    return found;
  }

  // Returns the pages that the caller should hold afterwards.
  std::vector<PageId> insert(const std::string& space, const Tokens& tokens, std::vector<PageId> pages) {
    ++clock_;
    for (size_t i = 0; i < pages.size(); ++i) {
      auto& page = pages_.try_emplace(key(space, tokens, (i + 1) * page_size_), Page{pages[i]}).first->second;
      page.last_used = clock_;
      pages[i] = page.id;
    }
    return pages;
  }

  int64_t evict(int64_t wanted, const std::map<PageId, int>& held) {
    int64_t freed = 0;
    for (; freed < wanted; ++freed) {
      auto oldest = pages_.end();
      for (auto page = pages_.begin(); page != pages_.end(); ++page) {
        if (held.contains(page->second.id) || !is_leaf(page->first)) continue;
        if (oldest == pages_.end() || page->second.last_used < oldest->second.last_used) oldest = page;
      }
      if (oldest == pages_.end()) break;
      pages_.erase(oldest);
    }
    return freed;
  }

  int64_t evictable(const std::map<PageId, int>& held) const {
    Oracle copy = *this;
    return copy.evict(static_cast<int64_t>(pages_.size()), held);
  }

  int64_t pages() const { return static_cast<int64_t>(pages_.size()); }
  bool holds(PageId id) const {
    return std::ranges::any_of(pages_, [&](const auto& entry) { return entry.second.id == id; });
  }

 private:
  using Key = std::pair<std::string, Tokens>;
  static Key key(const std::string& space, const Tokens& tokens, size_t end) {
    return {space, Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(end))};
  }
  bool is_leaf(const Key& page) const {
    return std::ranges::none_of(pages_, [&](const auto& other) {
      return other.first.first == page.first && other.first.second.size() > page.second.size() &&
             std::equal(page.second.begin(), page.second.end(), other.first.second.begin());
    });
  }

  size_t page_size_;
  uint64_t clock_ = 0;
  std::map<Key, Page> pages_;
};

// Plays requests that come, share, grow and leave, and compares each answer of the tree with the oracle's.
class Comparison {
 public:
  Comparison(uint32_t seed, int32_t page_size)
      : random_(seed), page_size_(page_size), one_(48, page_size), oracle_(static_cast<size_t>(page_size)) {}

  void step() {
    const int what = below(10);
    if (what < 5) {
      compute();
    } else if (what < 7) {
      look_up();
    } else if (what < 9 && !requests_.empty()) {
      auto leaving = requests_.begin();
      std::advance(leaving, below(static_cast<int>(requests_.size())));
      requests_.erase(leaving);
    } else {
      evict(below(4));
    }
    const auto held = holders();
    ASSERT_EQ(tree_.pages(0), oracle_.pages());
    ASSERT_EQ(tree_.evictable(0), oracle_.evictable(held));
    const auto outside = std::ranges::count_if(held, [&](const auto& entry) { return !oracle_.holds(entry.first); });
    ASSERT_EQ(pool_.used(), tree_.pages(0) + outside);
  }

 private:
  struct Request {
    std::string space;
    Tokens tokens;  // whole pages
    PageList pages;
  };

  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }
  std::string any_space() { return below(4) == 0 ? "other" : ""; }
  Tokens any_tokens(size_t pages) {
    Tokens tokens(pages * static_cast<size_t>(page_size_));
    for (TokenId& token : tokens) token = below(4) == 0 ? 1 : 0;
    return tokens;
  }
  std::map<PageId, int> holders() const {
    std::map<PageId, int> held;
    for (const Request& request : requests_) {
      for (const PageId page : request.pages.view()) ++held[page];
    }
    return held;
  }

  // A request computes a prompt, with or without looking for it first, and enters it.
  void compute() {
    const std::string space = any_space();
    const Tokens tokens = any_tokens(static_cast<size_t>(1 + below(6)));
    const size_t count = tokens.size() / static_cast<size_t>(page_size_);
    PageList pages(pool_);
    if (below(2) == 0) {
      const auto expected = oracle_.match(space, tokens);
      pages = match(tree_, tokens, space);
      ASSERT_TRUE(std::ranges::equal(pages.view(), expected));
    }
    if (pool_.free() < static_cast<int64_t>(count - pages.size())) return;
    pages.grow_to(count);
    const auto expected = oracle_.insert(space, tokens, {pages.view().begin(), pages.view().end()});
    insert(tree_, tokens, pages, space);
    ASSERT_TRUE(std::ranges::equal(pages.view(), expected));
    requests_.push_back({space, tokens, std::move(pages)});
  }

  void look_up() {
    const std::string space = any_space();
    Tokens tokens = any_tokens(static_cast<size_t>(1 + below(6)));
    tokens.resize(tokens.size() - static_cast<size_t>(below(page_size_)));  // may end inside a page
    const auto expected = oracle_.match(space, tokens);
    PageList pages = match(tree_, tokens, space);
    ASSERT_TRUE(std::ranges::equal(pages.view(), expected));
    if (below(2) == 0) requests_.push_back({space, std::move(tokens), std::move(pages)});
  }

  void evict(int64_t wanted) { ASSERT_EQ(tree_.evict(0, wanted), oracle_.evict(wanted, holders())); }

  std::mt19937 random_;
  int32_t page_size_;
  OneGroup one_;
  PagePool& pool_ = one_.pool;
  PrefixTree& tree_ = one_.tree;
  Oracle oracle_;
  std::list<Request> requests_;
};

TEST(PrefixTree, AgreesWithAnOracle) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    Comparison comparison(seed, 1 + static_cast<int32_t>(seed % 3));
    for (int i = 0; i < 400; ++i) {
      ASSERT_NO_FATAL_FAILURE(comparison.step()) << "seed " << seed << ", operation " << i;
    }
  }
}

}  // namespace
}  // namespace volley::kv
