// Protects the same as experts_replicas_test.cc, for replicas on GPUs that each have only their own experts: every row
// has the same bits as on one GPU with all experts, whatever the other replicas do, recorded or not.
//
// With one GPU, each replica has a stream of its own on it; with several, each replica has a GPU. Tests without enough
// GPUs are skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/environment.h"
#include "base/threads_for_test.h"
#include "comm/row_exchange.h"
#include "device/dry_run.h"
#include "model/ffn/experts_for_test.h"
#include "model/shard.h"

namespace volley::model {
namespace {

// Runs before the first use of CUDA: kernels that wait for one another must not share a queue of the driver, and none
// may be loaded while others wait.
const bool kPrepared = [] {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  load_gpu_code_early();
  return true;
}();

constexpr int64_t kMostRows = 40;
constexpr uint32_t kDifferentRows = 64;

struct Kind {
  const char* name;
  int32_t experts, hidden, inner, shared_inner;
  bool bias;
  DType activation;
  ops::WeightFormat storage;
};
const Kind kKinds[] = {{"Tiles", 16, 256, 128, 0, false, DType::kBF16, DType::kBF16},
                       {"Uneven", 13, 128, 64, 64, false, DType::kBF16, DType::kBF16},
                       {"Biases", 8, 128, 64, 0, true, DType::kBF16, DType::kBF16},
                       {"Codes", 8, 256, 128, 0, false, DType::kBF16, ops::kInt4Weights},
                       {"Plain", 8, 36, 20, 0, true, DType::kF32, DType::kF32}};

Decoder decoder(const Kind& kind) {
  Experts experts;
  experts.router.experts = kind.experts, experts.router.top_k = 4;
  experts.inner = kind.inner;
  experts.shared_inner = kind.shared_inner;
  experts.bias = kind.bias;
  if (kind.bias) experts.clamp.limit = 7;
  return decoder_of(kind.hidden, experts);
}

// A layer on a GPU with the experts of one replica, and memory for its passes. Everything is allocated before any
// replica waits for another.
class Runner {
 public:
  // exchange: prepared when all replicas are constructed; null: the layer has all experts.
  Runner(const Kind& kind, int gpu, comm::RowExchange* exchange, int replicas = 1)
      : kind_(kind), exchange_(exchange), device_(std::move(make_cuda_device(gpu)).value()) {
    const Decoder spec = decoder(kind);
    std::vector<Param> list = layer_params(spec, 0);
    if (exchange != nullptr) list = keep_experts_of(std::move(list), exchange->replica(), replicas);
    block_ = load_experts(*device_, spec, list, kind.activation, kind.storage);
    const auto bytes = static_cast<size_t>(kMostRows * kind.hidden * 4);
    for (Buffer* buffer : {&h_, &x_, &touched_}) *buffer = std::move(device_->allocate(bytes)).value();
    host_ = std::move(device_->allocate_host(2 * bytes)).value();
    // A dry run of the most rows, including those that the replicas have in common.
    const auto dry = comm::make_dry_row_exchange(exchange == nullptr ? 0 : exchange->replica(), replicas, kMostRows);
    if (exchange != nullptr) exchange_ = dry.get();
    const int64_t scratch = measure_scratch(device_->stream(), [&](Arena& arena) { enqueue(arena, kMostRows); });
    exchange_ = exchange;
    if (exchange != nullptr) common_bytes_ = static_cast<int64_t>(dry->common().peak());
    scratch_ = std::make_unique<Arena>(std::move(device_->allocate(static_cast<size_t>(scratch))).value());
  }
  ~Runner() { device_->synchronize(); }

  Device& device() { return *device_; }
  int64_t common_bytes() const { return common_bytes_; }

  // The rows are those of a recorded pass from now on.
  void record() {
    for (int64_t rows = 0; rows <= kMostRows; ++rows) {
      graphs_.push_back(device_->record([&] { enqueue(*scratch_, rows); }));
    }
  }

  // Runs the layer on rows of 0, and returns its addition.
  std::vector<float> run(const std::vector<float>& h) {
    const auto rows = std::ssize(h) / kind_.hidden;
    auto* const in = static_cast<char*>(host_.data());
    auto* const out = in + h_.bytes();
    for (size_t i = 0; i < h.size(); ++i) {
      if (kind_.activation == DType::kBF16) {
        reinterpret_cast<BFloat16*>(in)[i] = to_bfloat16(h[i]);
      } else {
        reinterpret_cast<float*>(in)[i] = h[i];
      }
    }
    std::memset(out, 0, x_.bytes());
    device_->enqueue_upload(h_.data(), in, h_.bytes());
    device_->enqueue_upload(x_.data(), out, x_.bytes());
    if (graphs_.empty()) {
      enqueue(*scratch_, rows);
    } else {
      graphs_[static_cast<size_t>(rows)]->launch();
    }
    device_->enqueue_download(out, x_.data(), x_.bytes());
    device_->synchronize();
    const auto* values = reinterpret_cast<const float*>(out);
    return {values, values + h.size()};
  }

