// Protects, on a GPU: values against the fp64 oracle for the tile kernel and the plain one; that a row's bits depend on
// its q, its range and the K and V in it, however the work is cut and wherever its blocks run; that a position a row
// does not see cannot reach it; that a captured graph serves other positions.
#include <thread>

#include "ops/attention/attention_world_for_test.h"

namespace volley::ops {
namespace {

using Row = AttentionRow;
using Shape = AttentionShape;

// By the type of K and V that the tile kernels take.
class AttentionCudaTiles : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Devices, AttentionCudaTiles, testing::Values(DType::kBF16, DType::kF8E4M3),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// The kernel for GPUs without wgmma: prompts, several chunks, windows, infinities that only some rows see.
TEST_P(AttentionCudaTiles, PortableKernelGivesTheSameBits) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const auto& [head_dim, sinks] :
       {std::pair{64, false}, {64, true}, {128, false}, {256, false}, {256, true}, {512, true}}) {
    AttentionWorld world(device, {GetParam(), head_dim, 8, 2, 16, sinks}, {2600, 300, 90});
    using Limits = std::numeric_limits<float>;
    const float bad = GetParam() == DType::kF8E4M3 ? Limits::quiet_NaN() : Limits::infinity();
    world.write_values(0, {2570}, std::vector<float>(2 * 2 * head_dim, bad));
    std::vector<Row> rows = causal(0, 2562, 20);
    for (const Row& row : causal(1, 200, 100)) rows.push_back(row);
    for (int i = 0; i < 20; ++i) rows.push_back({2, 40 + i, 61 + i, 400 + i});
    EXPECT_EQ(world.run(rows), world.run(rows, false, AttentionBackend::kPortable)) << head_dim;
  }
}

// The plain kernel on the other kernels' shapes: right values, and a row's bits do not depend on the batch.
TEST_P(AttentionCudaTiles, PlainKernelServesTheSameShapes) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const auto& [head_dim, sinks] : {std::pair{64, false}, {64, true}, {128, false}, {256, false}, {512, false}}) {
    AttentionWorld world(device, {GetParam(), head_dim, 8, 2, 16, sinks}, {700, 300, 90});
    std::vector<Row> rows = causal(0, 684, 16);
    for (const Row& row : causal(1, 200, 9)) rows.push_back(row);
    EXPECT_LE(worst_error(world, rows, AttentionBackend::kPlain), 1.0) << head_dim;
    const auto together = world.run(rows, false, AttentionBackend::kPlain);
    EXPECT_EQ(world.run({rows[3]}, true, AttentionBackend::kPlain), part(together, rows.size(), 3, 1)) << head_dim;
  }
}

TEST(AttentionBackends, ThatAShapeDoesNotAllow) {
  const auto resolve = [](AttentionBackend asked, DType kv, int head_dim) {
    return resolve_attention_backend(DeviceKind::kCuda, GpuInfo{90, 132, 227 << 10}, asked, kv, head_dim);
  };
  EXPECT_EQ(resolve(AttentionBackend::kAuto, DType::kF32, 128).value(), AttentionBackend::kPlain);
  EXPECT_EQ(resolve(AttentionBackend::kAuto, DType::kBF16, 80).value(), AttentionBackend::kPlain);
  EXPECT_NE(resolve(AttentionBackend::kAuto, DType::kBF16, 128).value(), AttentionBackend::kPlain);
  EXPECT_EQ(resolve(AttentionBackend::kPlain, DType::kBF16, 128).value(), AttentionBackend::kPlain);
  EXPECT_EQ(resolve(AttentionBackend::kPortable, DType::kBF16, 64).value(), AttentionBackend::kPortable);
  EXPECT_EQ(resolve(AttentionBackend::kPortable, DType::kF8E4M3, 64).value(), AttentionBackend::kPortable);
  EXPECT_EQ(resolve(AttentionBackend::kAuto, DType::kF8E4M3, 80).value(), AttentionBackend::kPlain);
  const auto refused = resolve(AttentionBackend::kPortable, DType::kF32, 128);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(refused.error().message.find("float32"), std::string::npos) << refused.error().message;
}

