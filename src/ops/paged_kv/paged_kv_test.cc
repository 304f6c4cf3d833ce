#include <hwy/highway.h>

#include <bit>
#include <limits>

#include "ops/paged_kv/cache_for_test.h"
#include "ops/paged_kv/cpu_tile.h"

namespace volley::ops {
namespace {

// The layout that cpu_tile.h states.
int64_t cpu_element_bytes(const KvLayer& kv, int head, bool is_v, int in_page, int i) {
  const HeadTiles tiles = kv_head_tiles(kv, 0, head);
  const int64_t tile = (is_v ? tiles.v : tiles.k) - kv.base + in_page / kKvTile * kv_tile_bytes(kv);
  const int p = in_page % kKvTile;
  if (kv.dtype == DType::kF32) return tile + 4 * (is_v ? p * kv.head_dim + i : i * kKvTile + p);
  const int at = is_v ? (p / 2 * kv.head_dim + i) * 2 + p % 2 : (i / 2 * kKvTile + p) * 2 + i % 2;
  return tile + static_cast<int64_t>(dtype_size(kv.dtype)) * at;
}

using Config = CacheConfig;

// A cache on a CPU of its own.
class Cache {
 public:
  explicit Cache(const Config& config, int threads = 2)
      : device_(*make_cpu_device(threads)), cache_(*device_, config, cpu_element_bytes) {}
  TestCache* operator->() { return &cache_; }
  TestCache& operator*() { return cache_; }

 private:
  std::unique_ptr<Device> device_;
  TestCache cache_;
};

void expect_oracle(const Config& config) {
  Cache cache(config);
  volley::ops::expect_oracle(*cache, config);
}

TEST(WriteQkv, MatchesTheOracle) {
  for (DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
    for (int head_dim : {16, 32, 64, 80, 128, 256}) {
      for (bool norm : {true, false}) expect_oracle({.dtype = dtype, .head_dim = head_dim, .norm = norm});
    }
    expect_oracle({.dtype = dtype, .heads = 0});
    expect_oracle({.dtype = dtype, .heads = 0, .layers = 3});
    expect_oracle({.dtype = dtype, .bias = true});
    expect_oracle({.dtype = dtype, .head_dim = 80, .heads = 3, .kv_heads = 3, .norm = false, .bias = true});
    expect_oracle({.dtype = dtype, .heads = 0, .layers = 3, .bias = true});
    expect_oracle({.dtype = dtype, .heads = 0, .layers = 2, .bias = true, .foreign_heads = 4});
    expect_oracle({.dtype = dtype, .heads = 8, .kv_heads = 1, .page_size = 64});
    expect_oracle({.dtype = dtype, .heads = 3, .kv_heads = 3, .page_size = 48});
  }
  // Values above the largest code, and below the least normal one.
  expect_oracle({.dtype = DType::kF8E4M3, .k_scale = 0.0078f, .v_scale = 13.0f});
  expect_oracle({.dtype = DType::kF8E4M3, .k_scale = 13.0f, .v_scale = 0.0031f});
}

TEST(WriteQkv, MatchesTheOracleOnEveryInstructionSet) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    expect_oracle({.dtype = DType::kBF16});
    expect_oracle({.dtype = DType::kF32, .head_dim = 80});
    expect_oracle({.dtype = DType::kF8E4M3, .head_dim = 80, .k_scale = 0.0078f, .v_scale = 13.0f});
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// The same bits however a prefix was cut into writes, on any number of threads and page size.
TEST(WriteQkv, PiecesThreadsAndPagesChangeNothing) {
  for (DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
    Cache whole({.dtype = dtype});
    const auto q = whole->write({{1, 0, 100}});
    const size_t q_row = q.size() / 100;
    for (int piece : {1, 3, 16, 30}) {
      for (int threads : {1, 3}) {
        Cache cut({.dtype = dtype, .page_size = piece == 3 ? 64 : 16}, threads);
        for (int p = 0; p < 100; p += piece) {
          const int end = std::min(100, p + piece);
          const auto part = cut->write({{0, p, end}, {1, p, end}});
          EXPECT_EQ(std::memcmp(part.data() + part.size() / 2, q.data() + p * q_row, part.size() / 2), 0);
        }
        EXPECT_EQ(cut->dump(1, 100), whole->dump(1, 100)) << piece;
      }
    }
  }
}

// A reused page holds its former owner's bytes. Beginning a tile clears the rest of it; continuing one keeps what the
// sequence wrote; nothing else (other tiles, other layers) is touched.
TEST(WriteQkv, ClearsATileWhenItBegins) {
  for (DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
    const Config config{.dtype = dtype, .heads = 0, .page_size = 32};
    Cache cache(config);
    cache->write({{0, 0, 5}});
    for (int p = 5; p < kKvTile; ++p) {
      EXPECT_EQ(cache->stored(false, 0, p, 1, 7), 0.0f);
      EXPECT_EQ(cache->stored(true, 0, p, 1, 7), 0.0f);
    }
    EXPECT_TRUE(std::isnan(cache->stored(false, 0, kKvTile, 1, 7)));
    EXPECT_TRUE(std::isnan(cache->stored(true, 0, kKvTile, 0, 0)));
    const int64_t tile_bytes = int64_t{kKvTile} * config.head_dim * static_cast<int64_t>(dtype_size(dtype));
    EXPECT_LE(cache->touched(), 2 * config.kv_heads * tile_bytes);

    const auto before = cache->dump(0, 5);
    cache->write({{0, 5, 9}});
    EXPECT_EQ(cache->dump(0, 5), before);
    cache->write({{0, 3, 4}});  // a rejected token's position, written again
    EXPECT_EQ(cache->dump(0, 5), before);
    EXPECT_EQ(cache->stored(true, 0, 12, 0, 0), 0.0f);
  }
}

// A NaN whose mantissa would overflow when rounded must not become a zero, on any instruction set.
TEST(WriteQkv, KeepsNaN) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
      for (DType dtype : {DType::kBF16, DType::kF8E4M3}) {
        Cache cache({.dtype = dtype, .heads = 0, .norm = false});
        cache->fill_input(std::bit_cast<float>(bits));
        cache->write({{0, 0, 2}});
        EXPECT_TRUE(std::isnan(cache->stored(false, 0, 1, 1, 3))) << hwy::TargetName(target) << " " << bits;
        EXPECT_TRUE(std::isnan(cache->stored(true, 0, 1, 1, 3))) << hwy::TargetName(target) << " " << bits;
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(WriteQkv, RefusesWhatWouldHitAnothersPage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Cache({}, 1)->write({{0, kMaxPositions - 1, kMaxPositions + 1}}), "CHECK failed");
  EXPECT_DEATH(Cache({}, 1)->write({{kSlots, 0, 1}}), "CHECK failed");
}

}  // namespace
}  // namespace volley::ops
