// Protects: rows of all replicas lie side by side in their order, for any counts; one replica's writes are visible to
// all; no replica is a layer ahead of another; a replica that is gone ends the others' waiting, and frees no memory in
// use.
#include "comm/row_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "base/sanitized.h"
#include "base/threads_for_test.h"
#include "device/dry_run.h"
#include "device/fault.h"

namespace volley::comm {
namespace {

using testing::HasSubstr;

constexpr int64_t kWidth = 5;

// Runs body(replica's end, its stream) on a thread for each replica.
void on_replicas(int replicas, int64_t most_rows, const std::function<void(RowExchange&, Stream&)>& body) {
  RowExchanges exchanges = make_row_exchanges(replicas, most_rows, 1 << 20);
  on_threads(exchanges, [&](auto& exchange) {
    const auto device = *make_cpu_device(1);
    ASSERT_TRUE(exchange->prepare(*device).ok());
    body(*exchange, device->stream());
  });
}

// How many rows a replica brings to a layer: often none, and in some layers no replica has any.
int64_t rows_of(int replica, int64_t layer) {
  std::minstd_rand random(static_cast<uint32_t>(layer * 31 + replica * 7 + 1));
  random.discard(3);
  return layer % 11 == 0 || random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 6);
}

float value_of(int64_t layer, int64_t row, int64_t column) {
  return static_cast<float>((layer * 131 + row * 17 + column) % 9973);
}

// Every replica writes its rows; one of the replicas doubles each row; the row's own replica finds the result.
void check_layer(RowExchange& exchange, Stream& stream, int64_t layer) {
  const int64_t rows = rows_of(exchange.replica(), layer);
  int64_t all = 0, first = 0;
  for (int i = 0; i < exchange.replicas(); ++i) {
    if (i == exchange.replica()) first = all;
    all += rows_of(i, layer);
  }
  const ArenaScope scope(exchange.common());
  const RowExchange::Rows have = exchange.begin(stream, rows);
  ASSERT_EQ(have.all, all);
  ASSERT_EQ(have.first, first);
  std::vector<float> mine(static_cast<size_t>(rows * kWidth));
  for (int64_t i = 0; i < rows * kWidth; ++i) mine[i] = value_of(layer, first + i / kWidth, i % kWidth);
  const TensorView in = exchange.common().take(DType::kF32, {all, kWidth});
  const TensorView out = exchange.common().take(DType::kF32, {all, kWidth});
  const RowExchange::Copy copies[] = {{{mine.data(), DType::kF32, {rows, kWidth}}, in.rows(first, rows)}};
  exchange.bring(stream, copies);
  for (int64_t row = 0; row < all; ++row) {
    for (int64_t i = 0; i < kWidth; ++i) {
      const float value = in.as<float>()[row * kWidth + i];
      ASSERT_EQ(value, value_of(layer, row, i)) << "layer " << layer << ", row " << row;
      if ((row + layer) % exchange.replicas() == exchange.replica()) out.as<float>()[row * kWidth + i] = 2 * value;
    }
  }
  exchange.meet(stream);
  for (int64_t i = 0; i < rows * kWidth; ++i) {
    ASSERT_EQ(out.as<float>()[first * kWidth + i], 2 * value_of(layer, first + i / kWidth, i % kWidth))
        << "layer " << layer;
  }
}

TEST(RowExchange, BringsRowsTogetherInAnyNumber) {
  for (const int replicas : {1, 2, 3, 4}) {
    on_replicas(replicas, 8, [](RowExchange& exchange, Stream& stream) {
      std::minstd_rand random(static_cast<uint32_t>(exchange.replica() + 1));
      for (int64_t layer = 0; layer < (kSanitized ? 300 : 3000); ++layer) {
        if (random() % 50 == 0) std::this_thread::yield();
        ASSERT_NO_FATAL_FAILURE(check_layer(exchange, stream, layer));
      }
    });
  }
}

TEST(RowExchange, CopiesRowsOfAnySize) {
  on_replicas(2, 8, [](RowExchange& exchange, Stream& stream) {
    const int64_t bytes = 100'001;  // several tasks
    std::vector<uint8_t> mine(static_cast<size_t>(bytes), static_cast<uint8_t>(1 + exchange.replica()));
    const RowExchange::Rows there = exchange.begin(stream, bytes);
    const TensorView common = exchange.common().take(DType::kU8, {there.all});
    const RowExchange::Copy copies[] = {{{mine.data(), DType::kU8, {bytes}}, common.rows(there.first, bytes)}};
    exchange.bring(stream, copies);
    for (int64_t i = 0; i < there.all; ++i) ASSERT_EQ(common.as<uint8_t>()[i], i < bytes ? 1 : 2) << i;
    exchange.meet(stream);
  });
}

TEST(RowExchange, ADryStreamMeasuresAndWaitsForNobody) {
  const auto exchange = make_dry_row_exchange(0, 4, 100);
  DryDevice device(1);
  const RowExchange::Rows there = exchange->begin(device.stream(), 7);
  EXPECT_EQ(there.all, 100);
  EXPECT_EQ(there.first, 0);
  const RowExchange::Rows more = exchange->begin(device.stream(), 130);
  EXPECT_EQ(more.all, 130);
  EXPECT_EQ(more.at_once, 100);
  {
    const ArenaScope scope(exchange->common());
    const TensorView common = exchange->common().take(DType::kF32, {there.all, 16});
    const RowExchange::Copy copies[] = {{{no_memory(), DType::kF32, {7, 16}}, common.rows(0, 7)}};
    exchange->bring(device.stream(), copies);
    exchange->meet(device.stream());
  }
  EXPECT_EQ(exchange->common().peak(), 6400u);
}

// All replicas' rows fit, and each replica has its own place.
TEST(RowExchange, ADryGpuHasRoomForEverybody) {
  const auto exchange = make_dry_row_exchange(2, 4, 100);
  GpuInfo gpu;
  gpu.compute_capability = 90;
  DryDevice device(gpu);
  const RowExchange::Rows there = exchange->begin(device.stream(), 7);
  EXPECT_EQ(there.all, 400);
  EXPECT_EQ(there.at_once, 400);
  EXPECT_EQ(there.first, 200);
  EXPECT_EQ(there.likely, 28);
  EXPECT_EQ(exchange->begin(device.stream(), 0).likely, 4);
}

// The last replica fails instead of coming to begin(), to the first meet() or to the second.
TEST(RowExchange, OneThatIsGoneEndsTheOthersWaiting) {
  for (const int replicas : {2, 4}) {
    for (int calls = 0; calls < 3; ++calls) {
      std::atomic<int> told{0};
      on_replicas(replicas, 8, [&](RowExchange& exchange, Stream& stream) {
        const bool fails = exchange.replica() == replicas - 1;
        const auto call = [&](int i) {
          if (fails && i == calls) return exchange.abort();
          i == 0 ? static_cast<void>(exchange.begin(stream, 1)) : exchange.meet(stream);
        };
        try {
          for (int i = 0; i < 3; ++i) {
            call(i);
            if (fails && i == calls) return;
          }
          ADD_FAILURE() << "replica " << exchange.replica() << " went on";
        } catch (const DeviceFault& fault) {
          ++told;
          const std::string gone = "Replica " + std::to_string(replicas - 1) + " of " + std::to_string(replicas);
          EXPECT_THAT(fault.what(), HasSubstr(gone + " is gone"));
          EXPECT_THROW(exchange.begin(stream, 1), DeviceFault) << "later, too";
        }
      });
      EXPECT_EQ(told, replicas - 1);
    }
  }
}

TEST(RowExchange, MemoryStaysWhenItsFirstOwnerGoes) {
  RowExchanges exchanges = make_row_exchanges(2, 8, 4096);
  {
    const auto device = *make_cpu_device(1);
    for (auto& exchange : exchanges) ASSERT_TRUE(exchange->prepare(*device).ok());
  }
  const TensorView one = exchanges[0]->common().take(DType::kI32, {8});
  const TensorView other = exchanges[1]->common().take(DType::kI32, {8});
  EXPECT_EQ(one.data, other.data);
  exchanges[0].reset();
  other.as<int32_t>()[7] = 3;
  const auto device = *make_cpu_device(1);
  EXPECT_THROW(exchanges[1]->begin(device->stream(), 1), DeviceFault) << "its end is an abort";
}

}  // namespace
}  // namespace volley::comm
