// The linear operation on a GPU, in the shapes of Qwen3-8B: the four products of 36 layers with distinct weights, one
// after the other in a CUDA graph, at 1 to 512 rows, against the GPU's read bandwidth and cuBLASLt in the same run.
// Prints one JSON object a line; --quick leaves out the single products.
#include <cublasLt.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cuda_limits.cuh"
#include "ops/linear/linear_cuda.h"

namespace {

using namespace volley;  // NOLINT: a program, not a header

constexpr int kLayers = 36;

struct Shape {
  const char* name;
  int64_t n, k;
  ops::Epilogue epilogue;
  DType y;
};
constexpr Shape kShapes[] = {{"qkv", 6144, 4096, ops::Epilogue::kStore, DType::kF32},
                             {"o", 4096, 4096, ops::Epilogue::kAdd, DType::kF32},
                             {"gate_up", 24576, 4096, ops::Epilogue::kSwiGlu, DType::kBF16},
                             {"down", 4096, 12288, ops::Epilogue::kAdd, DType::kF32}};
constexpr int kRows[] = {1, 8, 16, 32, 64, 128, 256, 512};
constexpr int64_t kMaxRows = 512, kMaxWidth = 24576;

Buffer allocate(Device& device, size_t bytes) {
  auto buffer = device.allocate(bytes);
  VOLLEY_CHECK_MSG(buffer.ok(), "out of GPU memory");
  return std::move(*buffer);
}

struct Model {
  std::vector<ops::LinearWeight> weights;  // [layer][shape]
  Buffer x, y;
  size_t weight_bytes = 0;

  explicit Model(Device& device)
      : x(allocate(device, kMaxRows * kMaxWidth * 2)), y(allocate(device, kMaxRows * kMaxWidth * 4)) {
    bench::fill_bf16(device, x.data(), kMaxRows * kMaxWidth, 7, 1.0f);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const Shape& s : kShapes) {
        ops::LinearWeight w;
        w.n = s.n;
        w.k = s.k;
        w.storage = DType::kBF16;
        w.layout = s.epilogue == ops::Epilogue::kSwiGlu ? ops::LinearLayout::kGateUp : ops::LinearLayout::kPlain;
        w.packed = allocate(device, static_cast<size_t>(ops::linear_cuda_packed_bytes(s.n, s.k, w.storage, w.layout)));
        bench::fill_bf16(device, w.packed.data(), s.n * s.k, static_cast<uint32_t>(weights.size() + 1),
                         1.7f / std::sqrt(static_cast<float>(s.k)));
        weight_bytes += static_cast<size_t>(s.n * s.k * 2);
        weights.push_back(std::move(w));
      }
    }
    device.synchronize();
  }
};

void run_volley(Device& device, Model& model, int rows, int only) {
  Arena none{Buffer()};
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const Shape& s = kShapes[i % std::size(kShapes)];
    if (only >= 0 && static_cast<int>(i % std::size(kShapes)) != only) continue;
    const int64_t width = s.epilogue == ops::Epilogue::kSwiGlu ? s.n / 2 : s.n;
    ops::linear(device.stream(), model.weights[i], {model.x.data(), DType::kBF16, {rows, s.k}},
                {model.y.data(), s.y, {rows, width}}, s.epilogue, none);
  }
}

#define CHECK_BLAS(call) VOLLEY_CHECK_EQ(static_cast<int>(call), static_cast<int>(CUBLAS_STATUS_SUCCESS))

