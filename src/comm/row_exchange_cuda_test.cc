// Protects the same as row_exchange_test.cc does, for replicas on GPUs: every replica gets the rows that one brings,
// layer by layer, at any pace and for any number of rows; products are read before they are overwritten; recorded calls
// continue the count; no replica waits for one that is gone, and its memory stays.
//
// With one GPU, each replica has a stream of its own on it; with several, each replica has a GPU. Tests without enough
// GPUs are skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "base/threads_for_test.h"
#include "comm/exchange_layout.h"
#include "comm/row_exchange.h"
#include "device/fault.h"

namespace volley::comm {
namespace {

using testing::HasSubstr;

constexpr int64_t kMost = 5, kWidth = 12;  // rows of a replica, floats of a row
constexpr int64_t kRowBytes = kWidth * 4;
constexpr int64_t kCommonBytes = int64_t{1} << 16;

struct Case {
  int replicas;
  bool one_gpu;
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return std::to_string(info.param.replicas) + (info.param.one_gpu ? "OnOneGpu" : "Gpus");
}

// How many rows a replica brings to a layer: often none.
int64_t rows_of(int replica, int64_t layer) {
  std::minstd_rand random(static_cast<uint32_t>(layer * 31 + replica * 7 + 1));
  random.discard(3);
  return layer % 11 == 0 || random() % 3 == 0 ? 0 : static_cast<int64_t>(1 + random() % kMost);
}

float value_of(int replica, int64_t layer, int64_t i) {
  return static_cast<float>((layer * 131 + replica * 1009 + i) % 9973);
}

// A replica: its end, a device, and memory of both kinds, all allocated before any replica waits for another.
struct Replica {
  std::unique_ptr<Device> device;
  RowExchange* exchange = nullptr;
  Buffer rows, log, host;  // the last one pinned

  TensorView chosen() const { return {rows.data(), DType::kI32, {kMost, 2}}; }
  TensorView inputs() const { return {static_cast<char*>(rows.data()) + 256, DType::kF32, {kMost, kWidth}}; }
};

// The common memory that a layer takes.
struct Common {
  TensorView chosen, inputs, outer;

  explicit Common(RowExchange& exchange) {
    const int64_t all = exchange.replicas() * kMost;
    Arena& common = exchange.common();
    chosen = common.take(DType::kI32, {all, 2});
    inputs = common.take(DType::kF32, {all, kWidth});
    outer = common.take(DType::kF32, {all, kWidth});
  }
};

class CudaRowExchange : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kLayers = 400;
  static constexpr int64_t kLogBytes = int64_t{8} << 20;

  int replicas() const { return GetParam().replicas; }
  int gpu(int replica) const { return GetParam().one_gpu ? 0 : replica; }

  void SetUp() override {
    if (!examine_cuda_device(gpu(replicas() - 1)).ok()) GTEST_SKIP() << "needs " << gpu(replicas() - 1) + 1 << " GPUs";
    std::vector<int> gpus;
    for (int i = 0; i < replicas(); ++i) gpus.push_back(gpu(i));
    auto made = make_cuda_row_exchanges(gpus, kMost, kCommonBytes);
    ASSERT_TRUE(made.ok()) << made.error().message;
    exchanges_ = std::move(*made);
    for (int i = 0; i < replicas(); ++i) {
      Replica& replica = all_.emplace_back();
      replica.device = std::move(make_cuda_device(gpu(i))).value();
      replica.exchange = exchanges_[static_cast<size_t>(i)].get();
      ASSERT_TRUE(replica.exchange->prepare(*replica.device).ok());
      replica.rows = std::move(replica.device->allocate(1024)).value();
      replica.log = std::move(replica.device->allocate(kLogBytes)).value();
      replica.host = std::move(replica.device->allocate_host(kLogBytes)).value();
    }
  }
  void TearDown() override {
    for (const auto& exchange : exchanges_) exchange->abort();
    all_.clear();
    exchanges_.clear();
  }

  // Runs body on a thread for each replica. A replica that fails leaves no other waiting.
  void run(const std::function<void(Replica&)>& body) {
    on_threads(all_, [&](Replica& replica) {
      replica.device->attach_thread();
      try {
        body(replica);
        if (HasFatalFailure()) replica.exchange->abort();
        replica.device->synchronize();
      } catch (const DeviceFault& fault) {
        ADD_FAILURE() << "replica " << replica.exchange->replica() << ": " << fault.what();
        replica.exchange->abort();
      }
    });
  }

  static void bring(Replica& replica, const Common& common, int64_t rows) {
    RowExchange& exchange = *replica.exchange;
    Stream& stream = replica.device->stream();
    const RowExchange::Rows there = exchange.begin(stream, rows);
    ASSERT_EQ(there.all, exchange.replicas() * kMost);
    ASSERT_EQ(there.first, exchange.replica() * kMost);
    const RowExchange::Copy copies[] = {{replica.chosen().rows(0, rows), common.chosen.rows(there.first, rows)},
                                        {replica.inputs().rows(0, rows), common.inputs.rows(there.first, rows)}};
    exchange.bring(stream, copies);
  }

