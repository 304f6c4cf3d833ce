#include "kv/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "kv/tokens_for_test.h"

namespace volley::kv {
namespace {

// Pages of 4 positions; a window of 8: two pages behind a row that begins a page.
CacheConfig windowed(int64_t whole, int64_t window) {
  return {.page_size = 4, .groups = {{.pages = whole}, {.life = Life::kWindow, .window = 8, .pages = window}}};
}

// A request that computes `tokens` in steps of a page and ends; its pages stay cached.
int64_t run(Cache& cache, const Tokens& tokens) {
  Lease lease = cache.open("", tokens, true);
  const int64_t cached = lease.cached();
  const auto length = static_cast<int64_t>(tokens.size());
  for (int64_t at = cached; at < length; at += 4) {
    EXPECT_TRUE(cache.grow(lease, {.computed = at, .positions = length, .ahead = 4}));
    cache.advance("", std::span(tokens).first(static_cast<size_t>(std::min(at + 4, length))), lease);
  }
  cache.keep("", tokens, lease);
  return cached;
}

int64_t hit(Cache& cache, const Tokens& tokens) {
  return cache.open("", tokens, true).cached();
}

TEST(KvLayout, AWindowsRangeIsWhatRowsToComeSeeAndWrite) {
  const Group group{.life = Life::kWindow, .window = 8};
  // A row at 12 sees 5 … 12.
  EXPECT_EQ(first_page(group, 12, 4), 1);
  EXPECT_EQ(first_page(group, 15, 4), 2);
  EXPECT_EQ(first_page(group, 3, 4), 0);
  EXPECT_EQ(first_page(Group{}, 1000, 4), 0);
  const PageRange range = range_of(group, {.computed = 15, .positions = 100, .ahead = 5}, 4);
  EXPECT_EQ(range.begin, 2);
  EXPECT_EQ(range.end, 5);
  EXPECT_EQ(range_of(group, {.computed = 15, .positions = 17, .ahead = 50}, 4).end, 5) << "no further than it goes";
  for (int window = 1; window < 30; ++window) {
    for (int ahead = 1; ahead < 20; ++ahead) {
      int64_t most = 0;
      const Group any{.life = Life::kWindow, .window = window};
      for (int64_t at = 0; at < 200; ++at) {
        const Need need{.computed = at, .positions = std::min<int64_t>(at + ahead + 3, 200), .ahead = ahead};
        most = std::max(most, range_of(any, need, 4).size());
      }
      EXPECT_GE(most_pages(any, 200, ahead, 4), most) << window << " " << ahead;
      EXPECT_LE(most_pages(any, 200, ahead, 4), most + 1) << window << " " << ahead;
    }
  }
}

TEST(KvCache, GrowsInAllGroupsOrInNone) {
  Cache cache(windowed(10, 3));
  Lease lease = cache.open("", {}, true);
  EXPECT_FALSE(cache.grow(lease, {.computed = 0, .positions = 16, .ahead = 16})) << "four pages of the window";
  EXPECT_EQ(cache.use(0).used, 0);
  EXPECT_TRUE(cache.grow(lease, {.computed = 0, .positions = 16, .ahead = 12}));
  EXPECT_EQ(lease.pages(0), 4);
  EXPECT_EQ(lease.pages(1), 3);
  Lease other = cache.open("", {}, true);
  EXPECT_FALSE(cache.grow(other, {.computed = 0, .positions = 4, .ahead = 4}));
  EXPECT_EQ(cache.use(0).used, 4);
}

TEST(KvCache, SaysWhoseNeedItCanNeverMeet) {
  Cache cache(windowed(10, 5));
  EXPECT_EQ(cache.too_small({.positions = 40, .ahead = 9}), -1) << "7 positions and 9: 4 pages, or 5";
  EXPECT_EQ(cache.too_small({.positions = 41, .ahead = 9}), 0);
  EXPECT_EQ(cache.too_small({.positions = 40, .ahead = 14}), 1);
  EXPECT_EQ(cache.too_small({.positions = 20, .ahead = 100}), -1) << "short enough as a whole";
}

// Pages that no later row can see are freed while the request runs, and its table drops them.
TEST(KvCache, AWindowGivesItsPagesBackAsItMoves) {
  CacheConfig config = windowed(20, 8);
  config.prefix_cache = false;
  Cache cache(config);
  const Tokens tokens = counting(0, 40);
  Lease lease = cache.open("", tokens, true);
  ASSERT_TRUE(cache.grow(lease, {.computed = 0, .positions = 40, .ahead = 16}));
  EXPECT_EQ(lease.take_edits().size(), 10u + 4u);
  cache.advance("", std::span(tokens).first(10), lease);  // the next row sees 3 … 10
  EXPECT_EQ(lease.pages(1), 4);
  EXPECT_TRUE(lease.take_edits().empty());
  cache.advance("", std::span(tokens).first(16), lease);  // 9 … 16
  EXPECT_EQ(lease.pages(1), 2);
  EXPECT_EQ(cache.use(1).used, 2);
  const std::vector<PageEdit> edits = lease.take_edits();
  ASSERT_EQ(edits.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(edits[i].group, 1);
    EXPECT_EQ(edits[i].index, i);
    EXPECT_EQ(edits[i].page, scrap_page(cache.group(1)));
  }
  ASSERT_TRUE(cache.grow(lease, {.computed = 16, .positions = 40, .ahead = 24}));
  EXPECT_EQ(lease.pages(1), 8);
  EXPECT_EQ(lease.pages(0), 10);
}

TEST(KvCache, AHitNeedsTheWindowBeforeItsEnd) {
  Cache cache(windowed(40, 12));
  const Tokens tokens = counting(0, 40);
  EXPECT_EQ(run(cache, tokens), 0);
  EXPECT_EQ(cache.use(0).cached, 10);
  EXPECT_EQ(cache.use(1).cached, 10) << "there is room for what the window left behind";
  Lease lease = cache.open("", {}, true);
  ASSERT_TRUE(cache.grow(lease, {.computed = 0, .positions = 20, .ahead = 20}));
  EXPECT_EQ(cache.use(1).cached, 7) << "pages 0 to 2 of the window went";
  EXPECT_EQ(hit(cache, tokens), 40);
  EXPECT_EQ(hit(cache, counting(0, 21)), 20);
  EXPECT_EQ(hit(cache, counting(0, 19)), 0) << "a row at 16 sees 9 …, in page 2";
  EXPECT_EQ(hit(cache, counting(0, 12)), 0);
  EXPECT_EQ(cache.use(0).cached, 10);
}

// A prefix can be used only where its window ends, so pages that end no run are evicted before those that do, whatever
// their age.
TEST(KvCache, WhatEndsNoRunGoesFirst) {
  Cache cache(windowed(60, 12));
  const Tokens older = counting(100, 8), tokens = counting(0, 40);
  run(cache, older);
  run(cache, tokens);
  EXPECT_EQ(cache.use(1).cached, 12);
  Lease lease = cache.open("", {}, true);
  ASSERT_TRUE(cache.grow(lease, {.computed = 0, .positions = 32, .ahead = 32}));
  EXPECT_EQ(cache.use(1).cached, 4);
  EXPECT_EQ(hit(cache, tokens), 40);
  EXPECT_EQ(hit(cache, older), 8);
  ASSERT_TRUE(cache.grow(lease, {.computed = 0, .positions = 36, .ahead = 36}));
  EXPECT_EQ(hit(cache, tokens), 0) << "used before the other";
  EXPECT_EQ(hit(cache, older), 8);
}

// Whole pages whose window pages were evicted become usable when another request computes those again.
TEST(KvCache, AWindowThatIsComputedAgainCompletesTheTree) {
  Cache cache(windowed(40, 10));
  const Tokens tokens = counting(0, 40);
  run(cache, tokens);
  {
    Lease all = cache.open("", {}, true);
    ASSERT_TRUE(cache.grow(all, {.computed = 0, .positions = 40, .ahead = 40}));
    EXPECT_EQ(cache.use(1).cached, 0);
    EXPECT_EQ(hit(cache, tokens), 0);
  }
  EXPECT_EQ(run(cache, tokens), 0);
  EXPECT_EQ(cache.use(0).used, 10) << "its own whole pages were duplicates";
  EXPECT_EQ(cache.use(1).cached, 10);
  EXPECT_EQ(hit(cache, tokens), 40);
}

// A lease that begins with a hit owns only the window pages that its rows see, and hides the others.
TEST(KvCache, AHitBringsTheWindowAndHidesWhatLiesBefore) {
  Cache cache(windowed(40, 12));
  const Tokens tokens = counting(0, 40);
  run(cache, tokens);
  Lease lease = cache.open("", tokens, true);
  EXPECT_EQ(lease.pages(0), 10);
  EXPECT_EQ(lease.pages(1), 2);  // a row at 40 sees 33 …
  const auto edits = lease.take_edits();
  EXPECT_EQ(std::ranges::count(edits, scrap_page(cache.group(1)), &PageEdit::page), 8);
  EXPECT_EQ(edits.size(), 20u);
}

// Pages that only the drafter reads prevent no hit: the hit gives the part of its window that is left without a gap.
TEST(KvCache, AWindowThatIsNotRequiredVetoesNoHit) {
  CacheConfig config = windowed(40, 12);
  config.groups[1].required = false;
  Cache cache(config);
  const Tokens tokens = counting(0, 40);
  run(cache, tokens);
  EXPECT_EQ(cache.open("", tokens, true).optional_from(), 0) << "all of it is there";
  std::optional<Lease> other(cache.open("", {}, true));
  ASSERT_TRUE(cache.grow(*other, {.computed = 0, .positions = 20, .ahead = 20}));  // pages 0 to 2 of the window went
  {
    Lease lease = cache.open("", counting(0, 16), true);  // a row at 16 sees 9 …, in page 2
    EXPECT_EQ(lease.cached(), 16);
    EXPECT_EQ(lease.optional_from(), 12);
    EXPECT_EQ(lease.pages(1), 1);
  }
  ASSERT_TRUE(cache.grow(*other, {.computed = 0, .positions = 48, .ahead = 48}));
  {
    Lease lease = cache.open("", tokens, true);
    EXPECT_EQ(lease.cached(), 40);
    EXPECT_EQ(lease.optional_from(), 40);
    EXPECT_EQ(lease.pages(1), 0);
    const auto edits = lease.take_edits();
    EXPECT_EQ(std::ranges::count(edits, scrap_page(cache.group(1)), &PageEdit::page), 10);
  }
  EXPECT_EQ(hit(cache, counting(0, 23)), 20);
  other.reset();
  EXPECT_EQ(run(cache, counting(0, 60)), 40) << "goes on, and leaves a whole window behind it";
  EXPECT_EQ(cache.open("", counting(0, 60), true).optional_from(), 0);
}

// Requests come, share, compute, are cut short and leave. The test knows every page's content. Each row must see the
// right content, and leases and tree together must account for every page.
class Play {
 public:
  Play(uint32_t seed, const CacheConfig& config) : random_(seed), config_(config), cache_(config) {
    for (const Group& group : config.groups) memory_.emplace_back((group.pages + 1) * config.page_size, kNothing);
  }

