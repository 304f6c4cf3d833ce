// The linear operation on a GPU, in the shapes of Qwen3-8B: the four products of 36 layers with distinct weights, one
// after the other in a CUDA graph, at 1 to 512 rows, against the GPU's read bandwidth and cuBLASLt in the same run.
// Prints one JSON object a line. Options: --quick leaves out the single products; --portable takes the kernel for GPUs
// without wgmma; --rested lets the GPU rest before each measurement, which is short then; --rows N takes that number of
// rows alone; --tiles times each product, from 64 rows on, with every tile instead that multiplies little padding. It,
// and the copy engine's limit, are for GPUs of compute capability 9.0.
#include <cublasLt.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cuda_limits.cuh"
#include "ops/linear/cuda/linear_cuda.h"
#include "stream_limit.cuh"

namespace {

using namespace volley;  // NOLINT: a program, not a header

constexpr int kLayers = 36;

struct Shape {
  const char* name;
  int64_t n, k;
  ops::EndKind kind;
  DType y;
};
Shape shapes[] = {{"qkv", 6144, 4096, ops::EndKind::kStore, DType::kF32},
                  {"o", 4096, 4096, ops::EndKind::kAdd, DType::kF32},
                  {"gate_up", 24576, 4096, ops::EndKind::kSwiGlu, DType::kBF16},
                  {"down", 4096, 12288, ops::EndKind::kAdd, DType::kF32}};

// The shapes become those of one rank of a tensor-parallel group.
void divide_shapes(int ranks) {
  for (Shape& s : shapes) (s.kind == ops::EndKind::kAdd ? s.k : s.n) /= ranks;
}

constexpr int kRows[] = {1, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512};
constexpr int64_t kMaxRows = 512, kMaxWidth = 24576;

using bench::allocate;

struct Model {
  std::vector<ops::LinearWeight> weights;  // [layer][shape]
  Buffer x, y;
  size_t weight_bytes = 0;

  explicit Model(Device& device)
      : x(allocate(device, kMaxRows * kMaxWidth * 2)), y(allocate(device, kMaxRows * kMaxWidth * 4)) {
    bench::fill_bf16(device, x.data(), kMaxRows * kMaxWidth, 7, 1.0f);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const Shape& s : shapes) {
        ops::LinearWeight w;
        w.n = s.n;
        w.k = s.k;
        w.format.code = DType::kBF16;
        w.layout = s.kind == ops::EndKind::kSwiGlu ? ops::LinearLayout::kGateUp : ops::LinearLayout::kPlain;
        w.packed =
            allocate(device, static_cast<size_t>(ops::linear_cuda_packed_bytes(s.n, s.k, w.format.code, w.layout)));
        bench::fill_bf16(device, w.packed.data(), s.n * s.k, static_cast<uint32_t>(weights.size() + 1),
                         1.7f / std::sqrt(static_cast<float>(s.k)));
        weight_bytes += static_cast<size_t>(s.n * s.k * 2);
        weights.push_back(std::move(w));
      }
    }
    device.synchronize();
  }
};

using Time = std::function<double(const std::function<void()>&)>;  // of what a function puts on the stream, µs

void run_volley(Device& device, Model& model, int rows, int only) {
  Arena none{Buffer()};
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const Shape& s = shapes[i % std::size(shapes)];
    if (only >= 0 && static_cast<int>(i % std::size(shapes)) != only) continue;
    const int64_t width = s.kind == ops::EndKind::kSwiGlu ? s.n / 2 : s.n;
    ops::linear(device.stream(), model.weights[i], TensorView(model.x.data(), DType::kBF16, {rows, s.k}),
                {model.y.data(), s.y, {rows, width}}, {s.kind}, none);
  }
}

#define CHECK_BLAS(call) VOLLEY_CHECK_EQ(static_cast<int>(call), static_cast<int>(CUBLAS_STATUS_SUCCESS))