// Hopper's matrix unit exists only there: a later GPU does not have it.
TEST(AttentionBackends, ThatAGpuDoesNotAllow) {
  const auto resolve = [](int compute_capability, int64_t block_shared_bytes, AttentionBackend asked,
                          int head_dim = 256) {
    return resolve_attention_backend(DeviceKind::kCuda, GpuInfo{compute_capability, 132, block_shared_bytes}, asked,
                                     DType::kBF16, head_dim);
  };
  EXPECT_EQ(resolve(80, 163 << 10, AttentionBackend::kAuto, 128).value(), AttentionBackend::kPortable);
  EXPECT_EQ(resolve(80, 163 << 10, AttentionBackend::kAuto).value(), AttentionBackend::kPlain) << "it needs 164 KB";
  EXPECT_EQ(resolve(89, 99 << 10, AttentionBackend::kAuto).value(), AttentionBackend::kPlain);
  EXPECT_FALSE(resolve(89, 99 << 10, AttentionBackend::kPortable).ok());
  EXPECT_EQ(resolve(100, 227 << 10, AttentionBackend::kAuto).value(), AttentionBackend::kPortable);
  EXPECT_EQ(resolve(90, 227 << 10, AttentionBackend::kAuto, 512).value(), AttentionBackend::kPortable);
  EXPECT_EQ(resolve(80, 163 << 10, AttentionBackend::kAuto, 512).value(), AttentionBackend::kPlain);
  EXPECT_FALSE(resolve(90, 227 << 10, AttentionBackend::kWgmma, 512).ok());
  EXPECT_FALSE(resolve(100, 227 << 10, AttentionBackend::kWgmma).ok());
}

// Tiles in two items each, whose partial results come into shared memory in several turns, against one tile alone, in
// many items. At 4060 a turn ends between two of the blocks of 16 rows that are merged together.
TEST_P(AttentionCudaTiles, FewItemsOfManyChunks) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int slots = 33;
  for (int first : {2550, 4060}) {
    AttentionWorld world(device, {GetParam(), 256, 4, 2, 64, first == 4060}, std::vector<int>(slots, first + 32));
    std::vector<Row> rows;
    for (int slot = 0; slot < slots; ++slot) {
      for (const Row& row : causal(slot, first, 32)) rows.push_back(row);
    }
    const auto together = world.run(rows);
    EXPECT_EQ(world.run(rows, false, AttentionBackend::kPortable), together);
    for (int slot : {0, 17, 32}) {
      EXPECT_EQ(world.run(causal(slot, first, 32)), part(together, rows.size(), slot * 32, 32)) << first << " " << slot;
    }
  }
}

// From 16k on a chunk is the 32nd part of a power of two: ends on both sides of two of them, and all 32 chunks.
TEST_P(AttentionCudaTiles, ContextsOfManyThousands) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  AttentionWorld world(device, {GetParam(), 128, 4, 1, 64}, {16400, 32784});
  std::vector<Row> rows = causal(0, 16376, 16);
  for (const Row& row : causal(1, 32760, 16)) rows.push_back(row);
  rows.push_back({1, 20'001, 32'769, 7});
  const auto together = world.run(rows);
  EXPECT_EQ(world.run(rows, true, AttentionBackend::kPortable), together);
  for (size_t i = 0; i < rows.size(); i += 5) {
    EXPECT_EQ(world.run({rows[i]}), part(together, rows.size(), i, 1)) << "row " << i;
  }
  std::vector<Row> many;  // so many that none is cut
  for (int repeat = 0; repeat < 300; ++repeat) many.insert(many.end(), rows.begin() + 16, rows.begin() + 32);
  EXPECT_EQ(part(world.run(many), many.size(), 16 * 299, 16), part(together, rows.size(), 16, 16));
  EXPECT_LE(worst_error(world, {rows[7], rows[8], rows[24], rows[32]}), 1.0);
}

