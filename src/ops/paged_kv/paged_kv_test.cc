// Protects, on the CPU and on a GPU: values against the fp64 oracle for vector and plain sizes; that a row's bits
// depend on the row alone. On the CPU: that the other positions of a tile are cleared.
#include <bit>

#include "ops/paged_kv/cache_for_test.h"
#ifdef VOLLEY_OPS_TEST_CUDA
#include <cuda_runtime.h>

#include "ops/paged_kv/cuda_page.cuh"
#else
#include "ops/instruction_sets_for_test.h"
#include "ops/paged_kv/cpu_tile.h"
#endif

namespace volley::ops {
namespace {

#ifdef VOLLEY_OPS_TEST_CUDA
constexpr auto kElementBytes = kv_element_bytes;
#else
// The layout that cpu_tile.h states.
int64_t cpu_element_bytes(const KvLayer& kv, int head, bool is_v, int in_page, int i) {
  const HeadTiles tiles = kv_head_tiles(kv, 0, head);
  const int64_t tile = (is_v ? tiles.v : tiles.k) - kv.base + in_page / kKvTile * kv_tile_bytes(kv);
  const int p = in_page % kKvTile;
  if (kv.dtype == DType::kF32) return tile + 4 * (is_v ? p * kv.head_dim + i : i * kKvTile + p);
  const int at = is_v ? (p / 2 * kv.head_dim + i) * 2 + p % 2 : (i / 2 * kKvTile + p) * 2 + i % 2;
  return tile + static_cast<int64_t>(dtype_size(kv.dtype)) * at;
}
constexpr auto kElementBytes = cpu_element_bytes;
#endif

void expect_oracle(Device& device, const CacheConfig& config) {
  TestCache cache(device, config, kElementBytes);
  expect_oracle(cache, config);
}

DEVICE_TEST(WriteQkv, MatchesTheOracle) {
  DEVICE_UNDER_TEST;
  for (DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
    for (int head_dim : {16, 32, 64, 80, 128, 256, 320, 512}) {
      for (bool norm : {true, false}) expect_oracle(device, {.dtype = dtype, .head_dim = head_dim, .norm = norm});
    }
    for (int head_dim : {64, 80, 512}) {
      for (bool v_from_k : {false, true}) {
        const CacheConfig normed{.dtype = dtype, .head_dim = head_dim, .v_norm = true, .v_from_k = v_from_k};
        expect_oracle(device, normed);
        CacheConfig injected = normed;
        injected.heads = 0, injected.layers = 3, injected.bias = true;
        expect_oracle(device, injected);
      }
    }
    expect_oracle(device, {.dtype = dtype, .heads = 0});
    expect_oracle(device, {.dtype = dtype, .bias = true, .v_from_k = true});
    expect_oracle(device, {.dtype = dtype, .bias = true});
    expect_oracle(device, {.dtype = dtype, .head_dim = 80, .heads = 3, .kv_heads = 3, .norm = false, .bias = true});
    for (int head_dim : {32, 128}) {
      expect_oracle(device, {.dtype = dtype, .head_dim = head_dim, .heads = 0, .layers = 3});
      expect_oracle(device, {.dtype = dtype, .head_dim = head_dim, .heads = 0, .layers = 3, .bias = true});
      expect_oracle(device, {.dtype = dtype, .head_dim = head_dim, .heads = 0, .layers = 2, .foreign_heads = 4});
    }
    expect_oracle(device, {.dtype = dtype, .heads = 0, .layers = 2, .bias = true, .foreign_heads = 4});
    for (const auto& [head_dim, narrow] : {std::pair{128, 72}, {64, 64}, {64, 44}, {80, 72}}) {
      CacheConfig tower{.dtype = dtype, .head_dim = head_dim, .norm = false, .bias = narrow != 44};
      tower.narrow_dim = narrow;
      expect_oracle(device, tower);
    }
    expect_oracle(device, {.dtype = dtype, .head_dim = 128, .heads = 8, .kv_heads = 1, .page_size = 64});
    expect_oracle(device, {.dtype = dtype, .heads = 3, .kv_heads = 3, .page_size = 48});
  }
  // Values above the largest code, and below the least normal one.
  for (int head_dim : {64, 80, 128, 256}) {
    expect_oracle(device, {.dtype = DType::kF8E4M3, .head_dim = head_dim, .k_scale = 0.0078f, .v_scale = 13.0f});
    expect_oracle(device, {.dtype = DType::kF8E4M3, .head_dim = head_dim, .k_scale = 13.0f, .v_scale = 0.0031f});
  }
}

// The same bits however a prefix was cut into writes, and for any page size.
void expect_pieces(Device& device, const CacheConfig& config, Device& other) {
  TestCache whole(device, config, kElementBytes);
  const auto q = whole.write({{1, 0, 100}});
  const size_t q_row = q.size() / 100;
  for (int piece : {1, 3, 16, 30}) {
    CacheConfig cut_config = config;
    cut_config.page_size = piece == 3 ? 64 : 16;
    TestCache cut(other, cut_config, kElementBytes);
    for (int p = 0; p < 100; p += piece) {
      const int end = std::min(100, p + piece);
      const auto part = cut.write({{0, p, end}, {1, p, end}});
      EXPECT_EQ(std::memcmp(part.data() + part.size() / 2, q.data() + p * q_row, part.size() / 2), 0);
    }
    EXPECT_EQ(cut.dump(1, 100), whole.dump(1, 100)) << piece;
  }
}

DEVICE_TEST(WriteQkv, PiecesAndPagesChangeNothing) {
  DEVICE_UNDER_TEST;
  for (DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
    for (int head_dim : {64, 80, 128, 256, 512}) expect_pieces(device, {.dtype = dtype, .head_dim = head_dim}, device);
  }
}

// A NaN whose mantissa would overflow when rounded must not become a zero.
void expect_nan(Device& device) {
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
    for (DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      for (int head_dim : {64, 128}) {
        TestCache cache(device, {.dtype = dtype, .head_dim = head_dim, .heads = 0, .norm = false}, kElementBytes);
        cache.fill_input(std::bit_cast<float>(bits));
        cache.write({{0, 0, 2}});
        EXPECT_TRUE(std::isnan(cache.stored(false, 0, 1, 1, 3))) << bits;
        EXPECT_TRUE(std::isnan(cache.stored(true, 0, 1, 1, 3))) << bits;
      }
    }
  }
}

DEVICE_TEST(WriteQkv, KeepsNaN) {
  DEVICE_UNDER_TEST;
  expect_nan(device);
}

#ifndef VOLLEY_OPS_TEST_CUDA

TEST(WriteQkv, MatchesTheOracleOnEveryInstructionSet) {
  const auto device = *make_cpu_device(2);
  for_each_instruction_set([&] {
    expect_oracle(*device, {.dtype = DType::kBF16});
    expect_oracle(*device, {.dtype = DType::kF32, .head_dim = 80});
    expect_oracle(*device, {.dtype = DType::kF8E4M3, .head_dim = 80, .k_scale = 0.0078f, .v_scale = 13.0f});
    expect_nan(*device);
  });
}

TEST(WriteQkv, ThreadsChangeNothing) {
  const auto two = *make_cpu_device(2);
  for (int threads : {1, 3}) {
    const auto device = *make_cpu_device(threads);
    for (DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) expect_pieces(*two, {.dtype = dtype}, *device);
  }
}

// A reused page holds its former owner's bytes. Beginning a tile clears the rest of it; continuing one keeps what the
// sequence wrote; nothing else (other tiles, other layers) is touched.
TEST(WriteQkv, ClearsATileWhenItBegins) {
  const auto device = *make_cpu_device(2);
  for (DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
    const CacheConfig config{.dtype = dtype, .heads = 0, .page_size = 32};
    TestCache cache(*device, config, kElementBytes);
    cache.write({{0, 0, 5}});
    for (int p = 5; p < kKvTile; ++p) {
      EXPECT_EQ(cache.stored(false, 0, p, 1, 7), 0.0f);
      EXPECT_EQ(cache.stored(true, 0, p, 1, 7), 0.0f);
    }
    EXPECT_TRUE(std::isnan(cache.stored(false, 0, kKvTile, 1, 7)));
    EXPECT_TRUE(std::isnan(cache.stored(true, 0, kKvTile, 0, 0)));
    const int64_t tile_bytes = int64_t{kKvTile} * config.head_dim * static_cast<int64_t>(dtype_size(dtype));
    EXPECT_LE(cache.touched(), 2 * config.kv_heads * tile_bytes);

    const auto before = cache.dump(0, 5);
    cache.write({{0, 5, 9}});
    EXPECT_EQ(cache.dump(0, 5), before);
    cache.write({{0, 3, 4}});  // a rejected token's position, written again
    EXPECT_EQ(cache.dump(0, 5), before);
    EXPECT_EQ(cache.stored(true, 0, 12, 0, 0), 0.0f);
  }
}

TEST(WriteQkv, RefusesWhatWouldHitAnothersPage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto device = *make_cpu_device(1);
  TestCache cache(*device, {}, kElementBytes);
  EXPECT_DEATH(cache.write({{0, kMaxPositions - 1, kMaxPositions + 1}}), "CHECK failed");
  EXPECT_DEATH(cache.write({{kSlots, 0, 1}}), "CHECK failed");
}

#endif

}  // namespace
}  // namespace volley::ops