// Row-major y[rows, n] = x[rows, k] w[n, k]^T (+ y), bf16 with fp32 sums, by the algorithm that cuBLASLt thinks best.
// `same_y`: y has the type that Volley's has and is added to where Volley adds to it; otherwise it is bf16, and a
// residual stream would cost extra.
class BlasProduct {
 public:
  BlasProduct(cublasLtHandle_t handle, int64_t rows, const Shape& shape, bool same_y, size_t workspace_bytes)
      : handle_(handle), y_factor_(same_y && shape.kind == ops::EndKind::kAdd ? 1.0f : 0.0f) {
    const int64_t n = shape.n, k = shape.k;
    const cudaDataType_t y_type = same_y && shape.y == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    CHECK_BLAS(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK_BLAS(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
    CHECK_BLAS(cublasLtMatrixLayoutCreate(&w_, CUDA_R_16BF, k, n, k));
    CHECK_BLAS(cublasLtMatrixLayoutCreate(&x_, CUDA_R_16BF, k, rows, k));
    CHECK_BLAS(cublasLtMatrixLayoutCreate(&y_, y_type, n, rows, n));
    cublasLtMatmulPreference_t preference;
    CHECK_BLAS(cublasLtMatmulPreferenceCreate(&preference));
    CHECK_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace_bytes, sizeof workspace_bytes));
    int found = 0;
    CHECK_BLAS(cublasLtMatmulAlgoGetHeuristic(handle, product_, w_, x_, y_, y_, preference, 1, &best_, &found));
    VOLLEY_CHECK_EQ(found, 1);
    cublasLtMatmulPreferenceDestroy(preference);
  }
  void run(cudaStream_t stream, const void* w, const void* x, void* y, void* workspace, size_t workspace_bytes) const {
    const float one = 1;
    CHECK_BLAS(cublasLtMatmul(handle_, product_, &one, w, w_, x, x_, &y_factor_, y, y_, y, y_, &best_.algo, workspace,
                              workspace_bytes, stream));
  }

 private:
  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t product_;
  cublasLtMatrixLayout_t w_, x_, y_;
  cublasLtMatmulHeuristicResult_t best_;
  float y_factor_;
};

struct Blas {
  cublasLtHandle_t handle;
  Buffer workspace;

  explicit Blas(Device& device) : workspace(allocate(device, size_t{64} << 20)) { CHECK_BLAS(cublasLtCreate(&handle)); }
};

void print_chain(const char* library, const char* what, int rows, double us, size_t bytes, double bandwidth) {
  std::printf(
      "{\"library\": \"%s\", \"what\": \"%s\", \"rows\": %d, \"us\": %.1f, \"weight_TBps\": %.3f, "
      "\"of_bandwidth\": %.3f}\n",
      library, what, rows, us, bytes / us * 1e-6, bytes / us / bandwidth);
}

double time_blas(const Time& time, Device& device, const Model& model, const Blas& blas, int rows, int only,
                 bool same_y) {
  std::vector<BlasProduct> products;
  for (const Shape& shape : shapes) products.emplace_back(blas.handle, rows, shape, same_y, blas.workspace.bytes());
  return time([&] {
    for (size_t i = 0; i < model.weights.size(); ++i) {
      const int shape = static_cast<int>(i % std::size(shapes));
      if (only >= 0 && shape != only) continue;
      products[shape].run(cuda::native(device.stream()), model.weights[i].packed.data(), model.x.data(), model.y.data(),
                          blas.workspace.data(), blas.workspace.bytes());
    }
  });
}

void run_tile(Device& device, const Model& model, int rows, size_t product, const ops::LinearCudaPlan& plan) {
  const Shape& s = shapes[product % std::size(shapes)];
  const int64_t width = s.kind == ops::EndKind::kSwiGlu ? s.n / 2 : s.n;
  ops::linear_tiles_cuda(device.stream(), model.weights[product], TensorView(model.x.data(), DType::kBF16, {rows, s.k}),
                         {model.y.data(), s.y, {rows, width}}, {s.kind}, plan);
}

// A product of all layers with one tile: by itself, or among the others, which have theirs from the plan.
double time_tile(const Time& time, Device& device, const Model& model, int rows, size_t shape, ops::LinearTile tile,
                 bool chain) {
  constexpr size_t kCount = std::size(shapes);
  std::vector<ops::LinearCudaPlan> plans;
  for (size_t i = 0; i < kCount; ++i) {
    plans.push_back(ops::LinearCudaPlan::make(shapes[i].n, shapes[i].k, model.weights[i].layout, rows));
  }
  plans[shape].tile = tile;
  plans[shape].row_tiles = (rows + tile.rows - 1) / tile.rows;
  return time([&] {
    for (size_t i = 0; i < model.weights.size(); ++i) {
      if (chain || i % kCount == shape) run_tile(device, model, rows, i, plans[i % kCount]);
    }
  });
}