  int64_t touched() {
    device_->enqueue_download(host_.data(), touched_.data(), sizeof(int64_t));
    device_->synchronize();
    return *static_cast<const int64_t*>(host_.data());
  }

 private:
  void enqueue(Arena& scratch, int64_t rows) {
    ops::Rows batch;
    batch.rows = static_cast<int32_t>(rows);
    Pass pass{device_->stream(), batch, {}, scratch};
    pass.routing.touched_total = static_cast<int64_t*>(touched_.data());
    pass.exchange = exchange_;
    block_->run(pass, {TensorView(h_.data(), kind_.activation, {rows, kind_.hidden})},
                {TensorView(x_.data(), DType::kF32, {rows, kind_.hidden})});
  }

  const Kind kind_;
  comm::RowExchange* exchange_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<FfnBlock> block_;
  Buffer h_, x_, touched_, host_;
  std::unique_ptr<Arena> scratch_;
  std::vector<std::unique_ptr<StepGraph>> graphs_;  // by rows
  int64_t common_bytes_ = 0;
};

struct Case {
  int replicas;
  bool one_gpu, recorded;
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return std::to_string(info.param.replicas) + (info.param.one_gpu ? "OnOneGpu" : "Gpus") +
         (info.param.recorded ? "Recorded" : "");
}

class ExpertsOfGpus : public ::testing::TestWithParam<Case> {
 protected:
  int gpu(int replica) const { return GetParam().one_gpu ? 0 : replica; }
};

int64_t common_bytes_of(const Kind& kind, int replicas) {
  const comm::RowExchanges cpu = comm::make_row_exchanges(replicas, kMostRows, 64);
  return Runner(kind, 0, cpu.front().get(), replicas).common_bytes();
}

TEST_P(ExpertsOfGpus, GiveEveryRowTheBitsOfOne) {
  const auto [replicas, one_gpu, recorded] = GetParam();
  if (!examine_cuda_device(gpu(replicas - 1)).ok()) GTEST_SKIP() << "needs " << gpu(replicas - 1) + 1 << " GPUs";
  for (const Kind& kind : kKinds) {
    std::vector<std::vector<float>> rows, answers;
    int64_t touched_by_one = 0;
    {
      Runner whole(kind, 0, nullptr);
      for (uint32_t i = 0; i < kDifferentRows; ++i) {
        rows.push_back(row_of(kind.hidden, i));
        answers.push_back(whole.run(rows.back()));
      }
      touched_by_one = whole.touched();
    }
    EXPECT_GT(touched_by_one, 0);
    std::vector<int> gpus;
    for (int r = 0; r < replicas; ++r) gpus.push_back(gpu(r));
    auto made = comm::make_cuda_row_exchanges(gpus, kMostRows, common_bytes_of(kind, replicas));
    ASSERT_TRUE(made.ok()) << made.error().message;
    comm::RowExchanges exchanges = std::move(*made);
    {
      std::vector<std::unique_ptr<Runner>> runners;
      for (int r = 0; r < replicas; ++r) {
        comm::RowExchange& exchange = *exchanges[static_cast<size_t>(r)];
        runners.push_back(std::make_unique<Runner>(kind, gpu(r), &exchange, replicas));
        ASSERT_TRUE(exchange.prepare(runners.back()->device()).ok());
        if (recorded) runners.back()->record();  // before the other replicas have called
      }
      on_threads(replicas, [&](int r) {
        Runner& runner = *runners[static_cast<size_t>(r)];
        runner.device().attach_thread();
        std::minstd_rand random(static_cast<uint32_t>(r + 1));
        bool busy = true;
        for (int pass = 0; pass < 150; ++pass) {
          if (random() % 8 == 0) busy = !busy;
          const bool many = random() % 4 == 0;
          const int64_t count = busy ? 1 + static_cast<int64_t>(random() % (many ? kMostRows : 3)) : 0;
          std::vector<float> h, wanted;
          for (int64_t i = 0; i < count; ++i) {
            const size_t which = random() % kDifferentRows;
            h.insert(h.end(), rows[which].begin(), rows[which].end());
            wanted.insert(wanted.end(), answers[which].begin(), answers[which].end());
          }
          const std::vector<float> got = runner.run(h);
          if (std::memcmp(got.data(), wanted.data(), wanted.size() * 4) == 0) continue;
          exchanges[static_cast<size_t>(r)]->abort();
          FAIL() << kind.name << ", replica " << r << " of " << replicas << ", pass " << pass << ", " << count
                 << " rows";
        }
        EXPECT_NO_THROW(exchanges[static_cast<size_t>(r)]->check());
      });
      for (const auto& runner : runners) EXPECT_GT(runner->touched(), 0) << "it computed nothing";
      for (const auto& exchange : exchanges) exchange->abort();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExpertsOfGpus,
                         ::testing::Values(Case{1, true, false}, Case{2, true, false}, Case{2, true, true},
                                           Case{3, true, true}, Case{4, true, false}, Case{4, true, true},
                                           Case{2, false, false}, Case{2, false, true}, Case{4, false, false},
                                           Case{4, false, true}),
                         name_of);

}  // namespace
}  // namespace volley::model
