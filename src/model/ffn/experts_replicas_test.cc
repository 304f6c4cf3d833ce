// Protects: replicas that divide a layer's experts, each with rows of its own or with none. Every row has the same bits
// as on one replica with all experts, whatever the number of replicas and whatever the others do; and no replica waits
// for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "base/sanitized.h"
#include "base/threads_for_test.h"
#include "comm/row_exchange.h"
#include "device/dry_run.h"
#include "model/ffn/experts_for_test.h"

namespace volley::model {
namespace {

constexpr int64_t kReplicasHidden = 32, kMostRows = 6;

struct Kind {
  const char* name;
  int32_t experts, shared_inner;
  bool bias;
  DType activation;
};
constexpr Kind kKinds[] = {
    {"plain", 8, 0, false, DType::kF32}, {"shared", 7, 16, false, DType::kBF16}, {"biases", 8, 0, true, DType::kF32}};

Decoder decoder(const Kind& kind) {
  Experts experts;
  experts.router.experts = kind.experts, experts.router.top_k = 3;
  experts.inner = 16;
  experts.shared_inner = kind.shared_inner;
  experts.bias = kind.bias;
  if (kind.bias) experts.clamp.limit = 7;
  return decoder_of(kReplicasHidden, experts);
}

// A layer's weights, which all replicas use.
struct Layer {
  explicit Layer(const Kind& kind) : kind(kind), spec(decoder(kind)), device(*make_cpu_device(1)) {
    block = load_experts(*device, spec, layer_params(spec, 0), kind.activation, kind.activation);
  }
  const Kind kind;
  const Decoder spec;
  std::unique_ptr<Device> device;
  std::unique_ptr<FfnBlock> block;
};

// The block of one replica, or of the only one.
class Runner {
 public:
  Runner(const Layer& layer, comm::RowExchange* exchange)
      : layer_(layer), exchange_(exchange), device_(*make_cpu_device(1)), scratch_(*device_->allocate(1 << 20)) {
    if (exchange != nullptr) VOLLEY_CHECK(exchange->prepare(*device_).ok());
  }

  // Runs the layer on rows of 0, and returns its addition. h: [rows, hidden].
  std::vector<float> run(const std::vector<float>& h) {
    const auto rows = static_cast<int32_t>(std::ssize(h) / kReplicasHidden);
    std::vector<float> in = h, x(h.size());
    std::vector<BFloat16> narrow;
    for (const float v : h) narrow.push_back(to_bfloat16(v));
    ops::Rows batch;
    batch.rows = rows;
    Pass pass{device_->stream(), batch, {}, scratch_};
    pass.routing.touched_total = &touched;
    pass.exchange = exchange_;
    const bool is_narrow = layer_.kind.activation == DType::kBF16;
    void* const data = is_narrow ? static_cast<void*>(narrow.data()) : in.data();
    layer_.block->run(pass, {TensorView(data, layer_.kind.activation, {rows, kReplicasHidden})},
                      {TensorView(x.data(), DType::kF32, {rows, kReplicasHidden})});
    EXPECT_EQ(scratch_.mark(), 0u);
    return x;
  }

  int64_t touched = 0;

