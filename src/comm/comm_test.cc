// Protects: sums in their order, the same on all ranks; rows side by side; no thread passes a barrier before all have
// arrived; a rank that is gone ends the others' waiting.
#include "comm/comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "base/threads_for_test.h"
#include "comm/barrier.h"
#include "comm/nccl_layout.h"
#include "comm/peer_layout.h"
#include "comm/sum_for_test.h"
#include "device/dry_run.h"
#include "device/fault.h"

namespace volley::comm {
namespace {

using testing::HasSubstr;

// Runs body(rank's communicator, rank's stream) on a thread for each rank.
void on_ranks(int ranks, int threads, const std::function<void(Communicator&, Stream&)>& body) {
  auto group = make_cpu_group(ranks);
  on_threads(group, [&](auto& communicator) {
    auto device = make_cpu_device(threads);
    ASSERT_TRUE(device.ok());
    body(*communicator, (*device)->stream());
  });
}

// In fp32, 2^24 swallows 1 but not 1 + 1: each order of these has a sum of its own.
TEST(AddSum, AddsNeighboursThenTheirSums) {
  const std::vector<float> addends = {16777216, 1, 1, -16777216};
  ASSERT_EQ((16777216.0f + 1) + (1 - 16777216.0f), 1.0f);
  ASSERT_EQ(((16777216.0f + 1) + 1) - 16777216, 0.0f) << "another order has other bits";
  on_ranks(4, 1, [&](Communicator& c, Stream& stream) {
    std::vector<float> partial = {addends[c.rank()]}, x = {0};
    c.add_sum(stream, view(partial, 1, 1), view(x, 1, 1));
    EXPECT_EQ(x[0], 1.0f) << "rank " << c.rank();
  });
}

// The sum is whole before it is added: (p0 + p1) + x, not (x + p0) + p1.
TEST(AddSum, AddsToXLast) {
  on_ranks(2, 1, [](Communicator& c, Stream& stream) {
    std::vector<float> partial = {c.rank() == 0 ? 16777216.0f : -16777216.0f}, x = {1};
    c.add_sum(stream, view(partial, 1, 1), view(x, 1, 1));
    EXPECT_EQ(x[0], 1.0f);
  });
}

TEST(AddSum, HasTheSameBitsOnAllRanksForAnyShape) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    for (const auto& [rows, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 17}, {0, 8}, {40, 600}}) {
      on_ranks(ranks, 2, [&, rows = rows, n = n](Communicator& c, Stream& stream) {
        std::vector<std::vector<float>> partials;  // every rank knows all
        std::minstd_rand random(7);
        std::normal_distribution<float> normal;
        const auto values = [&] {
          std::vector<float> v(rows * n);
          for (float& value : v) value = normal(random);
          return v;
        };
        for (int r = 0; r < c.ranks(); ++r) partials.push_back(values());
        std::vector<float> x = values(), want = x;
        for (int64_t i = 0; i < rows * n; ++i) {
          want[i] += sum_in_pairs([&](int r) { return partials[r][i]; }, c.ranks());
        }
        c.add_sum(stream, view(partials[c.rank()], rows, n), view(x, rows, n));
        EXPECT_EQ(x, want);
      });
    }
  }
}

TEST(GatherColumns, PutsRowsSideBySide) {
  const std::vector<int64_t> widths = {3, 0, 2, 5};
  on_ranks(4, 2, [&](Communicator& c, Stream& stream) {
    const int64_t n = widths[c.rank()], first = std::accumulate(widths.begin(), widths.begin() + c.rank(), int64_t{0});
    for (const int64_t rows : {1, 7, 2000}) {
      std::vector<float> mine(rows * n), out(rows * 10), want;
      for (int64_t i = 0; i < rows * n; ++i) mine[i] = static_cast<float>(c.rank() * 100000 + i);
      for (int64_t row = 0; row < rows; ++row) {
        for (int r = 0; r < 4; ++r) {
          for (int64_t i = 0; i < widths[r]; ++i) want.push_back(static_cast<float>(r * 100000 + row * widths[r] + i));
        }
      }
      c.gather_columns(stream, view(mine, rows, n), first, 5, view(out, rows, 10));
      ASSERT_EQ(out, want);
    }
  });
}