  std::vector<Replica> all_;
  RowExchanges exchanges_;
};

// The host does not wait between layers, except at random: each layer's rows, counts and products are logged on the
// device, and checked at the end. Every replica's products encode replica and layer.
TEST_P(CudaRowExchange, LayersOfAnyRowsStayApart) {
  const int64_t n = replicas();
  const int64_t counts_bytes = n * 4, inputs_bytes = n * kMost * kRowBytes;
  // an entry of the log: counts, inputs, the next replica's products
  const int64_t entry = counts_bytes + 2 * inputs_bytes;
  ASSERT_LE((kLayers + 1) * (entry + inputs_bytes), kLogBytes);
  // The expected products of a replica in a layer, from [layers + 1] in the second half of its log; and rows, in pinned
  // memory.
  run([&](Replica& replica) {
    const int me = replica.exchange->replica();
    auto* values = static_cast<float*>(replica.host.data());
    for (int64_t i = 0; i < kLayers * kMost * kWidth; ++i) {
      values[i] = value_of(me, i / (kMost * kWidth), i % (kMost * kWidth));
    }
    auto* all_rows = static_cast<char*>(replica.log.data()) + kLayers * entry;  // rows of every layer
    replica.device->enqueue_upload(all_rows, values, static_cast<size_t>(kLayers * kMost * kRowBytes));
    replica.device->synchronize();
  });
  std::vector<std::vector<char>> logs(static_cast<size_t>(n));
  run([&](Replica& replica) {
    RowExchange& exchange = *replica.exchange;
    Device& device = *replica.device;
    const int me = exchange.replica(), next = (me + 1) % static_cast<int>(n);
    const ArenaScope scope(exchange.common());
    const Common common(exchange);
    device.enqueue_download(replica.host.data(), exchange.shifts(), static_cast<size_t>(n) * 8);
    device.synchronize();
    const int64_t to_next = static_cast<const int64_t*>(replica.host.data())[next];
    auto* const log = static_cast<char*>(replica.log.data());
    const char* const all_rows = log + kLayers * entry;
    std::minstd_rand random(static_cast<uint32_t>(me + 1));
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const int64_t rows = rows_of(me, layer);
      device.enqueue_copy(replica.inputs().data, all_rows + layer * kMost * kRowBytes, kMost * kRowBytes);
      ASSERT_NO_FATAL_FAILURE(bring(replica, common, rows));
      char* const to = log + layer * entry;
      device.enqueue_copy(to, exchange.counts(), static_cast<size_t>(counts_bytes));
      device.enqueue_copy(to + counts_bytes, common.inputs.data, static_cast<size_t>(inputs_bytes));
      // Products: the replica's own rows of this layer, at each replica's place.
      for (int64_t r = 0; r < n; ++r) {
        device.enqueue_copy(static_cast<char*>(common.outer.data) + r * kMost * kRowBytes,
                            all_rows + layer * kMost * kRowBytes, kMost * kRowBytes);
      }
      exchange.meet(device.stream());
      const char* const made = static_cast<const char*>(common.outer.data) + to_next;
      device.enqueue_copy(to + counts_bytes + inputs_bytes, made, static_cast<size_t>(inputs_bytes));
      if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      if (random() % 64 == 0) device.synchronize();
    }
    device.enqueue_download(replica.host.data(), log, static_cast<size_t>(kLayers * entry));
    device.synchronize();
    EXPECT_NO_THROW(exchange.check());
    const auto* from = static_cast<const char*>(replica.host.data());
    logs[static_cast<size_t>(me)].assign(from, from + kLayers * entry);
  });
  for (int me = 0; me < n; ++me) {
    ASSERT_FALSE(logs[static_cast<size_t>(me)].empty());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const char* const at = logs[static_cast<size_t>(me)].data() + layer * entry;
      for (int r = 0; r < n; ++r) {
        int32_t count;
        std::memcpy(&count, at + r * 4, 4);
        ASSERT_EQ(count, rows_of(r, layer)) << "replica " << r << " as " << me << " sees it, layer " << layer;
        for (int64_t i = 0; i < count * kWidth; ++i) {
          float value;
          std::memcpy(&value, at + counts_bytes + (r * kMost * kWidth + i) * 4, 4);
          ASSERT_EQ(value, value_of(r, layer, i)) << "row of " << r << " as " << me << " sees it, layer " << layer;
        }
        for (int64_t i = 0; i < kMost * kWidth; ++i) {
          float value;
          std::memcpy(&value, at + counts_bytes + inputs_bytes + (r * kMost * kWidth + i) * 4, 4);
          ASSERT_EQ(value, value_of((me + 1) % static_cast<int>(n), layer, i)) << "as " << me << ", layer " << layer;
        }
      }
    }
  }
}