 private:
  const Layer& layer_;
  comm::RowExchange* const exchange_;
  std::unique_ptr<Device> device_;
  Arena scratch_;
};

constexpr uint32_t kDifferentRows = 64;

// The bits of each row, alone on the only replica.
std::vector<std::vector<float>> answers_of(const Layer& layer) {
  Runner whole(layer, nullptr);
  std::vector<std::vector<float>> answers;
  for (uint32_t i = 0; i < kDifferentRows; ++i) answers.push_back(whole.run(row_of(kReplicasHidden, i)));
  return answers;
}

// Runs so many passes, in which replicas fall idle and wake at random, for stretches of random length.
void check_replicas(const Layer& layer, int replicas, int64_t passes) {
  const auto answers = answers_of(layer);
  std::vector<std::vector<float>> rows;
  for (uint32_t i = 0; i < kDifferentRows; ++i) rows.push_back(row_of(kReplicasHidden, i));
  auto exchanges = comm::make_row_exchanges(replicas, kMostRows, 1 << 20);
  std::vector<int64_t> idle(static_cast<size_t>(replicas)), touched(static_cast<size_t>(replicas));
  on_threads(replicas, [&](int r) {
    Runner runner(layer, exchanges[static_cast<size_t>(r)].get());
    std::minstd_rand random(static_cast<uint32_t>(r + 1));
    bool busy = true;
    for (int64_t pass = 0; pass < passes; ++pass) {
      if (random() % 8 == 0) busy = !busy;
      if (random() % 64 == 0) std::this_thread::yield();
      const int64_t count = busy ? 1 + static_cast<int64_t>(random() % kMostRows) : 0;
      std::vector<float> h, wanted;
      for (int64_t i = 0; i < count; ++i) {
        const size_t which = random() % kDifferentRows;
        h.insert(h.end(), rows[which].begin(), rows[which].end());
        wanted.insert(wanted.end(), answers[which].begin(), answers[which].end());
      }
      ASSERT_TRUE(runner.run(h) == wanted)
          << layer.kind.name << ", replica " << r << " of " << replicas << ", pass " << pass;
      idle[static_cast<size_t>(r)] += count == 0 ? 1 : 0;
    }
    touched[static_cast<size_t>(r)] = runner.touched;
  });
  for (int r = 0; r < replicas; ++r) {
    EXPECT_GT(idle[static_cast<size_t>(r)], passes / 4);
    EXPECT_GT(touched[static_cast<size_t>(r)], 0) << "replica " << r << " computed nothing";
  }
}

TEST(ExpertsOfReplicas, GiveEveryRowTheBitsOfOne) {
  for (const Kind& kind : kKinds) {
    const Layer layer(kind);
    for (const int replicas : {1, 2, 3, 4}) check_replicas(layer, replicas, kSanitized ? 300 : 600);
  }
}

TEST(ExpertsOfReplicas, FallIdleAndWakeAtRandom) {
  const Layer layer(kKinds[1]);
  for (const int replicas : {2, 4}) check_replicas(layer, replicas, kSanitized ? 500 : 10'000);
}

// More replicas than experts: some have none, and their rows go to the others.
TEST(ExpertsOfReplicas, MayBeMoreThanExperts) {
  const Layer layer(kKinds[0]);
  const auto answers = answers_of(layer);
  auto exchanges = comm::make_row_exchanges(11, kMostRows, 1 << 20);
  std::vector<int64_t> touched(11);
  on_threads(11, [&](uint32_t r) {
    Runner runner(layer, exchanges[r].get());
    EXPECT_TRUE(runner.run(row_of(kReplicasHidden, r)) == answers[r]) << r;
    EXPECT_TRUE(runner.run(row_of(kReplicasHidden, r + 20)) == answers[r + 20]) << r;
    touched[r] = runner.touched;
  });
  EXPECT_GE(std::ranges::count(touched, 0), 3);
}

// The experts that all replicas use together are those that one replica would use.
TEST(ExpertsOfReplicas, CountWhatAllRowsTouchOnce) {
  const Layer layer(kKinds[0]);
  std::vector<float> all;
  for (uint32_t r = 0; r < 4; ++r) {
    const auto row = row_of(kReplicasHidden, r);
    all.insert(all.end(), row.begin(), row.end());
  }
  Runner whole(layer, nullptr);
  whole.run(all);
  auto exchanges = comm::make_row_exchanges(4, kMostRows, 1 << 20);
  std::atomic<int64_t> touched{0};
  on_threads(4, [&](uint32_t r) {
    Runner runner(layer, exchanges[r].get());
    runner.run(row_of(kReplicasHidden, r));
    touched += runner.touched;
  });
  EXPECT_EQ(touched, whole.touched);
}

// A dry run takes the most scratch and common memory that a pass may take, whichever replica has the rows.
TEST(ExpertsOfReplicas, DryRunsSeeWhatRealOnesTake) {
  for (const Kind& kind : kKinds) {
    const Layer layer(kind);
    const auto dry = comm::make_dry_row_exchange(0, 2, kMostRows);
    DryDevice device(1);
    ops::Rows batch;
    const auto measure = [&](int32_t rows) {
      return measure_scratch(device.stream(), [&](Arena& scratch) {
        batch.rows = rows;
        Pass pass{device.stream(), batch, {}, scratch};
        pass.exchange = dry.get();
        const TensorView h(rows == 0 ? nullptr : no_memory(), kind.activation, {rows, kReplicasHidden});
        layer.block->run(pass, h, {TensorView(no_memory(), DType::kF32, {rows, kReplicasHidden})});
      });
    };
    const int64_t most = measure(kMostRows);
    EXPECT_LE(measure(0), most);
    const auto common = static_cast<int64_t>(dry->common().peak());
    // A real layer in memory of exactly that size: an arena that runs out is a failed CHECK.
    for (const auto& [first, second] : {std::pair<int64_t, int64_t>{kMostRows, 0}, {0, kMostRows}, {5, 4}, {1, 0}}) {
      auto exchanges = comm::make_row_exchanges(2, kMostRows, common);
      on_threads(2, [&](int r) {
        const auto rows = static_cast<int32_t>(r == 0 ? first : second);
        const auto own = *make_cpu_device(1);
        VOLLEY_CHECK(exchanges[static_cast<size_t>(r)]->prepare(*own).ok());
        Arena scratch(*own->allocate(static_cast<size_t>(most)));
        std::vector<float> h(static_cast<size_t>(rows * kReplicasHidden), 0.5f), x(h.size());
        ops::Rows some;
        some.rows = rows;
        Pass pass{own->stream(), some, {}, scratch};
        pass.exchange = exchanges[static_cast<size_t>(r)].get();
        layer.block->run(pass, {TensorView(h.data(), kind.activation, {rows, kReplicasHidden})},
                         {TensorView(x.data(), DType::kF32, {rows, kReplicasHidden})});
        if (rows == kMostRows) {
          EXPECT_EQ(static_cast<int64_t>(scratch.peak()), most) << kind.name;
        }
      });
      if (first + second >= kMostRows) {
        EXPECT_EQ(static_cast<int64_t>(exchanges[0]->common().peak()), common) << kind.name;
      }
    }
  }
}

}  // namespace
}  // namespace volley::model
