// Times of paged attention and of the fused K/V write, for the shapes that decide: one decoding row, a verify block of
// 16 rows, a prefill chunk of 512. K and V lie in pages of 64 positions in a shuffled order.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "ops/attention/attention.h"

namespace {

using namespace volley;
using namespace volley::ops;

struct Shape {
  DType dtype;
  int heads, kv_heads, head_dim;
};
constexpr Shape kPocket{DType::kBF16, 6, 2, 64};
constexpr Shape kPocketF32{DType::kF32, 6, 2, 64};
constexpr Shape kQwen3_8B{DType::kBF16, 32, 8, 128};

constexpr int kPageSize = 64;

// One sequence of `context` positions, the last `rows` of which are the batch.
class Setup {
 public:
  Setup(const Shape& shape, int rows, int context, int threads)
      : shape_(shape), rows_(rows), context_(context), device_(*make_cpu_device(threads)) {
    pages_ = (context + kPageSize - 1) / kPageSize;
    for (int i = 0; i < pages_; ++i) page_table_.push_back(i);
    std::shuffle(page_table_.begin(), page_table_.end(), std::mt19937(1));
    const int64_t page = kv_layer_bytes(kPageSize, shape.kv_heads, shape.head_dim, shape.dtype);
    memory_ = allocate(page * pages_);
    kv_ = {static_cast<std::byte*>(memory_.data()), page, kPageSize, shape.kv_heads, shape.head_dim, shape.dtype};
    q_ = allocate(int64_t{rows} * shape.heads * shape.head_dim * 4);
    out_ = allocate(int64_t{rows} * shape.heads * shape.head_dim * 4);
    scratch_ = std::make_unique<Arena>(allocate(attention_scratch_bytes(rows, shape.heads, shape.head_dim, context)));
    cos_.assign(static_cast<size_t>(context) * shape.head_dim / 2, 0.8f);
    sin_.assign(cos_.size(), 0.6f);
    norm_.assign(shape.head_dim, 1.0f);
    for (int first = 0; first < context; first += 512) write(first, std::min(512, context - first));
    for (int i = 0; i < rows; ++i) {
      begin_.push_back(0);
      end_.push_back(context - rows + i + 1);
    }
    write(context - rows, rows);
  }

  void write(int first, int rows) {
    const int width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
    if (qkv_.size() < static_cast<size_t>(rows) * width) {
      std::mt19937 random(2);
      std::normal_distribution<float> normal;
      qkv_.resize(static_cast<size_t>(rows) * width);
      for (float& x : qkv_) x = normal(random);
      q_scratch_ = allocate(static_cast<int64_t>(qkv_.size()) * 4);
    }
    std::vector<int32_t> positions(rows);
    for (int i = 0; i < rows; ++i) positions[i] = first + i;
    RowSegment segment{0, rows, 0};
    QkvWrite args;
    args.qkv = TensorView(qkv_.data(), DType::kF32, {rows, width});
    args.heads = shape_.heads;
    args.q_norm = args.k_norm = TensorView(norm_.data(), DType::kF32, {shape_.head_dim});
    args.eps = 1e-6f;
    args.rope = {TensorView(cos_.data(), DType::kF32, {context_, shape_.head_dim / 2}),
                 TensorView(sin_.data(), DType::kF32, {context_, shape_.head_dim / 2})};
    args.kv = kv_;
    const Buffer& q = rows == rows_ ? q_ : q_scratch_;
    args.q_out = q.view(shape_.dtype, {rows, shape_.heads, shape_.head_dim});
    Rows batch = batch_of(segment);
    batch.rope_positions = batch.cache_positions = TensorView(positions.data(), DType::kI32, {rows});
    write_qkv(device_->stream(), batch, batch.views[kWholeView], args);
  }

  void attend() {
    RowSegment segment{0, rows_, 0};
    Attention args;
    args.q = q_.view(shape_.dtype, {rows_, shape_.heads, shape_.head_dim});
    args.heads = shape_.heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    args.kv = kv_;
    args.out = out_.view(shape_.dtype, {rows_, int64_t{shape_.heads} * shape_.head_dim});
    Rows batch = batch_of(segment);
    RowView& view = batch.views[kWholeView];
    view.begin = TensorView(begin_.data(), DType::kI32, {rows_});
    view.end = TensorView(end_.data(), DType::kI32, {rows_});
    attention(device_->stream(), batch, view, args, *scratch_);
  }

  double kv_bytes() const { return static_cast<double>(memory_.bytes()); }
  double macs() const {
    double positions = 0;
    for (int end : end_) positions += end;
    return positions * shape_.heads * shape_.head_dim * 2;
  }

 private:
  Rows batch_of(RowSegment& segment) {
    Rows batch;
    batch.rows = segment.rows;
    batch.segments = &segment;
    batch.n_segments = 1;
    batch.views[kWholeView].page_table = TensorView(page_table_.data(), DType::kI32, {1, pages_});
    return batch;
  }
  Buffer allocate(int64_t bytes) { return std::move(device_->allocate(static_cast<size_t>(bytes))).value(); }

  Shape shape_;
  int rows_, context_, pages_ = 0;
  std::unique_ptr<Device> device_;
  std::vector<int32_t> page_table_, begin_, end_;
  Buffer memory_, q_, q_scratch_, out_;
  KvLayer kv_;
  std::unique_ptr<Arena> scratch_;
  std::vector<float> cos_, sin_, norm_, qkv_;
};

// Arguments: rows, context, threads.
void attend(benchmark::State& state, const Shape& shape) {
  Setup setup(shape, static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
              static_cast<int>(state.range(2)));
  for (auto _ : state) setup.attend();
  const auto n = static_cast<double>(state.iterations());
  state.counters["KV"] = benchmark::Counter(setup.kv_bytes() * n, benchmark::Counter::kIsRate);
  state.counters["MAC"] = benchmark::Counter(setup.macs() * n, benchmark::Counter::kIsRate);
}

void write(benchmark::State& state, const Shape& shape) {
  const int rows = static_cast<int>(state.range(0));
  Setup setup(shape, rows, static_cast<int>(state.range(1)), static_cast<int>(state.range(2)));
  for (auto _ : state) setup.write(static_cast<int>(state.range(1)) - rows, rows);
}

void small(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "context", "threads"})->UseRealTime()->MinTime(0.2);
  for (int threads : {1, 2}) {
    b->Args({1, 100, threads})->Args({16, 150, threads})->Args({16, 2000, threads})->Args({512, 512, threads});
  }
}
void large(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "context", "threads"})->UseRealTime()->MinTime(0.3);
  for (int rows : {1, 4, 16, 512}) b->Args({rows, 32768, 2});
}
void writes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "context", "threads"})->UseRealTime()->MinTime(0.2);
  for (int threads : {1, 2}) b->Args({1, 150, threads})->Args({16, 150, threads})->Args({512, 512, threads});
}

BENCHMARK_CAPTURE(attend, pocket_bf16, kPocket)->Apply(small)->Apply(large);
BENCHMARK_CAPTURE(attend, pocket_f32, kPocketF32)->Apply(small);
BENCHMARK_CAPTURE(attend, qwen3_8b_bf16, kQwen3_8B)->Apply(small)->Apply(large);
BENCHMARK_CAPTURE(write, pocket_bf16, kPocket)->Apply(writes);
BENCHMARK_CAPTURE(write, qwen3_8b_bf16, kQwen3_8B)->Apply(writes);

}  // namespace

BENCHMARK_MAIN();