// Contexts on both sides of each length of chunks, ranges that begin anywhere, few and many tiles of one to 64 query
// rows: against the portable kernel, and a sequence's rows wherever they stand.
TEST_P(AttentionCudaTiles, ContextsAtTheBoundsOfChunks) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const auto& [head_dim, heads, kv_heads, sinks] :
       {std::tuple{128, 8, 2, false}, {64, 8, 8, false}, {64, 16, 2, true}, {256, 4, 2, false}, {512, 8, 1, false}}) {
    AttentionWorld world(device, {GetParam(), head_dim, heads, kv_heads, 64, sinks}, {700, 1100, 2100, 4300});
    for (int copies : {1, 2, 4, 8, 12}) {
      std::vector<std::vector<Row>> batches;
      for (int end : {120, 129, 384, 512, 513, 640, 700}) batches.push_back(causal(0, end - 9, 9));
      for (int end : {1000, 1024, 1025, 1032}) batches.push_back(causal(1, end - 4, 4));
      for (int end : {2047, 2060}) batches.push_back(causal(2, end - 16, 16));
      for (int end : {4000, 4096, 4100, 4290}) batches.push_back(causal(3, end - 1, 1));
      batches.push_back({{1, 500, 1030, 3}, {1, 127, 1029, 4}, {1, 1000, 1031, 5}});
      for (const std::vector<Row>& batch : batches) {
        std::vector<Row> rows;
        for (int copy = 0; copy < copies; ++copy) {
          rows.insert(rows.end(), batch.begin(), batch.end());
          rows.push_back({copy % 2 == 0 ? 2 : 3, 1, 2 + copy, copy});  // ends the segment
        }
        const auto got = world.run(rows);
        ASSERT_EQ(world.run(rows, false, AttentionBackend::kPortable), got)
            << head_dim << " copies " << copies << " end " << batch.back().end;
        ASSERT_EQ(part(got, rows.size(), 0, batch.size()),
                  part(got, rows.size(), rows.size() - 1 - batch.size(), batch.size()));
      }
    }
  }
}

// As many tiles as the plan has room for in shared memory, and more.
TEST_P(AttentionCudaTiles, PlansOfManyTiles) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  AttentionWorld world(device, {GetParam(), 64, 2, 2, 64}, {150, 90});
  for (int segments : {900, 930, 1000, 1023, 1024, 1025, 1100}) {
    std::vector<Row> rows;
    for (int i = 0; i < segments; ++i) rows.push_back({i % 2, 0, 20 + i % 70, i});
    const auto together = world.run(rows);
    for (int i : {0, segments / 2, segments - 1}) {
      ASSERT_EQ(world.run({rows[i]}), part(together, rows.size(), i, 1)) << segments << " row " << i;
    }
  }
}

// Positions, and so the division of the work, are read on the device: a graph captured for short sequences serves long
// ones, and the other way round.
TEST_P(AttentionCudaTiles, GraphServesOtherPositions) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  AttentionWorld world(device, {GetParam(), 128, 8, 2, 64}, {2700, 2700});
  std::vector<Row> shorter = causal(0, 20, 5), longer = causal(0, 2690, 5);
  for (int i = 0; i < 16; ++i) {
    shorter.push_back({1, 0, 60, 50 + i});
    longer.push_back({1, i < 8 ? 0 : 1100, 2600, 90 + i});
  }
  EXPECT_EQ(world.run(shorter, false, {}, &longer), world.run(longer));
  EXPECT_EQ(world.run(longer, false, {}, &shorter), world.run(shorter));
  // One sequence, in few items and in many.
  AttentionWorld one(device, {GetParam(), 128, 8, 2, 64}, {5000});
  const std::vector<Row> few = causal(0, 600, 5), many = causal(0, 4990, 5);
  EXPECT_EQ(one.run(few, false, {}, &many), one.run(many));
  EXPECT_EQ(one.run(many, false, {}, &few), one.run(few));
}

// Attention that starts before the preceding write has ended sees the written values. (The first write comes right
// after the plan. Attention may read the plan only because the write lets no kernel start before the plan has ended.)
TEST_P(AttentionCudaTiles, MayStartDuringTheWrite) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  AttentionWorld world(device, {GetParam(), 128, 8, 2, 64}, {700, 40});
  for (const std::vector<Row>& rows : {causal(0, 684, 16), causal(1, 24, 16)}) {
    const auto want = world.run(rows);
    const int slot = rows[0].slot, first = rows[0].end - 1;
    std::vector<int32_t> positions;
    std::vector<float> right, wrong;
    for (int i = 0; i < 16; ++i) {
      positions.push_back(first + i);
      const auto x = world.values(slot, first + i);
      right.insert(right.end(), x.begin(), x.end());
      for (float v : x) wrong.push_back(-3.0f * v);
    }
    world.with_write(slot, positions, right, [&](const AttentionWorld::Write& a) {
      world.with_write(slot, positions, wrong, [&](const AttentionWorld::Write& b) {
        EXPECT_EQ(world.run(rows, false, {}, nullptr, {b, a, b, a, b, a, b, a, b, a}), want);
        EXPECT_NE(world.run(rows, false, {}, nullptr, {a, b, a, b, a, b}), want);
        EXPECT_EQ(world.run(rows, false, AttentionBackend::kPortable, nullptr, {b, a, b, a, b, a, b, a}), want);
      });
    });
  }
}