// A graph contains neither a meet's number nor the others' rows: each replica replays the graph for its own number of
// rows.
TEST_P(CudaRowExchange, RecordedCallsCanBeReplayed) {
  constexpr int kReplays = 300;
  std::vector<std::vector<std::unique_ptr<StepGraph>>> graphs(all_.size());
  for (Replica& replica : all_) {  // before any replica waits for another: this allocates memory
    const ArenaScope scope(replica.exchange->common());
    const Common common(*replica.exchange);
    replica.device->attach_thread();
    for (int64_t rows = 0; rows <= kMost; ++rows) {
      graphs[static_cast<size_t>(replica.exchange->replica())].push_back(replica.device->record([&] {
        for (int layer = 0; layer < 3; ++layer) {
          bring(replica, common, rows);
          replica.exchange->meet(replica.device->stream());
        }
      }));
    }
  }
  run([&](Replica& replica) {
    RowExchange& exchange = *replica.exchange;
    Device& device = *replica.device;
    const ArenaScope scope(exchange.common());
    const Common common(exchange);
    auto* const host = static_cast<char*>(replica.host.data());
    for (int64_t replay = 0; replay < kReplays; ++replay) {
      const int me = exchange.replica();
      const bool looks = replay % 20 == 19;
      if (looks) {
        auto* values = reinterpret_cast<float*>(host + 4096);
        for (int64_t i = 0; i < kMost * kWidth; ++i) values[i] = value_of(me, replay, i);
        device.synchronize();
        device.enqueue_upload(replica.inputs().data, values, kMost * kRowBytes);
      }
      graphs[static_cast<size_t>(me)][static_cast<size_t>(rows_of(me, replay))]->launch();
      if (replay % 7 == 0) exchange.meet(device.stream());
      if (!looks) continue;
      device.enqueue_download(host, exchange.counts(), static_cast<size_t>(replicas()) * 4);
      device.enqueue_download(host + 64, common.inputs.data, static_cast<size_t>(common.inputs.bytes()));
      exchange.meet(device.stream());  // no replica brings more before all have looked
      device.synchronize();
      for (int r = 0; r < replicas(); ++r) {
        ASSERT_EQ(reinterpret_cast<int32_t*>(host)[r], rows_of(r, replay)) << "replay " << replay;
        for (int64_t i = 0; i < rows_of(r, replay) * kWidth; ++i) {
          ASSERT_EQ(reinterpret_cast<float*>(host + 64)[r * kMost * kWidth + i], value_of(r, replay, i));
        }
      }
    }
  });
}

TEST_P(CudaRowExchange, AReplicaThatIsGoneEndsTheOthersWait) {
  if (replicas() == 1) GTEST_SKIP() << "there are no others";
  const int gone = replicas() - 1;
  run([&](Replica& replica) {
    RowExchange& exchange = *replica.exchange;
    const ArenaScope scope(exchange.common());
    const Common common(exchange);
    bring(replica, common, 1);
    exchange.meet(replica.device->stream());
    replica.device->synchronize();
    EXPECT_NO_THROW(exchange.check());
    if (exchange.replica() == gone) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others' kernels wait by then
      exchange.abort();
    } else {
      try {
        for (int i = 0; i < 20; ++i) {
          bring(replica, common, i % 2);
          exchange.meet(replica.device->stream());
        }
      } catch (const DeviceFault&) {  // it was gone by then
      }
      replica.device->synchronize();  // ends
    }
    try {
      exchange.check();
      ADD_FAILURE() << "replica " << exchange.replica() << " went on";
    } catch (const DeviceFault& fault) {
      EXPECT_THAT(fault.what(), HasSubstr("Replica " + std::to_string(gone) + " of " + std::to_string(replicas())));
    }
    EXPECT_THROW(exchange.begin(replica.device->stream(), 1), DeviceFault) << "later, too";
  });
}

// A replica's device is destroyed while the others' work still writes into its memory.
TEST_P(CudaRowExchange, MemoryOfAReplicaThatIsGoneStays) {
  if (replicas() == 1) GTEST_SKIP() << "there are no others";
  run([&](Replica& replica) {
    RowExchange& exchange = *replica.exchange;
    const ArenaScope scope(exchange.common());
    const Common common(exchange);
    if (exchange.replica() != 0) {
      try {
        for (int i = 0; i < 200; ++i) bring(replica, common, kMost);
      } catch (const DeviceFault&) {
      }
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    exchange.abort();
    replica.device->synchronize();
  });
  Replica& first = all_.front();
  first.rows.reset();
  first.log.reset();
  first.host.reset();
  first.exchange->abort();
  exchanges_.front().reset();
  first.device.reset();
  for (size_t i = 1; i < all_.size(); ++i) EXPECT_NO_THROW(all_[i].device->synchronize());
  exchanges_.erase(exchanges_.begin());
}

TEST_P(CudaRowExchange, TakesWhatIsPlanned) {
  EXPECT_EQ(row_exchange_bytes(DeviceKind::kCuda, replicas(), kCommonBytes), kExchangeHeaderBytes + kCommonBytes);
  for (const auto& exchange : exchanges_) EXPECT_EQ(exchange->common().capacity(), kCommonBytes);
}

INSTANTIATE_TEST_SUITE_P(All, CudaRowExchange,
                         ::testing::Values(Case{1, true}, Case{2, true}, Case{3, true}, Case{4, true}, Case{2, false},
                                           Case{4, false}),
                         name_of);

}  // namespace
}  // namespace volley::comm