  void step() {
    const int what = below(12);
    if (what < 3) {
      open();
    } else if (what < 10 && !requests_.empty()) {
      compute(*std::next(requests_.begin(), below(static_cast<int>(requests_.size()))));
    } else if (what < 11 && !requests_.empty()) {
      end(std::next(requests_.begin(), below(static_cast<int>(requests_.size()))));
    } else if (below(20) == 0) {
      cache_.drop_prefixes();
    }
    for (size_t group = 0; group < pages_groups(); ++group) {
      std::set<PageId> held;
      for (Request& request : requests_) {
        for (const PageId page : request.tables[group]) {
          if (page != scrap_page(cache_.group(group))) held.insert(page);
        }
      }
      const Cache::Use use = cache_.use(group);
      ASSERT_EQ(use.used - use.cached, std::ssize(held)) << "group " << group;
    }
  }
  int64_t cached() const { return cached_; }
  int64_t refused() const { return refused_; }
  int64_t without_context() const { return without_context_; }  // hits where windows that are not required were missing

 private:
  static constexpr uint64_t kNothing = 0;
  bool has_states() const { return config_.groups.back().life == Life::kState; }
  size_t pages_groups() const { return cache_.groups() - (has_states() ? 1 : 0); }
  uint64_t& state(PageId snapshot) { return memory_.back().at(static_cast<size_t>(snapshot.value)); }
  struct Request {
    std::string space;
    Tokens tokens;
    int64_t computed = 0;
    Lease lease;
    std::vector<std::vector<PageId>> tables;  // by group
  };

  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }
  uint64_t content(const Request& request, int64_t position) const {
    uint64_t state = std::hash<std::string>()(request.space) | 1;
    for (int64_t i = 0; i <= position; ++i) {
      state = (state ^ static_cast<uint64_t>(request.tokens[static_cast<size_t>(i)] + 3)) * 0x9e3779b97f4a7c15u;
    }
    return state;
  }
  uint64_t& cell(size_t group, const Request& request, int64_t position) {
    const PageId page = request.tables[group].at(static_cast<size_t>(position / config_.page_size));
    return memory_[group].at(static_cast<size_t>(page.value * config_.page_size + position % config_.page_size));
  }
  void edit(Request& request) {
    for (const PageEdit& edit : request.lease.take_edits()) {
      auto& table = request.tables[static_cast<size_t>(edit.group)];
      const auto index = static_cast<size_t>(edit.index);
      ASSERT_LE(index, table.size());
      if (index == table.size()) table.emplace_back();
      table[index] = edit.page;
    }
  }
  // The positions that a row at `computed` sees.
  void check(const Request& request) {
    for (size_t group = 0; group < pages_groups(); ++group) {
      const int32_t window = cache_.group(group).window;
      int64_t begin = window > 0 ? std::max<int64_t>(0, request.computed - window + 1) : 0;
      if (!cache_.group(group).required) begin = std::max(begin, request.lease.optional_from());
      for (int64_t at = begin; at < request.computed; ++at) {
        ASSERT_EQ(cell(group, request, at), content(request, at)) << "group " << group << ", position " << at;
      }
    }
  }

