// Attention and the writing of K and V on a GPU, in the shapes of Qwen3-8B: 36 layers with K and V of their own, one
// after the other in a CUDA graph, against the GPU's read bandwidth in the same run. Pages of 64 positions in a
// shuffled order. Prints one JSON object a line. --latent: latents of 512 with keys of 64 instead, by their number of
// heads. --portable: the kernel for GPUs without wgmma; --fp8: a cache of e4m3 codes; --layers-apart: all pages of a
// layer together, instead of all layers of a page; --short: contexts up to 1040 alone; --long: the others.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "cuda_limits.cuh"
#include "device/dry_run.h"
#include "ops/attention/attention.h"
#include "ops/latent/latent.h"

namespace {

using namespace volley;  // NOLINT: a program, not a header

constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kPageSize = 64;
constexpr int kWidth = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int kLatent = 512, kRope = 64, kKey = kLatent + kRope;

using bench::allocate;

template <typename T>
Buffer upload(Device& device, const std::vector<T>& values) {
  Buffer buffer = allocate(device, values.size() * sizeof(T));
  device.upload(buffer.data(), values.data(), values.size() * sizeof(T));
  return buffer;
}

// Bytes that are ordinary codes, because NaN is slower.
Buffer allocate_codes(Device& device, size_t bytes) {
  std::vector<uint8_t> codes(size_t{1} << 20);
  std::mt19937 random(3);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(0x30 | (random() & 0x87));  // 0.5 to 1, and their negatives
  Buffer buffer = allocate(device, bytes);
  for (size_t at = 0; at < bytes; at += codes.size()) {
    device.upload(static_cast<uint8_t*>(buffer.data()) + at, codes.data(), std::min(codes.size(), bytes - at));
  }
  return buffer;
}

struct Case {
  const char* what;
  int requests, rows, context;  // rows of each request, the last of which sees `context` positions
  int layers;                   // with K and V of their own
  int latent_heads = 0;         // 0: no latents

  int heads() const { return latent_heads > 0 ? latent_heads : kHeads; }
  int64_t q_width() const { return int64_t{heads()} * (latent_heads > 0 ? kKey : kHeadDim); }
  int64_t out_width() const { return int64_t{heads()} * (latent_heads > 0 ? kLatent : kHeadDim); }
};

// A batch: each request's rows at the end of its sequence, causal.
class Batch {
 public:
  Batch(Device& device, const Case& c, ops::AttentionBackend backend, bool fp8, bool layers_apart)
      : device_(device), case_(c), kv_dtype_(fp8 ? DType::kF8E4M3 : DType::kBF16), layers_apart_(layers_apart) {
    pages_ = (c.context + kPageSize - 1) / kPageSize;
    const int n = c.requests * c.rows;
    std::vector<int32_t> table(static_cast<size_t>(pages_) * c.requests), slots, positions, begin(n, 0), end;
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    std::shuffle(table.begin(), table.end(), std::mt19937(1));
    std::vector<ops::RowSegment> segments;
    for (int r = 0; r < c.requests; ++r) {
      segments.push_back({r * c.rows, c.rows, r});
      for (int i = 0; i < c.rows; ++i) {
        slots.push_back(r);
        positions.push_back(c.context - c.rows + i);
        end.push_back(positions.back() + 1);
      }
    }
    const bool latents = c.latent_heads > 0;
    heads_ = latents ? ops::HeadShape{c.latent_heads, 1, kKey} : ops::HeadShape{kHeads, kKvHeads, kHeadDim};
    heads_.dtype = kv_dtype_, heads_.backend = backend, heads_.v_in_k = latents ? kLatent : 0;
    layer_bytes_ = ops::kv_layer_bytes(kPageSize, heads_.kv_heads, heads_.head_dim, kv_dtype_, latents);
    const size_t bytes = table.size() * static_cast<size_t>(layer_bytes_) * c.layers;
    if (fp8) {
      memory_ = allocate_codes(device, bytes);
    } else {
      memory_ = allocate(device, bytes);
      bench::fill_bf16(device, memory_.data(), static_cast<int64_t>(bytes / 2), 1, 1.0f);
    }
    qkv_ = upload(device, std::vector<float>(static_cast<size_t>(n) * kWidth, 0.5f));
    q_ = allocate(device, static_cast<size_t>(n * c.q_width()) * 2);
    bench::fill_bf16(device, q_.data(), n * c.q_width(), 2, latents ? 0.3f : 2.0f);
    out_ = allocate(device, q_.bytes());
    table_ = upload(device, table);
    slots_ = upload(device, slots);
    positions_ = upload(device, positions);
    begin_ = upload(device, begin);
    end_ = upload(device, end);
    segments_ = upload(device, segments);
    norm_ = upload(device, std::vector<float>(kLatent, 1.0f));
    angles_ = upload(device, std::vector<float>(static_cast<size_t>(c.context) * kHeadDim / 2, 0.7f));
    rows_.rows = n;
    rows_.slots = slots_.view(DType::kI32, {n});
    rows_.rope_positions = rows_.cache_positions = positions_.view(DType::kI32, {n});
    rows_.segments = static_cast<ops::RowSegment*>(segments_.data());
    rows_.n_segments = c.requests;
    rows_.max_segment_rows = c.rows;
    rows_.max_positions = 40960;  // what a server would say
    rows_.views[ops::kWholeView] = {begin_.view(DType::kI32, {n}), end_.view(DType::kI32, {n}),
                                    table_.view(DType::kI32, {c.requests, pages_})};
    work_memory_ = allocate(device, static_cast<size_t>(measure_scratch(device.stream(), [&](Arena& arena) {
                              ops::plan_attention(device.stream(), rows_, rows_.views[ops::kWholeView], heads_, arena);
                            })));
  }

