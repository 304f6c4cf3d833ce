// Protects the same as comm_test.cc does, of groups on GPUs: bits are those of the CPU's group; calls of any sizes, in
// sequence and in recorded graphs, do not mix at any pace of the ranks; no rank waits for one that is gone.
//
// Where there are fewer GPUs than ranks, all ranks are on the first one, each with a stream of its own. Skipped without
// a GPU. Groups over NCCL need a GPU for each rank, and are skipped without them, or without NCCL. Threads stand for
// their processes, which share nothing but connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "base/environment.h"
#include "base/threads_for_test.h"
#include "comm/comm.h"
#include "comm/nccl_layout.h"
#include "comm/peer_layout.h"
#include "comm/sum_for_test.h"
#include "device/arena.h"
#include "device/fault.h"
#include "ops/linear/linear.h"

namespace volley::comm {
namespace {

using testing::HasSubstr;

// Before the first use of CUDA. Kernels that wait for one another must not share a queue of the driver, and none may be
// loaded while others wait.
const bool kPrepared = [] {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  load_gpu_code_early();
  return true;
}();

std::vector<int> gpus_for(int ranks) {
  std::vector<int> gpus;
  for (int i = 0; i < ranks && examine_cuda_device(i).ok(); ++i) gpus.push_back(i);
  if (std::ssize(gpus) < ranks) gpus.assign(static_cast<size_t>(ranks), 0);
  return gpus;
}

bool has_gpu() {
  return examine_cuda_device(0).ok();
}

constexpr int64_t kMemory = int64_t{448} << 20, kHostMemory = int64_t{64} << 20;

// A rank: its part of a group, a device, and memory of both kinds. All memory is allocated before any rank waits for
// another, because some allocations wait for all work of a GPU.
struct Rank {
  Communicator& comm;
  Device& device;
  Arena& memory;
  float* host;

  float* take(int64_t floats) const { return memory.take(DType::kF32, {floats}).as<float>(); }
  TensorView put(float* to, const std::vector<float>& values, int64_t rows, int64_t n) const {
    device.upload(to, values.data(), values.size() * 4);
    return {to, DType::kF32, {rows, n}};
  }
  std::vector<float> get(const float* from, int64_t floats) const {
    device.enqueue_download(host, from, static_cast<size_t>(floats) * 4);
    device.synchronize();
    return {host, host + floats};
  }
};

enum class Kind { kPeers, kNccl, kNcclOfTwo };  // GPUs of one process, over NCCL, and that in two processes

// Both ends of a connection.
std::array<std::unique_ptr<net::Connection>, 2> connected() {
  const auto soon = net::after(std::chrono::minutes(1));
  auto listener = net::Listener::bind({"127.0.0.1", 0});
  VOLLEY_CHECK(listener.ok());
  auto there = net::Connection::connect({"127.0.0.1", (*listener)->port()}, soon);
  auto here = (*listener)->accept(soon);
  VOLLEY_CHECK(there.ok() && here.ok());
  return {std::move(*here), std::move(*there)};
}

// The ranks of two processes with half of the GPUs each.
Group make_nccl_group_of_two(const std::vector<int>& gpus, const CudaGroupOptions& options) {
  auto ends = connected();
  const auto ranks = static_cast<int>(gpus.size()), half = ranks / 2;
  Group groups[2];
  on_threads(2, [&](int node) {
    std::vector<NodeLink> links;
    links.push_back({std::move(ends[static_cast<size_t>(node)]), (1 - node) * half, half});
    const std::vector<int> mine(gpus.begin() + node * half, gpus.begin() + (node + 1) * half);
    auto made = make_nccl_group(ranks, node * half, mine, std::move(links), options);
    VOLLEY_CHECK_MSG(made.ok(), made.error().message);
    groups[node] = std::move(*made);
  });
  for (auto& communicator : groups[1]) groups[0].push_back(std::move(communicator));
  return std::move(groups[0]);
}

Group make_group_of(Kind kind, const std::vector<int>& gpus, const CudaGroupOptions& options) {
  if (kind == Kind::kNcclOfTwo) return make_nccl_group_of_two(gpus, options);
  const auto ranks = static_cast<int>(gpus.size());
  auto group = kind == Kind::kPeers ? make_cuda_group(gpus, options) : make_nccl_group(ranks, 0, gpus, {}, options);
  VOLLEY_CHECK_MSG(group.ok(), group.error().message);
  return std::move(*group);
}

// On a thread for each rank, as they wait for one another there.
void prepare_all(Group& group, const std::vector<std::unique_ptr<Device>>& devices) {
  on_threads(group.size(), [&](size_t i) {
    devices[i]->attach_thread();
    const Status prepared = group[i]->prepare(*devices[i]);
    VOLLEY_CHECK_MSG(prepared.ok(), prepared.error().message);
  });
}

class Ranks {
 public:
  Ranks(Kind kind, int ranks, const CudaGroupOptions& options) {
    const std::vector<int> gpus = gpus_for(ranks);
    group_ = make_group_of(kind, gpus, options);
    for (const int gpu : gpus) devices_.push_back(std::move(make_cuda_device(gpu)).value());
    prepare_all(group_, devices_);
    for (const auto& device : devices_) {
      memory_.push_back(std::make_unique<Arena>(std::move(device->allocate(kMemory)).value()));
      host_.push_back(std::move(device->allocate_host(kHostMemory)).value());
    }
  }
  ~Ranks() { group_.clear(); }  // before the devices

