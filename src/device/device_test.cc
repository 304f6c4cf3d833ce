#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "device/arena.h"
#include "device/cpu/thread_pool.h"
#include "device/device.h"
#include "device/dry_run.h"
#include "device/probe.h"

namespace volley {
namespace {

TEST(DType, BFloat16RoundsToNearestEvenAndKeepsSpecials) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // a tie, to even
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // a tie, to even
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(to_float(to_bfloat16(std::numeric_limits<float>::infinity()))));
}

TEST(DType, Float16ConvertsEveryClass) {
  EXPECT_EQ(to_float(Float16{0x3c00}), 1.0f);
  EXPECT_EQ(to_float(Float16{0xc000}), -2.0f);
  EXPECT_EQ(to_float(Float16{0x0001}), std::ldexp(1.0f, -24));
  EXPECT_EQ(to_float(Float16{0x7bff}), 65504.0f);
  EXPECT_TRUE(std::isinf(to_float(Float16{0x7c00})));
  EXPECT_TRUE(std::isnan(to_float(Float16{0x7c01})));
}

TEST(DType, Float8ConvertsEveryClass) {
  EXPECT_EQ(to_float(Float8E4M3{0x38}), 1.0f);
  EXPECT_EQ(to_float(Float8E4M3{0xc0}), -2.0f);
  EXPECT_EQ(to_float(Float8E4M3{0x01}), std::ldexp(1.0f, -9));
  EXPECT_EQ(to_float(Float8E4M3{0x08}), std::ldexp(1.0f, -6));
  EXPECT_EQ(to_float(Float8E4M3{0x7e}), kMaxFloat8E4M3);
  EXPECT_TRUE(std::isnan(to_float(Float8E4M3{0xff})));
}

// Each task exactly once, whatever the pause between regions (workers asleep or spinning) and their size.
TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 300; ++round) {
      const int tasks = round % 17;
      std::vector<std::atomic<int>> hits(tasks);
      std::atomic<bool> bad_worker{false};
      pool.parallel_for(tasks, [&](int64_t task, int worker) {
        hits[task].fetch_add(1);
        if (worker < 0 || worker >= threads) bad_worker = true;
      });
      for (auto& h : hits) ASSERT_EQ(h.load(), 1);
      ASSERT_FALSE(bad_worker);
      if (round % 100 == 50) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

// Regions in quick succession: a late worker must not take a task of a later region, nor run an earlier region's
// function, and everything that tasks wrote must be visible when the region ends.
TEST(ThreadPool, KeepsRegionsApart) {
  ThreadPool pool(3);
  std::vector<int> written(64);
  for (int region = 1; region <= 5000; ++region) {
    const int tasks = 2 + region % 60;
    pool.parallel_for(tasks, [&, region](int64_t task, int) { written[task] += region; });
    for (int task = 0; task < tasks; ++task) ASSERT_EQ(written[task], region) << "task " << task;
    std::fill(written.begin(), written.end(), 0);
  }
}

TEST(Arena, ReusesWhatAScopeReleased) {
  auto device = *make_cpu_device(1);
  Arena arena(std::move(device->allocate(1024)).value());
  void* first = nullptr;
  {
    ArenaScope scope(arena);
    first = arena.take(DType::kF32, {10}).data;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  }
  EXPECT_EQ(arena.take(DType::kF32, {4}).data, first);
  EXPECT_EQ(arena.peak(), size_t{kArenaAlignment});
  EXPECT_EQ(arena.take(DType::kF32, {1}).data, static_cast<char*>(first) + kArenaAlignment);
  EXPECT_DEATH(arena.take(DType::kF32, {1024}), "CHECK failed");
}

// An arena of any size hands out the same places as a real one, and its peak is the size that the real one needs.
TEST(DryRun, MeasuresScratch) {
  auto device = *make_cpu_device(1);
  const auto run = [](Arena& arena) {
    const ArenaScope scope(arena);
    const TensorView first = arena.take(DType::kF32, {3});
    for (int64_t i = 1; i < 4; ++i) {
      const ArenaScope inner(arena);
      EXPECT_EQ(static_cast<char*>(arena.take(DType::kU8, {i * 1000}).data) - static_cast<char*>(first.data),
                kArenaAlignment);
    }
  };
  const int64_t bytes = measure_scratch(device->stream(), run);
  EXPECT_EQ(bytes, kArenaAlignment + arena_bytes(3000));
  Arena real(std::move(device->allocate(static_cast<size_t>(bytes))).value());
  run(real);
  EXPECT_EQ(real.peak(), real.capacity());
}

TEST(DryRun, EndsWithItsScope) {
  auto device = *make_cpu_device(1);
  Stream& stream = device->stream();
  {
    const DryRun outer(stream);
    {
      const DryRun inner(stream);
      stream.skip_launch();
      EXPECT_EQ(inner.launches(), 1);
    }
    EXPECT_TRUE(stream.dry());
    EXPECT_EQ(outer.launches(), 0);
  }
  EXPECT_FALSE(stream.dry());
}

TEST(DryDevice, CountsWhatItIsAskedFor) {
  DryDevice gpu(GpuInfo{90, 132, 227 << 10});
  EXPECT_TRUE(gpu.stream().dry());
  const Buffer weights = std::move(gpu.allocate(size_t{1} << 40)).value();  // more than there is
  const Buffer pinned = std::move(gpu.allocate_host(100)).value();
  std::memset(pinned.data(), 1, pinned.bytes());
  EXPECT_EQ(gpu.bytes(), int64_t{1} << 40);
  const auto record = [&](int kernels) {
    const int64_t before = gpu.graph_bytes();
    EXPECT_NE(gpu.record([&] {
      for (int i = 0; i < kernels; ++i) gpu.stream().skip_launch();
    }),
              nullptr);
    return gpu.graph_bytes() - before;
  };
  const int64_t one = record(1);
  EXPECT_GT(one, 0);
  EXPECT_GT(record(1000), one);
  EXPECT_DEATH(gpu.download(pinned.data(), weights.data(), 1), "no results");

  DryDevice cpu(4);
  EXPECT_EQ(cpu.stream().threads(), 4);
  EXPECT_TRUE(cpu.allocate_host(100).ok());
  EXPECT_EQ(cpu.bytes(), 100) << "host memory is the device's";
  EXPECT_EQ(cpu.record([] {}), nullptr);
}

TEST(Buffer, IsZeroedAndFreedOnce) {
  auto device = *make_cpu_device(1);
  Buffer a = std::move(device->allocate(4096)).value();
  for (size_t i = 0; i < a.bytes(); ++i) ASSERT_EQ(static_cast<char*>(a.data())[i], 0);
  Buffer b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_NE(b.data(), nullptr);
}

// On any instruction set: a figure of zero would make every time look infinitely good or bad.
TEST(MachineProbe, MeasuresSomethingOnAnyCpu) {
  const MachineSpeed speed = MachineProbe(1).measure(1 << 20);
  EXPECT_GT(speed.read_bytes_per_s, 0);
  EXPECT_GT(speed.f32_flops, 0);
  EXPECT_GE(speed.bf16_flops, 0);
}

TEST(TensorView, RowsAreBounded) {
  float data[6] = {0, 1, 2, 3, 4, 5};
  TensorView t(data, DType::kF32, {3, 2});
  EXPECT_EQ(t.rows(1, 2).as<float>()[0], 2.0f);
  EXPECT_DEATH(t.rows(2, 2), "CHECK failed");
}

}  // namespace
}  // namespace volley