  void run(bool write, bool attend, int layers) {
    const int n = rows_.rows;
    const ops::RowView& view = rows_.views[ops::kWholeView];
    Arena arena{Buffer(work_memory_.data(), work_memory_.bytes(), [](void*, size_t) {})};
    const ops::AttentionWork work = ops::plan_attention(device_.stream(), rows_, view, heads_, arena);
    Arena none{Buffer()};
    for (int layer = 0; layer < layers; ++layer) {
      ops::KvLayer kv;
      kv.base = static_cast<std::byte*>(memory_.data()) +
                layer % case_.layers * layer_bytes_ * (layers_apart_ ? pages_ * case_.requests : 1);
      kv.page_stride = layer_bytes_ * (layers_apart_ ? 1 : case_.layers);
      kv.page_size = kPageSize;
      kv.kv_heads = heads_.kv_heads;
      kv.head_dim = heads_.head_dim;
      kv.dtype = kv_dtype_;
      kv.v_in_k = heads_.v_in_k;
      const TensorView q = q_.view(DType::kBF16, {n, heads_.heads, heads_.head_dim});
      if (write && kv.v_in_k > 0) {
        ops::LatentWrite args;
        args.row = qkv_.view(DType::kF32, {n, kKey});
        args.norm = norm_.view(DType::kF32, {kLatent});
        args.eps = 1e-6f;
        args.rope = {angles_.view(DType::kF32, {case_.context, kRope / 2}),
                     angles_.view(DType::kF32, {case_.context, kRope / 2})};
        args.q = out_.view(DType::kBF16, {n, heads_.heads, kRope});
        args.q_out = q;
        args.kv = kv;
        ops::write_latent(device_.stream(), rows_, view, args);
      } else if (write) {
        ops::QkvWrite args;
        args.qkv = qkv_.view(DType::kF32, {n, kWidth});
        args.heads = kHeads;
        args.q_norm = args.k_norm = norm_.view(DType::kF32, {kHeadDim});
        args.eps = 1e-6f;
        args.rope = {angles_.view(DType::kF32, {case_.context, kHeadDim / 2}),
                     angles_.view(DType::kF32, {case_.context, kHeadDim / 2})};
        args.rows_ready = layer > 0;
        args.kv = kv;
        args.q_out = q;
        ops::write_qkv(device_.stream(), rows_, view, args);
      }
      if (!attend) continue;
      ops::Attention args;
      args.q = q;
      args.heads = heads_.heads;
      args.scale = 1.0f / std::sqrt(static_cast<float>(heads_.head_dim));
      args.work = work;
      args.after_write = write;
      args.kv = kv;
      args.out = out_.view(DType::kBF16, {n, case_.out_width()});
      ops::attention(device_.stream(), rows_, view, args, none);
    }
  }

  double kv_bytes() const {  // of a layer
    return static_cast<double>(layer_bytes_) / kPageSize * case_.requests * case_.context;
  }
  double flop() const {  // of a layer
    double seen = 0;
    for (int i = 0; i < case_.rows; ++i) seen += case_.context - i;
    return seen * case_.requests * static_cast<double>(case_.q_width() + case_.out_width()) * 2;
  }