// Each product of all layers with cuBLASLt and with each tile that reads neither much padding nor the weights very
// often, µs of a layer; and all products with that tile in place, if it is among the best.
void print_tiles(const Time& time, Device& device, const Model& model, const Blas& blas, int rows) {
  for (size_t shape = 0; shape < std::size(shapes); ++shape) {
    const Shape& s = shapes[shape];
    const ops::LinearLayout layout = model.weights[shape].layout;
    const ops::LinearCudaPlan planned = ops::LinearCudaPlan::make(s.n, s.k, layout, rows);
    std::printf("{\"what\": \"%s\", \"rows\": %d, \"cublasLt\": %.1f}\n", s.name, rows,
                time_blas(time, device, model, blas, rows, static_cast<int>(shape), true) / kLayers);
    std::vector<std::pair<double, ops::LinearTile>> times;
    for (const ops::LinearTile& tile : ops::LinearCudaPlan::tiles(layout, planned.split)) {
      const int row_tiles = (rows + tile.rows - 1) / tile.rows;
      if (row_tiles > 4 || row_tiles * tile.rows > rows * 3 / 2) continue;
      times.emplace_back(time_tile(time, device, model, rows, shape, tile, false) / kLayers, tile);
    }
    const double best = std::min_element(times.begin(), times.end(), [](const auto& a, const auto& b) {
                          return a.first < b.first;
                        })->first;
    for (const auto& [us, tile] : times) {
      std::printf(
          "{\"what\": \"%s\", \"rows\": %d, \"halves\": %d, \"tile_rows\": %d, \"shared\": %d, \"by_rows\": %d, "
          "\"in_pairs\": %d, \"us\": %.1f%s",
          s.name, rows, tile.halves, tile.rows, tile.shared, tile.by_rows, tile.in_pairs, us,
          tile == planned.tile ? ", \"chosen\": true" : "");
      if (us < 1.1 * best) {
        std::printf(", \"chain_us\": %.1f", time_tile(time, device, model, rows, shape, tile, true) / kLayers);
      }
      std::printf("}\n");
    }
  }
}

double measure_limits(Device& device, const Buffer& large, bool hopper) {
  const double bandwidth = bench::read_bandwidth();
  std::printf("{\"limit\": \"read\", \"TBps\": %.3f}\n", bandwidth * 1e-6);
  if (!hopper) return bandwidth;
  for (int blocks : {64, 96, 128, 132}) {
    std::printf("{\"limit\": \"stream\", \"blocks\": %d, \"TBps\": %.3f}\n", blocks,
                bench::stream_bandwidth(device, large, static_cast<int64_t>(large.bytes()), blocks) * 1e-6);
  }
  for (int mib : {4, 16, 24}) {
    std::printf("{\"limit\": \"stream from L2\", \"MiB\": %d, \"TBps\": %.3f}\n", mib,
                bench::stream_bandwidth(device, large, int64_t{mib} << 20, 132) * 1e-6);
  }
  return bandwidth;
}

}  // namespace

int main(int argc, char** argv) {
  const auto asked = [&](const char* option) {
    char** const at = std::find_if(argv + 1, argv + argc, [&](char* a) { return std::strcmp(a, option) == 0; });
    return at == argv + argc ? nullptr : at;
  };
  const bool quick = asked("--quick"), rested = asked("--rested");
  char** const rows_at = asked("--rows");
  const int only_rows = rows_at && rows_at[1] ? std::atoi(rows_at[1]) : 0;
  char** const ranks_at = asked("--ranks");
  if (ranks_at && ranks_at[1]) divide_shapes(std::atoi(ranks_at[1]));
  const auto owner = bench::cuda_device();
  Device& device = *owner;
  const bool hopper = device.stream().gpu().is_hopper();
  if (!hopper && asked("--tiles")) {
    std::fprintf(stderr, "--tiles is for GPUs of compute capability 9.0 (H100, H200): leave it out.\n");
    return 1;
  }
  const Time time = [&](const std::function<void()>& enqueue) {
    return rested ? bench::graph_us(device, enqueue, 2, 3, 200) : bench::graph_us(device, enqueue);
  };
  Model model(device);
  if (asked("--portable")) {
    for (ops::LinearWeight& w : model.weights) w.portable = true;
  }
  const Blas blas(device);
  const double bandwidth = asked("--tiles") ? 0 : measure_limits(device, allocate(device, size_t{8} << 30), hopper);

  for (int rows : kRows) {
    if (only_rows != 0 && rows != only_rows) continue;
    if (asked("--tiles")) {
      if (rows >= 64) print_tiles(time, device, model, blas, rows);
      continue;
    }
    constexpr int kAll = std::size(shapes);
    for (int what = quick ? kAll : 0; what <= kAll; ++what) {
      const int only = what == kAll ? -1 : what;
      const char* name = what == kAll ? "chain" : shapes[what].name;
      const size_t bytes = what == kAll ? model.weight_bytes : shapes[what].n * shapes[what].k * 2 * kLayers;
      print_chain("volley", name, rows, time([&] { run_volley(device, model, rows, only); }), bytes, bandwidth);
      for (bool same_y : {false, true}) {
        print_chain(same_y ? "cublasLt, same y" : "cublasLt", name, rows,
                    time_blas(time, device, model, blas, rows, only, same_y), bytes, bandwidth);
      }
    }
  }
  return 0;
}