// Long sequences that are split into more items than the GPU holds blocks, and short ones that are not split.
std::vector<Row> more_items_than_blocks(int blocks) {
  std::vector<Row> rows;
  for (int i = 0; i < blocks * 11 / 32; ++i) {
    if (i < blocks * 3 / 16) {
      for (const Row& row : causal(0, 5990, 8)) rows.push_back({0, 0, row.end, static_cast<int>(rows.size())});
    }
    rows.push_back({1, 0, 20 + i % 70, i});  // ends the segment
    rows.push_back({2, 0, 20 + i % 70, i});
  }
  return rows;
}

// A grid with a block for every item: blocks that the GPU has no room for start when others have ended. So the parts of
// a tile are never all running at once, and the first blocks must not stay until they are.
TEST_P(AttentionCudaTiles, BlocksThatStartLate) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (int head_dim : {64, 128, 256, 512}) {
    AttentionWorld world(device, {GetParam(), head_dim, 8, 2, 64}, {6000, 100, 100});
    world.run(causal(0, 5990, 8));
    const std::vector<Row> rows = more_items_than_blocks(world.last_blocks());
    const auto together = world.run(rows);
    world.set_launch({.blocks = 4 * world.last_blocks(), .calls = 3});
    EXPECT_EQ(world.run(rows), together) << head_dim;
    world.set_launch({});
    EXPECT_EQ(part(together, rows.size(), 0, 8), world.run({rows.begin(), rows.begin() + 8})) << head_dim;
    EXPECT_EQ(world.run(rows, false, AttentionBackend::kPortable), together) << head_dim;
  }
}

TEST_P(AttentionCudaTiles, AnyNumberOfMultiprocessors) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  AttentionWorld world(device, {GetParam(), 128, 8, 2, 64}, {2700, 300});
  std::vector<Row> rows = causal(0, 2690, 9);
  for (const Row& row : causal(1, 200, 90)) rows.push_back(row);
  for (const auto backend : {AttentionBackend::kAuto, AttentionBackend::kPortable}) {
    world.set_launch({});
    const auto want = world.run(rows, false, backend);
    const int all = world.last_blocks();
    for (int count : {1, 2, 5, 40, 100'000}) {
      world.set_launch({.multiprocessors = count, .calls = 2});
      EXPECT_EQ(world.run(rows, false, backend), want) << count;
      EXPECT_LE(world.last_blocks(), std::min(2 * count, all));
    }
  }
}

// 19 long tiles and two short ones for each of 2 KV heads, on grids of 2 blocks a multiprocessor. If the long tiles are
// a wave and a few more, the few are split finer; if they are whole waves, none is split. No bit changes.
TEST_P(AttentionCudaTiles, TheRestOfAWaveIsCut) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  AttentionWorld world(device, {GetParam(), 128, 8, 2, 64}, {9000, 300});
  std::vector<Row> rows = causal(0, 8700, 300);
  for (int i = 0; i < 20; ++i) rows.push_back({1, 0, 100 + i, i});
  const auto want = world.run({rows[150]});
  for (const auto backend : {AttentionBackend::kAuto, AttentionBackend::kPortable}) {
    world.set_launch({.multiprocessors = 1});
    const auto alone = world.run(rows, false, backend);
    EXPECT_EQ(part(alone, rows.size(), 150, 1), want);
    for (int count : {3, 4, 6, 9, 14, 18, 19}) {
      world.set_launch({.multiprocessors = count, .calls = 2});
      EXPECT_EQ(world.run(rows, false, backend), alone) << count;
      if (count == 18) EXPECT_GT(world.last_items(), 21 + 8);
      if (count == 19) EXPECT_EQ(world.last_items(), 21);
    }
  }
}

// Tiles that are not cut, of twice the rows where that is built: all rows see one another, or different ranges with
// chunks of several lengths; tiles that are not full; values that only some rows see.
TEST_P(AttentionCudaTiles, WholeTilesGiveTheSameBits) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (int head_dim : {64, 128, 256}) {
    for (int kv_heads : {8, 2}) {
      AttentionWorld world(device, {GetParam(), head_dim, 8, kv_heads, 64}, {1300, 300});
      world.write_values(0, {1240},
                         std::vector<float>(2 * kv_heads * head_dim, std::numeric_limits<float>::infinity()));
      std::vector<Row> rows;
      for (int i = 0; i < 1000; ++i) rows.push_back({0, 0, i < 500 ? 1237 : 250 + i, i});
      for (int i = 0; i < 90; ++i) rows.push_back({1, 0, 300, i});
      world.set_launch({});
      const auto want = world.run(rows);
      for (const auto backend : {AttentionBackend::kAuto, AttentionBackend::kPortable}) {
        for (int count : {0, 1, 7}) {
          world.set_launch({.multiprocessors = count, .calls = 2, .whole = true});
          EXPECT_EQ(world.run(rows, count == 7, backend), want) << head_dim << " " << kv_heads << " " << count;
        }
      }
    }
  }
}