// Many calls in sequence, by more threads than there are cores: a rank that ran ahead would read or write data of
// another call.
TEST(Group, KeepsCallsApart) {
  on_ranks(4, 1, [](Communicator& c, Stream& stream) {
    std::vector<float> partial(40), x(40), mine(2), out(8);
    for (int i = 0; i < 500; ++i) {
      std::fill(partial.begin(), partial.end(), static_cast<float>(i * (c.rank() + 1)));
      std::fill(x.begin(), x.end(), 1.0f);
      c.add_sum(stream, view(partial, 2, 20), view(x, 2, 20));
      ASSERT_EQ(x, std::vector<float>(40, static_cast<float>(10 * i + 1)));
      std::fill(mine.begin(), mine.end(), static_cast<float>(i + c.rank()));
      c.gather_columns(stream, view(mine, 1, 2), 2 * c.rank(), 2, view(out, 1, 8));
      for (int k = 0; k < 8; ++k) ASSERT_EQ(out[k], static_cast<float>(i + k / 2));
    }
  });
}

TEST(Group, WaitsForNobodyOnADryStream) {
  auto group = make_cpu_group(2);
  DryDevice device(1);
  const TensorView nothing(no_memory(), DType::kF32, {4, 4});
  group[0]->add_sum(device.stream(), nothing, nothing);
  group[0]->gather_columns(device.stream(), nothing, 0, 4, TensorView(no_memory(), DType::kF32, {4, 8}));
}

TEST(Group, ARankThatIsGoneEndsTheOthersWait) {
  on_ranks(4, 1, [](Communicator& c, Stream& stream) {
    std::vector<float> partial = {1}, x = {0};
    c.add_sum(stream, view(partial, 1, 1), view(x, 1, 1));
    if (c.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others sleep by then
      c.abort();
    }
    for (int i = 0; i < 2; ++i) {  // and a rank that calls later
      try {
        c.add_sum(stream, view(partial, 1, 1), view(x, 1, 1));
        ADD_FAILURE() << "rank " << c.rank() << " went on";
      } catch (const DeviceFault& fault) {
        EXPECT_THAT(fault.what(), HasSubstr("Rank 1 of 4 is gone"));
      }
    }
  });
}