  void open() {
    Request request{.space = below(4) == 0 ? "other" : "", .tokens = {}, .lease = {}, .tables = {}};
    for (int n = 1 + below(60); n > 0; --n) request.tokens.push_back(below(8) == 0 ? 1 : 0);
    request.lease = cache_.open(request.space, request.tokens, below(5) > 0);
    request.computed = request.lease.cached();
    request.tables.resize(cache_.groups());
    if (has_states() && !begin(request)) return;
    cached_ += request.computed;
    without_context_ += request.lease.optional_from() > 0 ? 1 : 0;
    edit(request);
    check(request);
    if (has_states()) compute(request);
    requests_.push_back(std::move(request));
  }

  // Pages for the request's first row, the copies that a hit needs, and the state that the request begins with.
  bool begin(Request& request) {
    const auto length = static_cast<int64_t>(request.tokens.size());
    if (!cache_.grow(request.lease, {.computed = request.computed, .positions = length, .ahead = 14})) return false;
    const Beginning beginning = request.lease.take_beginning();
    for (const MemoryCopy& copy : beginning.copies) {
      auto& memory = memory_[static_cast<size_t>(copy.group)];
      std::copy_n(memory.begin() + copy.from.value * config_.page_size, config_.page_size,
                  memory.begin() + copy.to.value * config_.page_size);
    }
    EXPECT_EQ(beginning.snapshot.has_value(), request.computed > 0);
    if (beginning.snapshot) EXPECT_EQ(state(*beginning.snapshot), content(request, request.computed - 1));
    return true;
  }