// Two devices of one GPU have streams of their own, so that blocks of one's kernels take the places of the other's.
TEST_P(AttentionCudaTiles, TwoStreamsShareTheGpu) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(first);
  const auto second_owner = std::move(make_cuda_device(0)).value();
  Device& second = *second_owner;
  const Shape shape{GetParam(), 128, 8, 2, 64};
  AttentionWorld one(first, shape, {6000, 100, 100}), other(second, shape, {6000, 100, 100});
  const std::vector<Row> cut = causal(0, 5990, 8);
  const auto alone = one.run(cut);
  const std::vector<Row> rows = more_items_than_blocks(one.last_blocks());
  const auto together = one.run(rows);
  one.set_launch({.calls = 300});
  other.set_launch({.calls = 2000});
  std::thread beside([&] {
    second.attach_thread();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(other.run(cut), alone);
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(one.run(rows), together);
  beside.join();
}

// Rows of one tile whose chunks differ in length, in ascending order and in none, whole and cut.
TEST_P(AttentionCudaTiles, RowsWithChunksOfSeveralLengths) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  AttentionWorld world(device, {GetParam(), 128, 8, 2, 64}, {1040, 4104, 8200});
  std::vector<Row> rows = causal(0, 1016, 16);
  for (const Row& row : causal(1, 4088, 15)) rows.push_back(row);
  for (int i = 0; i < 12; ++i) rows.push_back({2, i == 6 ? 8000 : 0, std::vector{8190, 1000, 8195, 3000}[i % 4], i});
  for (const auto backend : {AttentionBackend::kAuto, AttentionBackend::kPortable}) {
    const auto together = world.run(rows, true, backend);
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(world.run({rows[i]}), part(together, rows.size(), i, 1)) << "row " << i;
    }
  }
  std::vector<Row> many;  // so many that none is cut
  for (int repeat = 0; repeat < 60; ++repeat) {
    for (int slot : {0, 1}) {
      for (const Row& row : rows) {
        if (row.slot == slot) many.push_back(row);
      }
    }
  }
  const size_t both = many.size() / 60;
  const auto whole = world.run(many);
  EXPECT_EQ(part(whole, many.size(), 0, both), world.run({many.begin(), many.begin() + both}));
  EXPECT_LE(worst_error(world, {rows[0], rows[20], rows[31], rows[33]}), 1.0);
}

// Random segments, ranges and sizes: every row has the same bits as alone, and some are compared with the oracle.
TEST_P(AttentionCudaTiles, RandomBatches) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  std::mt19937 random(5);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (const auto& [head_dim, heads, kv_heads, sinks] :
       {std::tuple{128, 8, 2, false}, {64, 7, 1, false}, {128, 2, 2, false}, {64, 16, 2, true}, {128, 3, 1, true}}) {
    std::vector<int> lengths;
    for (int slot = 0; slot < 6; ++slot) lengths.push_back(pick(1, slot % 2 == 0 ? 200 : 2700));
    AttentionWorld world(device, {GetParam(), head_dim, heads, kv_heads, 64, sinks}, lengths);
    std::vector<Row> rows;
    for (int slot = 0; slot < 6; ++slot) {
      const int n = pick(1, 70);
      for (int i = 0; i < n; ++i) {
        const int end = pick(1, lengths[slot]);
        rows.push_back({slot, pick(0, 2) == 0 ? pick(0, end - 1) : 0, end, static_cast<int>(rows.size())});
      }
    }
    const auto together = world.run(rows, true);
    for (size_t i = 0; i < rows.size(); i += 3) {
      ASSERT_EQ(world.run({rows[i]}), part(together, rows.size(), i, 1)) << "row " << i;
    }
    EXPECT_LE(worst_error(world, {rows.begin(), rows.begin() + 5}), 1.0);
  }
}

}  // namespace
}  // namespace volley::ops
