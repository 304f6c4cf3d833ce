// Sums and gathers among GPUs: 72 sums one after the other in a CUDA graph, as many as Qwen3-8B has in a pass, but with
// nothing between them. Microseconds of one, on the slowest rank: each way of summing, and the one that is chosen; and
// with the product in front, which sends its sums itself or does not.
// First of GPUs that write into one another's memory, then, where there is NCCL, of the same GPUs over it.
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "comm/comm.h"
#include "device/cuda/launch.h"
#include "ops/linear/linear.h"

namespace {

using namespace volley;  // NOLINT: a program, not a header

constexpr int kCalls = 72, kReplays = 8, kRepeats = 7;
constexpr int64_t kVocab = 151936;
constexpr int64_t kMostFloats = 256 * kVocab;  // of a sum, and of what is gathered

// Ranks on as many GPUs, with memory.
class Ranks {
 public:
  Ranks(bool nccl, int ranks, int64_t in_parts_bytes) {
    std::vector<int> gpus;
    for (int rank = 0; rank < ranks; ++rank) gpus.push_back(rank);
    auto group = nccl ? comm::make_nccl_group(ranks, 0, gpus, {}, {in_parts_bytes})
                      : comm::make_cuda_group(gpus, {in_parts_bytes});
    VOLLEY_CHECK_MSG(group.ok(), group.error().message);
    group_ = std::move(*group);
    for (int rank = 0; rank < ranks; ++rank) devices_.push_back(std::move(make_cuda_device(rank)).value());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < group_.size(); ++i) {
      threads.emplace_back([&, i] {
        devices_[i]->attach_thread();
        VOLLEY_CHECK(group_[i]->prepare(*devices_[i]).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& device : devices_) {
      for (int i = 0; i < 2; ++i) memory_.push_back(std::move(device->allocate(kMostFloats * 4)).value());
    }
  }
  ~Ranks() { group_.clear(); }

  // Microseconds of one of the calls: the best of some replays of a graph of `calls`, on the slowest rank.
  template <typename Call>
  double us(int calls, const Call& call) {
    std::vector<double> best(group_.size(), 1e9);
    std::barrier recorded(std::ssize(group_));  // what takes memory may wait for all work of a GPU
    std::vector<std::thread> threads;
    for (size_t i = 0; i < group_.size(); ++i) {
      threads.emplace_back([&, i] {
        Device& device = *devices_[i];
        device.attach_thread();
        const auto graph = device.record([&] {
          for (int c = 0; c < calls; ++c) {
            call(*group_[i], device.stream(), static_cast<float*>(memory_[2 * i].data()),
                 static_cast<float*>(memory_[2 * i + 1].data()));
          }
        });
        recorded.arrive_and_wait();
        const auto begin = device.make_fence(), end = device.make_fence();
        for (int repeat = 0; repeat < kRepeats; ++repeat) {
          graph->launch();  // the ranks begin to be timed together
          begin->set();
          for (int replay = 0; replay < kReplays; ++replay) graph->launch();
          end->set();
          end->wait();
          best[i] = std::min(best[i], end->seconds_since(*begin) * 1e6 / kReplays / calls);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return *std::max_element(best.begin(), best.end());
  }

  double sum_us(int64_t rows, int64_t n) {
    const int calls = rows * n > (1 << 20) ? 8 : kCalls;
    return us(calls, [&](comm::Communicator& c, Stream& stream, float* partial, float* x) {
      c.add_sum(stream, {partial, DType::kF32, {rows, n}}, {x, DType::kF32, {rows, n}});
    });
  }
  // With the norm behind it: in bf16, of as much.
  double norm_us(int64_t rows, int64_t n) {
    return us(kCalls, [&](comm::Communicator& c, Stream& stream, float* partial, float* x) {
      float* const y = x + rows * n;
      const comm::NormAfter norm = {{y + rows * n, DType::kF32, {n}}, 1e-6f, TensorView(y, DType::kBF16, {rows, n})};
      c.add_sum_and_norm(stream, {partial, DType::kF32, {rows, n}}, {x, DType::kF32, {rows, n}}, norm);
    });
  }
  // A product with k columns of each rank in front of that; sends: it sends its sums, if it can.
  double product_us(int64_t rows, int64_t n, int64_t k, bool sends) {
    std::vector<ops::LinearWeight> weights;
    const std::vector<uint16_t> zeros(static_cast<size_t>(n * k));
    for (const auto& device : devices_) {
      device->attach_thread();
      const ops::WeightRows part = {zeros.data(), DType::kBF16, n};
      weights.push_back(std::move(ops::pack_linear(*device, {&part, 1}, k, DType::kBF16)).value());
    }
    return us(kCalls, [&](comm::Communicator& c, Stream& stream, float* partial, float* x) {
      float* const y = x + rows * n;
      const comm::NormAfter norm = {{y + rows * n, DType::kF32, {n}}, 1e-6f, TensorView(y, DType::kBF16, {rows, n})};
      const TensorView input(partial + rows * n, DType::kBF16, {rows, k}), sums(partial, DType::kF32, {rows, n}),
          to(x, DType::kF32, {rows, n});
      const ops::LinearWeight& w = weights[static_cast<size_t>(c.rank())];
      ops::End end;
      if (sends && ops::linear_sends(stream, w, DType::kBF16, rows)) {
        end.sent = c.sent_sums(stream, to).value_or(ops::SentSums());
      }
      Arena none{Buffer()};
      ops::linear(stream, w, input, sums, end, none);
      c.add_sum_and_norm(stream, sums, to, norm, end.sent.turns != nullptr);
    });
  }
  double gather_us(int64_t rows) {
    const int64_t n = kVocab / std::ssize(group_);
    return us(4, [&](comm::Communicator& c, Stream& stream, float* mine, float* out) {
      c.gather_columns(stream, {mine, DType::kF32, {rows, n}}, c.rank() * n, n,
                       {out, DType::kF32, {rows, n * c.ranks()}});
    });
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Buffer> memory_;
  comm::Group group_;
};

void measure(bool nccl, int ranks) {
  constexpr int kSumRows[] = {1, 4, 16, 32, 64, 128, 256, 512, 2048};
  const char* over = nccl ? "nccl" : "peers";
  std::vector<double> normed, us[3];  // chosen, whole, in parts: one group after the other, as GPUs bear one
  for (const auto& [way, in_parts_bytes] : {std::pair{0, int64_t{-1}}, {1, int64_t{1} << 60}, {2, int64_t{0}}}) {
    Ranks group(nccl, ranks, in_parts_bytes);
    for (const int rows : kSumRows) us[way].push_back(way < 2 || ranks > 2 ? group.sum_us(rows, 4096) : 0);
    if (way > 0) continue;
    for (const int rows : kSumRows) normed.push_back(rows <= 256 ? group.norm_us(rows, 4096) : 0);
    for (const int rows : {1, 16, 32, 64, 96, 128}) {
      if (nccl || ranks == 1) break;
      for (const int k : {4096 / ranks, 12288 / ranks}) {
        std::printf(
            "{\"over\": \"%s\", \"ranks\": %d, \"rows\": %d, \"columns\": 4096, \"k\": %d, \"product_us\": %.2f, "
            "\"sending_us\": %.2f}\n",
            over, ranks, rows, k, group.product_us(rows, 4096, k, false), group.product_us(rows, 4096, k, true));
        std::fflush(stdout);
      }
    }
    for (const int rows : {1, 16, 64, 256}) {
      std::printf("{\"over\": \"%s\", \"ranks\": %d, \"rows\": %d, \"columns\": %d, \"gather_us\": %.2f}\n", over,
                  ranks, rows, static_cast<int>(kVocab), group.gather_us(rows));
      std::fflush(stdout);
    }
  }
  for (size_t i = 0; i < std::size(kSumRows); ++i) {
    std::printf(
        "{\"over\": \"%s\", \"ranks\": %d, \"rows\": %d, \"columns\": 4096, \"sum_us\": %.2f, \"whole_us\": %.2f, "
        "\"in_parts_us\": %.2f, \"with_norm_us\": %.2f}\n",
        over, ranks, kSumRows[i], us[0][i], us[1][i], us[2][i], normed[i]);
  }
  std::fflush(stdout);
}

}  // namespace

int main() {
  load_gpu_code_early();
  const auto nccl = comm::nccl_version();
  if (!nccl.ok()) std::fprintf(stderr, "%s\n", nccl.error().message.c_str());
  for (const int ranks : {1, 2, 4, 8}) {
    if (!examine_cuda_device(ranks - 1).ok()) break;
    measure(false, ranks);
    if (nccl.ok() && ranks > 1) measure(true, ranks);
  }
  return 0;
}