  // A snapshot lies at the end of a whole page while the request runs, and anywhere when it ends.
  void snapshot(Request& request, SnapshotKind kind) {
    if (!has_states() || request.computed <= std::max(request.lease.cached(), request.lease.last_snapshot())) return;
    if (kind == SnapshotKind::kPrompt && request.computed % config_.page_size != 0) return;
    const auto place = below(2) == 0 ? SnapshotPlace::kWanted : SnapshotPlace::kRegular;
    const auto id = cache_.snapshot(request.lease, request.computed, kind, place);
    if (id) state(*id) = content(request, request.computed - 1);
  }

  void compute(Request& request) {
    const auto length = static_cast<int64_t>(request.tokens.size());
    const int64_t rows = std::min<int64_t>(1 + below(9), length - request.computed), ahead = rows + below(4);
    if (!cache_.grow(request.lease, {.computed = request.computed, .positions = length, .ahead = ahead})) {
      ++refused_;
      return;
    }
    edit(request);
    check(request);
    for (size_t group = 0; group < pages_groups(); ++group) {
      const int64_t written = std::min(request.computed + ahead, length);
      for (int64_t at = request.computed; at < written; ++at) {
        cell(group, request, at) = at < request.computed + rows ? content(request, at) : kNothing;
      }
    }
    request.computed += rows;
    if (below(2) == 0) snapshot(request, SnapshotKind::kPrompt);
    const auto computed = std::span(request.tokens).first(static_cast<size_t>(request.computed));
    cache_.advance(request.space, computed, request.lease);
    if (below(4) == 0) cache_.keep(request.space, computed, request.lease);
    edit(request);
    check(request);
  }