  // Runs body on a thread for each rank, with all memory free. A rank that fails leaves no other waiting.
  void run(const std::function<void(const Rank&)>& body) {
    on_threads(group_.size(), [&](size_t i) {
      devices_[i]->attach_thread();
      memory_[i]->release(0);
      try {
        body({*group_[i], *devices_[i], *memory_[i], static_cast<float*>(host_[i].data())});
        if (::testing::Test::HasFatalFailure()) group_[i]->abort();
        devices_[i]->synchronize();
      } catch (const DeviceFault& fault) {
        ADD_FAILURE() << "rank " << i << ": " << fault.what();
        group_[i]->abort();
      }
    });
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Arena>> memory_;
  std::vector<Buffer> host_;
  Group group_;
};

std::vector<float> normals(int64_t n, uint32_t seed) {
  std::minstd_rand random(seed + 1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

// The result of the CPU's group, which every rank must match.
std::vector<float> sum_on_cpu(const std::vector<std::vector<float>>& partials, const std::vector<float>& x) {
  const auto ranks = static_cast<int>(partials.size());
  auto group = make_cpu_group(ranks);
  std::vector<std::vector<float>> results(partials.size(), x);
  on_threads(ranks, [&](int r) {
    auto device = make_cpu_device(1);
    std::vector<float> partial = partials[static_cast<size_t>(r)];
    const auto n = std::ssize(x);
    group[static_cast<size_t>(r)]->add_sum((*device)->stream(), {partial.data(), DType::kF32, {n}},
                                           {results[static_cast<size_t>(r)].data(), DType::kF32, {n}});
  });
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

// The number of ranks, the bytes from which sums are made in parts, and the transport.
struct Case {
  int ranks;
  int64_t in_parts_bytes;
  Kind kind = Kind::kPeers;
};

// The reason why these ranks cannot run here; empty if they can.
std::string missing(const Case& of) {
  if (!has_gpu()) return "needs a GPU";
  if (of.kind == Kind::kPeers) return "";
  if (!examine_cuda_device(of.ranks - 1).ok()) return "needs " + std::to_string(of.ranks) + " GPUs";
  const auto version = nccl_version();
  return version.ok() ? "" : version.error().message;
}

class CudaGroup : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string what = missing(GetParam()); !what.empty()) GTEST_SKIP() << what;
  }
  int ranks() const { return GetParam().ranks; }
  void run(const std::function<void(const Rank&)>& body) {
    if (all_ == nullptr) {
      all_ = std::make_unique<Ranks>(GetParam().kind, ranks(), CudaGroupOptions{GetParam().in_parts_bytes, true});
    }
    all_->run(body);
  }
  // The rank that `rank` reports as gone when `gone` is: for another process, its first rank.
  int gone_for(int rank, int gone) const {
    if (GetParam().kind != Kind::kNcclOfTwo) return gone;
    const int half = ranks() / 2;
    return rank / half == gone / half ? gone : gone / half * half;
  }

 private:
  std::unique_ptr<Ranks> all_;
};

TEST_P(CudaGroup, SumsHaveTheBitsOfTheCpusOnAllRanks) {
  struct Shape {
    int64_t rows, n;
  };
  const std::vector<Shape> shapes = {{1, 1},      {3, 17},   {0, 8},      {1, 4096},   {16, 4096},
                                     {5, 4100},   {7, 3001}, {40, 5120},  {300, 5120}, {129, 7169},
                                     {640, 4096}, {1, 3},    {1100, 4096}};
  for (size_t s = 0; s < shapes.size(); ++s) {
    const auto [rows, n] = shapes[s];
    std::vector<std::vector<float>> partials;
    for (int r = 0; r < ranks(); ++r) partials.push_back(normals(rows * n, static_cast<uint32_t>(100 * s + r)));
    const std::vector<float> x = normals(rows * n, static_cast<uint32_t>(100 * s + 99));
    const std::vector<float> want = sum_on_cpu(partials, x);
    // The bound, in fp64: in any order, each addition rounds by at most half a unit in the last place.
    for (size_t i = 0; i < want.size(); ++i) {
      double exact = x[i], size = std::abs(double{x[i]});
      for (const auto& partial : partials) {
        exact += partial[i];
        size += std::abs(double{partial[i]});
      }
      ASSERT_NEAR(want[i], exact, size * (ranks() + 1) * 0x1p-24) << i;
    }
    run([&, rows = rows, n = n](const Rank& rank) {
      float *const partial = rank.take(rows * n), *const sum = rank.take(rows * n);
      for (int again = 0; again < 4; ++again) {  // through every mailbox
        const TensorView p = rank.put(partial, partials[static_cast<size_t>(rank.comm.rank())], rows, n);
        rank.comm.add_sum(rank.device.stream(), p, rank.put(sum, x, rows, n));
        EXPECT_TRUE(same_bits(rank.get(sum, rows * n), want))
            << rows << " x " << n << ", rank " << rank.comm.rank() << ", time " << again;
      }
    });
  }
}

// One kernel for sum and norm has the bits of two: sum, norm in every type, and copy; for rows of one kernel and of
// more, and between other sums.
TEST_P(CudaGroup, ASumAndItsNormAreThoseOfTwoKernels) {
  struct Shape {
    int64_t rows, n;
  };
  struct Type {
    DType dtype;
    bool in_groups, copies;
  };
  const std::vector<Shape> shapes = {{1, 64},    {1, 4096},  {3, 2880},   {16, 4096},  {15, 5120}, {7, 8192},
                                     {64, 2048}, {33, 7168}, {128, 4096}, {129, 4096}, {2, 9216},  {0, 4096}};
  const std::vector<Type> types = {{DType::kF32, false, true},
                                   {DType::kBF16, false, true},
                                   {DType::kBF16, false, false},
                                   {DType::kF8E4M3, false, true},
                                   {DType::kF8E4M3, true, false}};
  const bool share = !examine_cuda_device(ranks() - 1).ok();
  for (size_t s = 0; s < shapes.size(); ++s) {
    const auto [rows, n] = shapes[s];
    // Norm kernels that start early would take the room of sums that other ranks wait for.
    if (share && rows * ranks() > 128) continue;
    run([&, rows = rows, n = n](const Rank& rank) {
      const auto seed = static_cast<uint32_t>(100 * s);
      Stream& stream = rank.device.stream();
      float *const partial = rank.take(rows * n), *const weights = rank.take(n);
      const TensorView p =
          rank.put(partial, normals(rows * n, seed + static_cast<uint32_t>(rank.comm.rank())), rows, n);
      rank.put(weights, normals(n, seed + 98), 1, n);
      const std::vector<float> x = normals(rows * n, seed + 99);
      const auto floats = [&](const TensorView& view) {
        const auto bytes = static_cast<int64_t>(dtype_size(view.dtype)) * view.count();
        return rank.get(static_cast<const float*>(view.data), (bytes + 3) / 4);
      };
      for (const Type& type : types) {
        ArenaScope scope(rank.memory);
        std::vector<float> results[2];
        for (const bool together : {false, true}) {
          const auto sum = rank.put(rank.take(rows * n), x, rows, n);
          const TensorView features = rank.memory.take(DType::kBF16, {rows, 3 * n});
          rank.device.upload(features.data, std::vector<uint16_t>(rows * 3 * n).data(), rows * 3 * n * 2);
          const NormAfter norm = {{weights, DType::kF32, {n}},
                                  1e-6f,
                                  ops::take_rows(rank.memory, type.dtype, rows, n, type.in_groups),
                                  type.copies ? ops::FeatureBlock{features, 1} : ops::FeatureBlock{}};
          if (together) {
            rank.comm.add_sum_and_norm(stream, p, sum, norm);
          } else {
            rank.comm.add_sum(stream, p, sum);
            ops::rms_norm(stream, sum, norm.weight, norm.eps, {}, norm.y, norm.copy);
          }
          std::vector<float>& all = results[together ? 1 : 0];
          for (const TensorView& view : {sum, norm.y.values, features}) {
            const std::vector<float> values = floats(view);
            all.insert(all.end(), values.begin(), values.end());
          }
          // Groups have more scales than there are rows; the padding scales belong to no row.
          if (type.dtype == DType::kF8E4M3 && rows > 0) {
            const std::vector<float> scales = floats(norm.y.scales);
            const int64_t stride = type.in_groups ? norm.y.scales.dim(1) : rows;
            for (int64_t i = 0; i < std::ssize(scales); ++i) {
              if (i % stride < rows) all.push_back(scales[static_cast<size_t>(i)]);
            }
          }
        }
        EXPECT_TRUE(same_bits(results[0], results[1]))
            << rows << " x " << n << ", " << dtype_name(type.dtype) << ", rank " << rank.comm.rank();
      }
    });
  }
}

// A rank's product, and the tensor that it is added to.
struct Products {
  static constexpr int kInputs = 5, kTurns = 15;  // other inputs each time a mailbox is used again