// Row-major y[rows, n] = x[rows, k] w[n, k]^T, bf16 with fp32 sums, by the algorithm that cuBLASLt thinks best.
class BlasProduct {
 public:
  BlasProduct(cublasLtHandle_t handle, int64_t rows, int64_t n, int64_t k, size_t workspace_bytes) : handle_(handle) {
    const cublasOperation_t transpose = CUBLAS_OP_T;
    CHECK_BLAS(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK_BLAS(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
    CHECK_BLAS(cublasLtMatrixLayoutCreate(&w_, CUDA_R_16BF, k, n, k));
    CHECK_BLAS(cublasLtMatrixLayoutCreate(&x_, CUDA_R_16BF, k, rows, k));
    CHECK_BLAS(cublasLtMatrixLayoutCreate(&y_, CUDA_R_16BF, n, rows, n));
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
    const float one = 1, zero = 0;
    CHECK_BLAS(cublasLtMatmul(handle_, product_, &one, w, w_, x, x_, &zero, y, y_, y, y_, &best_.algo, workspace,
                              workspace_bytes, stream));
  }

 private:
  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t product_;
  cublasLtMatrixLayout_t w_, x_, y_;
  cublasLtMatmulHeuristicResult_t best_;
};

void print_chain(const char* library, const char* what, int rows, double us, size_t bytes, double bandwidth) {
  std::printf(
      "{\"library\": \"%s\", \"what\": \"%s\", \"rows\": %d, \"us\": %.1f, \"weight_TBps\": %.3f, "
      "\"of_bandwidth\": %.3f}\n",
      library, what, rows, us, bytes / us * 1e-6, bytes / us / bandwidth);
}

void measure_limits(Device& device, Model& model, const Buffer& large, double& bandwidth) {
  bandwidth = bench::read_bandwidth(device, large, static_cast<uint32_t*>(model.y.data()));
  std::printf("{\"limit\": \"read\", \"TBps\": %.3f}\n", bandwidth * 1e-6);
  for (int blocks : {64, 96, 128, 132}) {
    std::printf("{\"limit\": \"stream\", \"blocks\": %d, \"TBps\": %.3f}\n", blocks,
                bench::stream_bandwidth(device, large, static_cast<int64_t>(large.bytes()), blocks) * 1e-6);
  }
  for (int mib : {4, 16, 24}) {
    std::printf("{\"limit\": \"stream from L2\", \"MiB\": %d, \"TBps\": %.3f}\n", mib,
                bench::stream_bandwidth(device, large, int64_t{mib} << 20, 132) * 1e-6);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  auto made = make_cuda_device(0);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.error().message.c_str());
    return 1;
  }
  Device& device = **made;
  Model model(device);
  const Buffer large = allocate(device, size_t{8} << 30);
  double bandwidth = 0;
  measure_limits(device, model, large, bandwidth);

  cublasLtHandle_t handle;
  CHECK_BLAS(cublasLtCreate(&handle));
  const Buffer workspace = allocate(device, size_t{64} << 20);
  const cudaStream_t stream = cuda::native(device.stream());
  for (int rows : kRows) {
    for (int only = quick ? static_cast<int>(std::size(kShapes)) : 0; only <= static_cast<int>(std::size(kShapes));
         ++only) {
      const bool all = only == static_cast<int>(std::size(kShapes));
      const char* what = all ? "chain" : kShapes[only].name;
      const size_t bytes = all ? model.weight_bytes : kShapes[only].n * kShapes[only].k * 2 * kLayers;
      print_chain("volley", what, rows,
                  bench::graph_us(device, [&] { run_volley(device, model, rows, all ? -1 : only); }), bytes, bandwidth);
      std::vector<BlasProduct> products;
      for (const Shape& s : kShapes) products.emplace_back(handle, rows, s.n, s.k, workspace.bytes());
      print_chain("cublasLt", what, rows,
                  bench::graph_us(device,
                                  [&] {
                                    for (size_t i = 0; i < model.weights.size(); ++i) {
                                      const int shape = static_cast<int>(i % std::size(kShapes));
                                      if (!all && shape != only) continue;
                                      products[shape].run(stream, model.weights[i].packed.data(), model.x.data(),
                                                          model.y.data(), workspace.data(), workspace.bytes());
                                    }
                                  }),
                  bytes, bandwidth);
    }
  }
  return 0;
}