  void end(std::list<Request>::iterator request) {
    const auto computed = std::span(request->tokens).first(static_cast<size_t>(request->computed));
    if (below(3) > 0) snapshot(*request, SnapshotKind::kEnd);
    if (below(3) > 0) cache_.keep(request->space, computed, request->lease);
    requests_.erase(request);
  }

  std::mt19937 random_;
  const CacheConfig config_;
  Cache cache_;
  std::vector<std::vector<uint64_t>> memory_;  // by group
  std::list<Request> requests_;                // leases end before the cache
  int64_t cached_ = 0, refused_ = 0, without_context_ = 0;
};

TEST(KvCache, RowsFindWhatTheySeeAndPagesAddUp) {
  int64_t cached = 0, refused = 0, without_context = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    CacheConfig config{.page_size = 1 + static_cast<int32_t>(seed % 5), .groups = {{.pages = 90}}};
    config.prefix_cache = seed % 8 != 7;
    for (uint32_t i = 0; i < 1 + seed % 2; ++i) {
      const auto window = 1 + static_cast<int32_t>(random() % 25);
      config.groups.push_back({.life = Life::kWindow, .window = window, .pages = 40, .required = (seed + i) % 3 > 0});
    }
    if (seed % 4 >= 2) config.groups.push_back({.life = Life::kState, .pages = static_cast<int64_t>(seed % 13)});
    Play play(seed, config);
    for (int i = 0; i < 600; ++i) ASSERT_NO_FATAL_FAILURE(play.step()) << "seed " << seed << ", operation " << i;
    cached += play.cached();
    refused += play.refused();
    without_context += play.without_context();
  }
  EXPECT_GT(cached, 5000);
  EXPECT_GT(refused, 500);
  EXPECT_GT(without_context, 100);
}

}  // namespace
}  // namespace volley::kv