 private:
  Device& device_;
  Case case_;
  DType kv_dtype_;
  bool layers_apart_;
  int64_t layer_bytes_ = 0, pages_ = 0;  // pages_: of a request
  Buffer memory_, qkv_, q_, out_, table_, slots_, positions_, begin_, end_, segments_, norm_, angles_, work_memory_;
  ops::Rows rows_;
  ops::HeadShape heads_;
};

constexpr Case kCases[] = {
    {"verify", 1, 16, 144, 36},     {"verify", 1, 16, 272, 36},     {"verify", 1, 16, 400, 36},
    {"verify", 1, 16, 528, 36},     {"verify", 1, 16, 1040, 36},    {"verify", 1, 16, 2064, 36},
    {"verify", 1, 16, 4096, 36},    {"verify", 1, 16, 8192, 36},    {"verify", 1, 16, 24576, 36},
    {"verify", 1, 16, 32768, 36},   {"verify", 1, 1, 1040, 36},     {"verify", 1, 1, 32768, 36},
    {"verify", 8, 16, 144, 36},     {"verify", 8, 16, 528, 36},     {"verify", 8, 16, 2064, 36},
    {"verify", 8, 16, 4096, 36},    {"verify", 8, 1, 1040, 36},     {"verify", 32, 8, 144, 36},
    {"verify", 32, 8, 512, 36},     {"verify", 32, 8, 2064, 36},    {"verify", 32, 8, 16384, 4},
    {"verify", 32, 1, 1040, 36},    {"verify", 128, 4, 144, 36},    {"verify", 128, 4, 512, 36},
    {"verify", 128, 4, 2064, 12},   {"verify", 128, 1, 512, 36},    {"prefill", 1, 2048, 2048, 36},
    {"prefill", 1, 2048, 4096, 36}, {"prefill", 1, 2048, 8192, 36}, {"prefill", 1, 256, 8192, 36},
    {"prefill", 1, 144, 30720, 36}, {"prefill", 1, 256, 30720, 36}, {"prefill", 1, 272, 30720, 36},
    {"prefill", 1, 336, 30720, 36}, {"prefill", 1, 528, 30720, 36}, {"verify", 17, 16, 4096, 36},
    {"verify", 24, 16, 4096, 36},   {"verify", 40, 16, 4096, 36},
};

constexpr Case kLatentCases[] = {
    {"verify", 1, 16, 8192, 36, 128}, {"verify", 8, 16, 8192, 8, 128},   {"verify", 1, 1, 8192, 36, 128},
    {"verify", 64, 1, 8192, 4, 16},   {"verify", 64, 4, 8192, 4, 16},    {"verify", 128, 1, 16384, 2, 64},
    {"verify", 1, 1, 1040, 36, 20},   {"verify", 1, 6, 1040, 36, 20},    {"verify", 32, 6, 1040, 36, 20},
    {"verify", 1, 16, 32768, 36, 16}, {"prefill", 1, 2048, 8192, 8, 20},
};

}  // namespace

int main(int argc, char** argv) {
  const auto has = [&](const char* option) {
    return std::any_of(argv + 1, argv + argc, [&](const char* a) { return std::strcmp(a, option) == 0; });
  };
  const auto owner = bench::cuda_device();
  Device& device = *owner;
  const double bandwidth = bench::read_bandwidth();
  std::printf("{\"limit\": \"read\", \"TBps\": %.3f}\n", bandwidth * 1e-6);
  const std::span<const Case> cases = has("--latent") ? std::span<const Case>(kLatentCases) : kCases;
  for (const Case& c : cases) {
    if (has(c.context > 1040 ? "--short" : "--long")) continue;
    Batch batch(device, c, has("--portable") ? ops::AttentionBackend::kPortable : ops::AttentionBackend::kAuto,
                has("--fp8"), has("--layers-apart"));
    const int layers = 36;
    const double plan = bench::graph_us(device, [&] { batch.run(false, false, 0); });
    const double attend = bench::graph_us(device, [&] { batch.run(false, true, layers); }) - plan;
    const double both = bench::graph_us(device, [&] { batch.run(true, true, layers); }) - plan;
    std::printf(
        "{\"what\": \"%s\", \"heads\": %d, \"requests\": %d, \"rows\": %d, \"context\": %d, \"plan_us\": %.1f, "
        "\"attention_us\": %.2f, \"write_and_attention_us\": %.2f, \"floor_us\": %.2f, \"attention_over_floor\": %.2f, "
        "\"TBps\": %.2f, "
        "\"TFLOPps\": %.0f}\n",
        c.what, c.heads(), c.requests, c.rows, c.context, plan, attend / layers, both / layers,
        batch.kv_bytes() / bandwidth, attend / layers / (batch.kv_bytes() / bandwidth),
        batch.kv_bytes() * layers / attend * 1e-6, batch.flop() * layers / attend * 1e-6);
    std::fflush(stdout);
  }
  return 0;
}