// An abort by a watching thread at any moment: all ranks end, and none touches memory that another has freed.
TEST(Group, MayBeAbortedFromOutsideAtAnyTime) {
  for (int i = 0; i < 100; ++i) {
    auto group = make_cpu_group(3);
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (auto& communicator : group) {
      threads.emplace_back([&ended, &communicator] {
        auto device = make_cpu_device(1);
        std::vector<float> partial(500), x(500), out(1500);
        try {
          while (true) {
            communicator->add_sum((*device)->stream(), view(partial, 1, 500), view(x, 1, 500));
            communicator->gather_columns((*device)->stream(), view(partial, 1, 500), 500 * communicator->rank(), 500,
                                         view(out, 1, 1500));
          }
        } catch (const DeviceFault&) {
          ++ended;
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100 * (i % 10)));
    group[2]->abort();
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(ended.load(), 3);
  }
}

// A thread that leaves by an exception takes its communicator with it.
TEST(Group, ACommunicatorThatIsDestroyedIsGone) {
  auto group = make_cpu_group(2);
  std::thread other([&] {
    auto device = make_cpu_device(1);
    std::vector<float> partial = {1}, x = {0};
    EXPECT_THROW(group[0]->add_sum((*device)->stream(), view(partial, 1, 1), view(x, 1, 1)), DeviceFault);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  group[1].reset();
  other.join();
}

// A rank that ends right after the last call must not free memory that others still use in that call.
TEST(Group, EndsOneRankAfterTheOther) {
  for (int i = 0; i < 50; ++i) {
    on_ranks(3, 1, [](Communicator& c, Stream& stream) {
      std::vector<float> partial = {1}, x = {0};
      EXPECT_NO_THROW(c.add_sum(stream, view(partial, 1, 1), view(x, 1, 1)));
      c.abort();
    });
  }
}

TEST(Barrier, LetsNobodyPassBeforeAllHaveCome) {
  constexpr int kThreads = 4;
  Barrier barrier(kThreads);
  std::atomic<int> come{0};
  on_threads(kThreads, [&](int t) {
    for (int i = 1; i <= 500; ++i) {
      ++come;
      ASSERT_TRUE(barrier.wait());
      ASSERT_GE(come.load(), i * kThreads);
      ASSERT_TRUE(barrier.wait());
    }
  });
}

TEST(Group, SaysWhoIsGone) {
  auto group = make_cpu_group(2);
  EXPECT_NO_THROW(group[0]->check());
  group[1]->abort();
  EXPECT_THROW(group[0]->check(), DeviceFault);
}

// Counted by a dry run of a GPU: a mailbox's memory, and a launch for each kernel.
TEST(Group, OnADryGpuTakesItsMemoryAndCountsItsKernels) {
  auto group = make_dry_group(2);
  DryDevice device(GpuInfo{90, 132, 227 << 10});
  ASSERT_TRUE(group[1]->prepare(device).ok());
  EXPECT_EQ(device.bytes(), kPeerBytes);
  const DryRun dry(device.stream());
  const auto nothing = [](int64_t rows, int64_t n) { return TensorView(no_memory(), DType::kF32, {rows, n}); };
  group[1]->add_sum(device.stream(), nothing(16, 4096), nothing(16, 4096));
  EXPECT_EQ(dry.launches(), 1);
  group[1]->add_sum(device.stream(), nothing(2048, 4096), nothing(2048, 4096));  // 32 MiB, 8 at a time
  EXPECT_EQ(dry.launches(), 5);
  group[1]->gather_columns(device.stream(), nothing(16, 75968), 75968, 75968, nothing(16, 151936));
  EXPECT_EQ(dry.launches(), 6);
  const NormAfter norm = {{no_memory(), DType::kF32, {4096}}, 1e-6f, nothing(128, 4096)};
  EXPECT_FALSE(group[1]->sent_sums(device.stream(), nothing(128, 4096)));
  group[1]->add_sum_and_norm(device.stream(), nothing(128, 4096), nothing(128, 4096), norm);
  EXPECT_EQ(dry.launches(), 7);
  DryDevice cpu(1);
  ASSERT_TRUE(group[0]->prepare(cpu).ok());
  EXPECT_EQ(cpu.bytes(), 0);
}

// With ranks in other processes, NCCL's own memory is included, and its launches count twice.
TEST(Group, OnADryGpuOfSeveralProcessesLeavesRoomForNccl) {
  auto group = make_dry_group(4, 2, 2);
  DryDevice device(GpuInfo{90, 132, 227 << 10});
  ASSERT_TRUE(group[0]->prepare(device).ok());
  EXPECT_EQ(device.bytes(), kNcclBufferBytes + nccl_reserved_bytes(4));
  const DryRun dry(device.stream());
  const auto nothing = [](int64_t rows, int64_t n) { return TensorView(no_memory(), DType::kF32, {rows, n}); };
  group[0]->add_sum(device.stream(), nothing(1, 4096), nothing(1, 4096));
  EXPECT_EQ(dry.launches(), 3) << "a gather and the sum";
  group[0]->add_sum(device.stream(), nothing(256, 4096), nothing(256, 4096));
  EXPECT_EQ(dry.launches(), 3 + 6) << "parts, their sum, a gather, and all sums";
  group[0]->gather_columns(device.stream(), nothing(16, 37888), 2 * 38016, 38016, nothing(16, 151936));
  EXPECT_EQ(dry.launches(), 9 + 4);
}

// The buffer is large enough for every sum and gather.
TEST(Group, OverNcclCutsCallsThatFit) {
  for (const int ranks : {2, 4, 8, 16}) {
    for (const int64_t count : {int64_t{1}, int64_t{1} << 20, int64_t{1} << 30}) {
      const SumCut whole = nccl_cut_sum(count, ranks, int64_t{1} << 60), parts = nccl_cut_sum(count, ranks, 0);
      EXPECT_FALSE(whole.in_parts);
      EXPECT_LE(ranks * whole.chunk, kNcclFloats);
      EXPECT_EQ(parts.in_parts, ranks > 2);
      if (parts.in_parts) {
        EXPECT_LE(2 * ranks * SumCut::part(parts.chunk, ranks), kNcclFloats);
      }
      EXPECT_EQ(whole.chunk % 4 + parts.chunk % 4, 0);
    }
    for (const int64_t most : {1, 3, 4, 75968, 262144}) {
      const NcclGatherCut cut = nccl_cut_gather(most, ranks);
      EXPECT_LE(ranks * cut.block(cut.rows), kNcclFloats);
      EXPECT_GT(ranks * cut.block(cut.rows + 1), kNcclFloats - 4 * ranks) << "no row less than there is room for";
      EXPECT_GE(cut.stride, most);
      EXPECT_EQ(cut.block(1) % 4, 0);
    }
  }
}

}  // namespace
}  // namespace volley::comm