  int64_t rows, n;
  ops::LinearWeight w;
  std::vector<TensorView> inputs;
  TensorView partial, x, weights, y, side_by_side;
  std::vector<float> start;
  std::unique_ptr<StepGraph> graph;
  int sent = 0;

  Products(const Rank& rank, int64_t rows, int64_t n, int64_t k) : rows(rows), n(n) {
    const auto me = static_cast<uint32_t>(rank.comm.rank());
    const std::vector<float> values = normals(n * k, me);
    const ops::WeightRows part = {values.data(), DType::kF32, n};
    w = std::move(ops::pack_linear(rank.device, {&part, 1}, k, DType::kBF16)).value();
    for (uint32_t i = 0; i < kInputs; ++i) {
      const std::vector<float> of = normals(rows * k, 100 * i + 10 + me);
      std::vector<uint16_t> bits;
      for (const float value : of) bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      if (i + 1 == kInputs && rows > 1) bits.back() = 0xffff;  // the last row ends as NaNs
      inputs.push_back(rank.memory.take(DType::kBF16, {rows, k}));
      rank.device.upload(inputs.back().data, bits.data(), bits.size() * 2);
    }
    partial = rank.memory.take(DType::kF32, {rows, n});
    x = rank.memory.take(DType::kF32, {rows, n});
    weights = rank.memory.take(DType::kF32, {n});
    y = rank.memory.take(DType::kF32, {rows, n});
    side_by_side = rank.memory.take(DType::kF32, {rows, rank.comm.ranks() * n});
    rank.put(weights.as<float>(), normals(n, 98), 1, n);
    start = normals(rows * n, 99);
  }
  // Sums of products with their norms, and other calls in between. sends(turn): whether the product does.
  void enqueue(const Rank& rank, const std::function<bool(int)>& sends) {
    Stream& stream = rank.device.stream();
    Arena none{Buffer()};
    for (int turn = 0; turn < kTurns; ++turn) {
      ops::End end;
      const TensorView& input = inputs[static_cast<size_t>(turn % kInputs)];
      if (sends(turn) && ops::linear_sends(stream, w, input.dtype, rows)) {
        end.sent = rank.comm.sent_sums(stream, x).value_or(ops::SentSums());
      }
      const bool is_sent = end.sent.turns != nullptr;
      sent += is_sent ? 1 : 0;
      ops::linear(stream, w, input, partial, end, none);
      rank.comm.add_sum_and_norm(stream, partial, x, {weights, 1e-6f, y}, is_sent);
      const int64_t few = 100;
      if (turn % 3 == 1) rank.comm.add_sum(stream, {y.data, DType::kF32, {1, few}}, {x.data, DType::kF32, {1, few}});
      if (turn % 4 == 2) rank.comm.gather_columns(stream, x, rank.comm.rank() * n, n, side_by_side);
    }
  }
  void begin(const Rank& rank) const { rank.put(x.as<float>(), start, rows, n); }
  std::vector<float> results(const Rank& rank) const {
    std::vector<float> all;
    for (const TensorView& view : {x, y, side_by_side}) {
      const std::vector<float> values = rank.get(view.as<float>(), view.count());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

// Sums have the same bits whether the products or the kernels of the sums send them, on all ranks or on some, one by
// one or in a recorded graph.
TEST_P(CudaGroup, ProductsThatSendMakeTheSameSums) {
  const bool share = !examine_cuda_device(ranks() - 1).ok();
  if (share && ranks() > 4) GTEST_SKIP() << "needs 8 GPUs: products beside sums have no room on one";
  struct Shape {
    int64_t n, k;
  };
  // One slice of k and two. On a shared GPU, all ranks' products and the norm kernels that start early must fit at
  // once.
  const std::vector<Shape> shapes =
      share ? std::vector<Shape>{{256, 1024}, {256, 512}} : std::vector<Shape>{{4096, 2048}, {2048, 512}};
  for (const auto& [n, k] : shapes) {
    for (const int64_t rows : {1, 8, 16, 33, 64, 96, 128}) {
      if (share && rows * ranks() > 128) continue;
      std::vector<std::unique_ptr<Products>> all(static_cast<size_t>(ranks()));
      run([&, n = n, k = k](const Rank& rank) {  // before any rank waits for another: this allocates memory
        auto& products = all[static_cast<size_t>(rank.comm.rank())];
        products = std::make_unique<Products>(rank, rows, n, k);
        products->graph = rank.device.record([&] { products->enqueue(rank, [](int) { return true; }); });
        ASSERT_NE(products->graph, nullptr);
        // Room for the blocks of all ranks' sums: half of a GPU's, divided by the ranks that share it.
        if (GetParam().kind == Kind::kPeers && ranks() > 1 && (!share || rows * ranks() <= 64) &&
            ops::linear_sends(rank.device.stream(), products->w, DType::kBF16, rows)) {
          EXPECT_EQ(products->sent, Products::kTurns);
        }
      });
      run([&, n = n](const Rank& rank) {
        const int me = rank.comm.rank();
        Products& products = *all[static_cast<size_t>(me)];
        const auto with = [&](const std::function<void()>& enqueue) {
          products.begin(rank);
          enqueue();
          return products.results(rank);
        };
        const auto enqueued = [&](const std::function<bool(int)>& sends) {
          return with([&] { products.enqueue(rank, sends); });
        };
        const std::vector<float> want = enqueued([](int) { return false; });
        for (int again = 0; again < 3; ++again) {
          EXPECT_TRUE(same_bits(enqueued([](int) { return true; }), want)) << rows << " x " << n << ", rank " << me;
          EXPECT_TRUE(same_bits(enqueued([&](int turn) { return (turn * 5 + me * 3 + again) % 7 < 4; }), want))
              << rows << " x " << n << ", rank " << me << ", of some";
          EXPECT_TRUE(same_bits(with([&] { products.graph->launch(); }), want))
              << rows << " x " << n << ", rank " << me << ", recorded";
        }
      });
    }
  }
}

// Addends that begin anywhere, as a part of a larger tensor does.
TEST_P(CudaGroup, SumsNeedNoAlignment) {
  run([&](const Rank& rank) {
    const int64_t n = 1000;
    float *const partial = rank.take(n + 1), *const x = rank.take(n + 1);
    rank.put(partial, std::vector<float>(n + 1, static_cast<float>(rank.comm.rank() + 1)), 1, n + 1);
    rank.put(x, std::vector<float>(n + 1, 0.5f), 1, n + 1);
    // On one rank alone: a thread's pack must not touch other elements.
    const int64_t off = rank.comm.rank() == 0 ? 1 : 0;
    rank.comm.add_sum(rank.device.stream(), {partial + off, DType::kF32, {1, n}}, {x + off, DType::kF32, {1, n}});
    const float want = 0.5f + static_cast<float>(ranks() * (ranks() + 1) / 2);
    std::vector<float> all(n + 1, want);
    all[off == 1 ? 0 : n] = 0.5f;
    EXPECT_EQ(rank.get(x, n + 1), all) << "rank " << rank.comm.rank();
  });
}

// NaNs arrive as NaNs whatever their bits, including those that mark an empty mailbox.
TEST_P(CudaGroup, NothingThatIsAddedHoldsTheOthersUp) {
  const std::vector<float> odd = {std::bit_cast<float>(0xffffffffu), std::bit_cast<float>(0x7fffffffu),
                                  std::numeric_limits<float>::infinity(), -0.0f};
  run([&](const Rank& rank) {
    float *const partial = rank.take(4), *const x = rank.take(4), *const weights = rank.take(4);
    const NormAfter norm = {{weights, DType::kF32, {4}}, 1e-6f, TensorView(rank.take(4), DType::kF32, {1, 4})};
    rank.put(weights, {1, 1, 1, 1}, 1, 4);
    for (const bool with_norm : {false, true}) {
      const TensorView p = rank.put(partial, odd, 1, 4), to = rank.put(x, {1, 1, 1, -0.0f}, 1, 4);
      if (with_norm) {
        rank.comm.add_sum_and_norm(rank.device.stream(), p, to, norm);
      } else {
        rank.comm.add_sum(rank.device.stream(), p, to);
      }
      const std::vector<float> got = rank.get(x, 4);
      EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[1]) && std::isinf(got[2]));
      EXPECT_TRUE(got[3] == 0 && std::signbit(got[3])) << "every addend is -0";
    }
  });
}

TEST_P(CudaGroup, GathersColumnsOfWhichARankMayHaveNone) {
  const std::vector<std::vector<int64_t>> all = {{3, 0, 2, 5, 1, 0, 0, 4},
                                                 {0, 8, 4, 0, 4, 4, 4, 8},
                                                 {16, 0, 0, 0, 0, 0, 0, 0},
                                                 {75968, 75968, 640, 640, 8, 8, 8, 8}};
  for (std::vector<int64_t> widths : all) {
    widths.resize(static_cast<size_t>(ranks()));
    const int64_t width = std::accumulate(widths.begin(), widths.end(), int64_t{0});
    if (width == 0) continue;
    for (const int64_t rows : {1, 7, 60}) {
      run([&](const Rank& rank) {
        const auto me = static_cast<size_t>(rank.comm.rank());
        const int64_t n = widths[me];
        const int64_t first = std::accumulate(widths.begin(), widths.begin() + rank.comm.rank(), int64_t{0});
        float *const mine = rank.take(rows * n), *const out = rank.take(rows * width);
        for (int again = 0; again < (width > 10'000 ? 3 : 8); ++again) {
          const auto value = [&](size_t r, int64_t row, int64_t column) {
            return static_cast<float>(r) * 1e6f + static_cast<float>((row * 131 + column * 7 + again * 1009) % 99991);
          };
          std::vector<float> own, want;
          for (int64_t row = 0; row < rows; ++row) {
            for (size_t r = 0; r < widths.size(); ++r) {
              for (int64_t c = 0; c < widths[r]; ++c) {
                want.push_back(value(r, row, c));
                if (r == me) own.push_back(want.back());
              }
            }
          }
          const TensorView from = rank.put(mine, own, rows, n);
          rank.comm.gather_columns(rank.device.stream(), from, first, *std::ranges::max_element(widths),
                                   {out, DType::kF32, {rows, width}});
          ASSERT_TRUE(same_bits(rank.get(out, rows * width), want)) << rows << " x " << width << ", rank " << me;
        }
      });
    }
  }
}

// Rows of logits, some of them summaries: summaries are gathered too, with outputs numbered within the whole row. The
// last two shapes need several kernels for whole rows; the last one needs several for summaries as well.
TEST_P(CudaGroup, GathersSummariesOfLogits) {
  run([&](const Rank& rank) {
    if (!rank.comm.gathers_summaries()) return;
    const int64_t wide = 151'552 / std::max(ranks(), 2);
    for (const auto& [rows, part, last] :
         {std::array<int64_t, 3>{1, 64, 64}, {3, 128, 68}, {40, 640, 640}, {60, wide, wide - 64}, {450, wide, wide}}) {
      const int64_t width = part * (ranks() - 1) + last, n = rank.comm.rank() + 1 < ranks() ? part : last;
      const int64_t first = rank.comm.rank() * part;
      for (const int wholes : {0, 1, 2}) {  // no row, some, all
        ArenaScope scope(rank.memory);
        std::vector<uint8_t> whole(static_cast<size_t>(rows));
        for (size_t row = 0; row < whole.size(); ++row)
          whole[row] = wholes == 2 || (wholes == 1 && row % 3 == 1) ? 1 : 0;
        // Each float encodes its place in the whole row; the second of a summary's four floats is an output's number.
        const auto floats = [&](int64_t row, int64_t begin, int64_t columns, int64_t of) {
          const bool summary = whole[static_cast<size_t>(row)] == 0;
          std::vector<float> values(static_cast<size_t>(of), -1.0f);
          const int64_t skipped = summary ? begin / 16 : begin, count = summary ? divide_up(columns, 64) * 4 : columns;
          for (int64_t i = 0; i < count; ++i) {
            const int64_t at = skipped + i;
            float value = static_cast<float>(row * 1000 + at % 997);
            if (summary && at % 4 == 1)
              value = std::bit_cast<float>(static_cast<uint32_t>(at / 4 * 64 + row % 64 - begin));
            values[static_cast<size_t>(i)] = value;
          }
          return values;
        };
        const TensorView from = rank.memory.take(DType::kF32, {rows, n}),
                         out = rank.memory.take(DType::kF32, {rows, width});
        const std::vector<float> nothing(static_cast<size_t>(width), -1.0f);
        for (int64_t row = 0; row < rows; ++row) {
          rank.put(from.as<float>() + row * n, floats(row, first, n, n), 1, n);
          rank.put(out.as<float>() + row * width, nothing, 1, width);
        }
        const TensorView flags = rank.memory.take(DType::kU8, {rows});
        rank.device.upload(flags.data, whole.data(), whole.size());
        for (int again = 0; again < 4; ++again) {
          rank.comm.gather_logits(rank.device.stream(), from, first, part, out,
                                  {static_cast<const uint8_t*>(flags.data), false});
        }
        for (int64_t row = 0; row < rows; ++row) {
          ASSERT_TRUE(same_bits(rank.get(out.as<float>() + row * width, width), floats(row, 0, width, width)))
              << "row " << row << " of " << rows << " x " << width << ", rank " << rank.comm.rank() << ", " << wholes;
        }
      }
    }
  });
}

// A rank that is ahead must neither write what another still reads, nor read before it arrives. Ranks wait at random,
// and the host reads results only after some calls, so that several are under way.
TEST_P(CudaGroup, TenThousandCallsOfRandomSizesStayApart) {
  constexpr int64_t kMost = 40'000;
  constexpr int kCalls = 10'000;
  run([&](const Rank& rank) {
    const int me = rank.comm.rank();
    float *const partial = rank.take(kMost), *const x = rank.take(kMost);
    float* const out = rank.take(8 * kMost);
    rank.put(partial, normals(kMost, static_cast<uint32_t>(me)), 1, kMost);
    std::vector<std::vector<float>> partials;
    for (int r = 0; r < ranks(); ++r) partials.push_back(normals(kMost, static_cast<uint32_t>(r)));
    std::vector<float> want(kMost, 0.0f);
    rank.put(x, want, 1, kMost);
    std::minstd_rand shared(17), own(static_cast<uint32_t>(1000 + me));
    for (int call = 0; call < kCalls; ++call) {
      const bool large = shared() % 8 == 0;
      const auto n = static_cast<int64_t>(1 + shared() % (large ? kMost : 600));
      const auto begin = static_cast<int64_t>(shared() % static_cast<uint32_t>(kMost - n + 1));
      if (shared() % 4 == 0) {  // the expected sums, side by side
        const TensorView from(x + begin, DType::kF32, {1, n});
        rank.comm.gather_columns(rank.device.stream(), from, me * n, n, {out, DType::kF32, {1, ranks() * n}});
        if (call % 50 == 0) {
          const std::vector<float> got = rank.get(out, ranks() * n);
          for (int64_t i = 0; i < std::ssize(got); ++i) {
            ASSERT_EQ(got[static_cast<size_t>(i)], want[static_cast<size_t>(begin + i % n)]) << "call " << call;
          }
        }
      } else {
        rank.comm.add_sum(rank.device.stream(), {partial + begin, DType::kF32, {1, n}},
                          {x + begin, DType::kF32, {1, n}});
        for (int64_t i = begin; i < begin + n; ++i) {
          const auto addend = [&](int r) { return partials[static_cast<size_t>(r)][static_cast<size_t>(i)]; };
          want[static_cast<size_t>(i)] += sum_in_pairs(addend, ranks());
        }
      }
      if (own() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
      if (call % 500 == 499) {
        ASSERT_EQ(rank.get(x, kMost), want) << "rank " << me << ", call " << call;
      }
    }
  });
}

// A graph has no call's number in it, so it can be replayed, also between calls that are not recorded.
TEST_P(CudaGroup, RecordedCallsCanBeReplayed) {
  constexpr int64_t kRows = 16, kWidth = 1024;
  std::vector<std::unique_ptr<StepGraph>> graphs(static_cast<size_t>(ranks()));
  std::vector<float*> memory(static_cast<size_t>(ranks()));
  const auto sum = [](const Rank& rank, float* at, int64_t rows, int64_t n) {
    rank.comm.add_sum(rank.device.stream(), {at, DType::kF32, {rows, n}},
                      {at + kRows * kWidth, DType::kF32, {rows, n}});
  };
  // Recorded before any rank waits for another: recording allocates memory.
  run([&](const Rank& rank) {
    const int me = rank.comm.rank();
    float* const at = memory[static_cast<size_t>(me)] = rank.take((2 + ranks()) * kRows * kWidth);
    rank.put(at, std::vector<float>(kRows * kWidth, static_cast<float>(me + 1)), kRows, kWidth);
    rank.put(at + kRows * kWidth, std::vector<float>(kRows * kWidth, 0.0f), kRows, kWidth);
    graphs[static_cast<size_t>(me)] = rank.device.record([&] {
      for (int i = 0; i < 5; ++i) sum(rank, at, kRows, kWidth);
      rank.comm.gather_columns(rank.device.stream(), {at + kRows * kWidth, DType::kF32, {kRows, kWidth}}, me * kWidth,
                               kWidth, {at + 2 * kRows * kWidth, DType::kF32, {kRows, ranks() * kWidth}});
      sum(rank, at, 1, 100);
    });
    ASSERT_NE(graphs[static_cast<size_t>(me)], nullptr);
  });
  run([&](const Rank& rank) {
    const auto me = static_cast<size_t>(rank.comm.rank());
    float* const at = memory[me];
    for (int replay = 0; replay < 100; ++replay) {
      graphs[me]->launch();
      if (replay % 10 == 9) rank.device.synchronize();  // no more than the driver's queue holds
      if (replay % 7 == 0) sum(rank, at, 1, 9);
    }
    const std::vector<float> got = rank.get(at + kRows * kWidth, kRows * kWidth);
    const auto once = static_cast<float>(ranks() * (ranks() + 1) / 2);
    EXPECT_EQ(got[0], once * (600 + 15));
    EXPECT_EQ(got[50], once * 600);
    EXPECT_EQ(got[kRows * kWidth - 1], once * 500);
    const std::vector<float> side_by_side = rank.get(at + 2 * kRows * kWidth, ranks() * kRows * kWidth);
    EXPECT_EQ(side_by_side.back(), once * 500);
    EXPECT_EQ(side_by_side[0], once * (99 * 6 + 5 + 15)) << "before the last sum of the last replay";
  });
}

TEST_P(CudaGroup, ARankThatIsGoneEndsTheOthersWait) {
  if (ranks() == 1) GTEST_SKIP() << "there are no others";
  run([&](const Rank& rank) {
    float *const partial = rank.take(5000), *const x = rank.take(5000);
    const TensorView p(partial, DType::kF32, {1, 5000}), to(x, DType::kF32, {1, 5000});
    rank.comm.add_sum(rank.device.stream(), p, to);
    rank.device.synchronize();
    EXPECT_NO_THROW(rank.comm.check());
    if (rank.comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others' kernels wait by then
      rank.comm.abort();
    } else {
      try {
        for (int i = 0; i < 20; ++i) rank.comm.add_sum(rank.device.stream(), p, to);
      } catch (const DeviceFault&) {  // it was gone by then
      }
      rank.device.synchronize();  // ends
    }
    for (int i = 0; i < 2; ++i) {
      try {
        rank.comm.add_sum(rank.device.stream(), p, to);
        ADD_FAILURE() << "rank " << rank.comm.rank() << " went on";
      } catch (const DeviceFault& fault) {
        const int gone = gone_for(rank.comm.rank(), 1);
        EXPECT_THAT(fault.what(),
                    HasSubstr("Rank " + std::to_string(gone) + " of " + std::to_string(ranks()) + " is gone"));
      }
    }
    EXPECT_THROW(rank.comm.check(), DeviceFault);
  });
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& of = info.param;
  std::string name = std::to_string(of.ranks);
  if (of.in_parts_bytes >= 0) name += of.in_parts_bytes == 0 ? "InParts" : "Whole";
  return name + (of.kind == Kind::kNcclOfTwo ? "OfTwoProcesses" : "");
}

// Small sums one way, and all of them the other.
INSTANTIATE_TEST_SUITE_P(All, CudaGroup,
                         ::testing::Values(Case{1, -1}, Case{2, -1}, Case{4, -1}, Case{4, 0}, Case{8, -1}, Case{8, 0}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(OverNccl, CudaGroup,
                         ::testing::Values(Case{2, -1, Kind::kNccl}, Case{2, -1, Kind::kNcclOfTwo},
                                           Case{4, -1, Kind::kNccl}, Case{4, int64_t{1} << 60, Kind::kNccl},
                                           Case{4, 0, Kind::kNccl}, Case{4, 0, Kind::kNcclOfTwo},
                                           Case{8, -1, Kind::kNccl}, Case{8, 0, Kind::kNcclOfTwo}),
                         name_of);

TEST(CudaGroupSetup, IsRefusedWhereThereAreTooFewGpus) {
  const auto group = make_cuda_group({1000, 1001});
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().code, ErrorCode::kUnavailable);
}

// On a shared GPU, groups that wait for each other cannot form a circle.
TEST(CudaGroupSetup, TwoGroupsHaveAtMostOneGpuInCommon) {
  if (!examine_cuda_device(1).ok()) GTEST_SKIP() << "needs 2 GPUs";
  auto group = make_cuda_group({0, 1});
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(make_cuda_group({1, 0}).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(make_cuda_group({1, 1}).ok());
  group->clear();
  EXPECT_TRUE(make_cuda_group({1, 0}).ok());
}

TEST(CudaGroupSetup, TakesWhatADryOneDoes) {
  if (!has_gpu()) GTEST_SKIP() << "needs a GPU";
  const auto device = std::move(make_cuda_device(0)).value();
  auto group = std::move(make_cuda_group({0, 0})).value();
  const auto before = examine_cuda_device(0)->free_bytes;
  ASSERT_TRUE(group[0]->prepare(*device).ok());
  EXPECT_GE(before - examine_cuda_device(0)->free_bytes, kPeerBytes);
}

TEST(NcclGroupSetup, SaysWhatToInstall) {
  const auto version = nccl_version();
  if (version.ok()) {
    EXPECT_THAT(*version, testing::StartsWith("2."));
  } else {
    EXPECT_EQ(version.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(version.error().message, HasSubstr("nvidia-nccl-cu13"));
  }
}

// NCCL takes no more than the reserve, including its connections for all sizes.
TEST(NcclGroupSetup, TakesNoMoreThanIsPlanned) {
  for (const int ranks : {2, 4, 8}) {
    const Case one = {ranks, -1, Kind::kNccl};
    if (const std::string what = missing(one); !what.empty()) {
      if (ranks > 2) break;
      GTEST_SKIP() << what;
    }
    const std::vector<int> gpus = gpus_for(ranks);
    std::vector<std::unique_ptr<Device>> devices;
    for (const int gpu : gpus) devices.push_back(std::move(make_cuda_device(gpu)).value());
    Group group = make_group_of(one.kind, gpus, {});
    std::vector<int64_t> before;
    for (const int gpu : gpus) before.push_back(examine_cuda_device(gpu)->free_bytes);
    prepare_all(group, devices);
    for (const int gpu : gpus) {
      const int64_t taken = before[static_cast<size_t>(gpu)] - examine_cuda_device(gpu)->free_bytes;
      EXPECT_GE(taken, kNcclBufferBytes);
      EXPECT_LE(taken, kNcclBufferBytes + nccl_reserved_bytes(ranks)) << ranks << " ranks, GPU " << gpu;
      std::printf("NCCL takes %lld MiB of GPU %d of %d\n", static_cast<long long>((taken - kNcclBufferBytes) >> 20),
                  gpu, ranks);
    }
    group.clear();
  }
}

// NCCL alone would wait for ever.
TEST(NcclGroupSetup, WhoWaitsForAProcessLearnsThatItIsGone) {
  if (const std::string what = missing({1, -1, Kind::kNccl}); !what.empty()) GTEST_SKIP() << what;
  const auto device = std::move(make_cuda_device(0)).value();
  auto ends = connected();
  std::vector<NodeLink> to_other, to_this;
  to_other.push_back({std::move(ends[0]), 1, 1});
  to_this.push_back({std::move(ends[1]), 0, 1});
  std::thread other([&] {  // this process meets the first one, and ends before it prepares
    const auto group = make_nccl_group(2, 1, {0}, std::move(to_this));
    ASSERT_TRUE(group.ok()) << group.error().message;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  });
  {
    auto group = make_nccl_group(2, 0, {0}, std::move(to_other));
    ASSERT_TRUE(group.ok()) << group.error().message;
    try {
      EXPECT_FALSE((*group)[0]->prepare(*device).ok());
      ADD_FAILURE() << "it came back";
    } catch (const DeviceFault& fault) {
      EXPECT_THAT(fault.what(), HasSubstr("Rank 1 of 2 is gone"));
    }
  }
  other.join();
}

}  // namespace
}  // namespace volley::comm
