// Protects, on a GPU: every output against an fp64 oracle, for each tile that has a kernel, all dtypes, layouts and
// ends; that a row's bits depend on nothing but the row and the weights, not on the tile and not on the GPU's
// generation; that padding is never seen. The plans are checked without a GPU.
#include "ops/linear/cuda/linear_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

#include "device/cuda/launch.h"
#include "ops/device_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32;

std::vector<float> random_values(int64_t count, uint32_t seed, bool bf16) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = bf16 ? to_float(to_bfloat16(normal(random))) : normal(random);
  return values;
}

std::vector<char> encode(const std::vector<float>& values, DType dtype) {
  std::vector<char> bytes(values.size() * dtype_size(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == kF32) {
      std::memcpy(&bytes[i * 4], &values[i], 4);
    } else {
      const BFloat16 b = to_bfloat16(values[i]);
      std::memcpy(&bytes[i * 2], &b, 2);
    }
  }
  return bytes;
}

struct Weights {
  int64_t n, k;
  DType dtype;
  std::vector<float> values;  // [n, k], exact in dtype
  LinearWeight packed;

  Weights(Device& device, int64_t n, int64_t k, DType dtype, LinearLayout layout, bool portable = false)
      : n(n), k(k), dtype(dtype), values(random_values(n * k, 11, dtype == kBF16)) {
    const std::vector<char> bytes = encode(values, dtype);
    std::vector<WeightRows> parts;
    const int64_t first = layout == LinearLayout::kGateUp ? n / 2 : n / 3;
    for (int64_t begin : {int64_t{0}, first}) {
      parts.push_back({bytes.data() + begin * k * dtype_size(dtype), dtype, begin == 0 ? first : n - first});
    }
    packed = std::move(pack_linear(device, parts, k, dtype, layout)).value();
    packed.portable = portable;
  }
};

struct Case {
  int64_t rows, n, k;
  DType x, weights, y;
  EndKind kind;
  bool portable = false;
};

LinearLayout layout_of(const Case& c) {
  return has_gates(c.kind) ? LinearLayout::kGateUp : LinearLayout::kPlain;
}
int64_t outputs_of(const Case& c) {
  return has_gates(c.kind) ? c.n / 2 : c.n;
}

// The op on rows [begin, begin + rows) of x; y starts as `before` where it is added to.
std::vector<char> run(Device& device, const Weights& w, const Case& c, const std::vector<float>& x, int64_t begin,
                      int64_t rows, const std::vector<float>& before, TensorView bias = {}) {
  const std::vector<float> part(x.begin() + begin * c.k, x.begin() + (begin + rows) * c.k);
  const DeviceTensor x_device(device, encode(part, c.x));
  const int64_t count = rows * outputs_of(c);
  const DeviceTensor y_device =
      c.kind == EndKind::kAdd
          ? DeviceTensor(device, encode({before.begin() + begin * c.n, before.begin() + (begin + rows) * c.n}, c.y))
          : DeviceTensor(device, count * dtype_size(c.y));
  Arena none{Buffer()};
  linear(device.stream(), w.packed, x_device.view(c.x, {rows, c.k}), y_device.view(c.y, {rows, outputs_of(c)}),
         {c.kind, bias}, none);
  return y_device.read<char>();
}

struct Sum {
  double value = 0, magnitude = 0;
};

Sum oracle(const Weights& w, int64_t output, const std::vector<float>& x, int64_t row) {
  Sum sum;
  for (int64_t i = 0; i < w.k; ++i) {
    const double product = static_cast<double>(x[row * w.k + i]) * w.values[output * w.k + i];
    sum.value += product;
    sum.magnitude += std::fabs(product);
  }
  return sum;
}

// The matrix unit truncates when it aligns addends, so an addition may lose one unit rather than half of one.
double sum_bound(const Sum& s, int64_t k) {
  return 2 * (k + 1) * kRound * s.magnitude;
}

double activation(EndKind kind, double x) {
  const double t = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return kind == EndKind::kGeGlu ? 0.5 * x * (1 + std::tanh(t)) : x / (1 + std::exp(-x));
}

// Value and bound of one output.
std::pair<double, double> expected(const Weights& w, const Case& c, const std::vector<float>& x, int64_t row,
                                   int64_t output, float before) {
  const Sum sum = oracle(w, output, x, row);
  double want = sum.value, error = sum_bound(sum, c.k);
  if (c.kind == EndKind::kAdd) want += before;
  if (has_gates(c.kind)) {
    const Sum up = oracle(w, c.n / 2 + output, x, row);
    want = activation(c.kind, sum.value) * up.value;
    // GELU's cubic adds 3 roundings to its argument, of which the sigmoid makes as many times the argument.
    const double cubic = c.kind == EndKind::kGeGlu ? 3 * std::fmin(std::fabs(2 * sum.value), 20.0) : 0;
    const double gate_error = 1.13 * error + (6 + cubic) * kRound * std::fabs(activation(c.kind, sum.value));
    const double up_error = sum_bound(up, c.k);
    error = gate_error * (std::fabs(up.value) + up_error) + std::fabs(activation(c.kind, sum.value)) * up_error;
  }
  return {want, error * (1 + kRoundBF16) + std::fabs(want) * ((c.y == kBF16 ? kRoundBF16 : 0) + kRound)};
}

void check_values(Device& device, const Case& c) {
  const Weights w(device, c.n, c.k, c.weights, layout_of(c), c.portable);
  const std::vector<float> x = random_values(c.rows * c.k, 5, c.x == kBF16);
  const std::vector<float> before = random_values(c.rows * c.n, 6, false);
  const std::vector<float> y = decode(run(device, w, c, x, 0, c.rows, before), c.y);
  // Every output of small cases, and a few thousand of the others, spread over rows and columns.
  const int64_t count = static_cast<int64_t>(y.size()), step = c.k * count > (int64_t{1} << 24) ? 211 : 1;
  for (int64_t i = 0; i < count; i += step) {
    const int64_t row = i / outputs_of(c), output = i % outputs_of(c);
    const auto [want, bound] = expected(w, c, x, row, output, before[row * c.n + output]);
    ASSERT_NEAR(y[i], want, bound) << "row " << row << " output " << output << " of " << c.rows << " x " << c.n
                                   << ", k " << c.k << " x " << dtype_name(c.x) << " w " << dtype_name(c.weights);
  }
  for (float v : y) ASSERT_FALSE(std::isnan(v)) << "an output was not written";
}

void check_ends(Device& device, int64_t rows, int64_t n, int64_t k, bool portable) {
  check_values(device, {rows, n, k, kBF16, kBF16, kF32, EndKind::kStore, portable});
  check_values(device, {rows, n, k, kBF16, kBF16, kBF16, EndKind::kStore, portable});
  check_values(device, {rows, n, k, kBF16, kBF16, kF32, EndKind::kAdd, portable});
  for (const EndKind kind : {EndKind::kSwiGlu, EndKind::kGeGlu}) {
    check_values(device, {rows, n, k, kBF16, kBF16, kBF16, kind, portable});
  }
}

// Shapes with one and two slices of k, and with ends that no tile divides.
TEST(LinearCuda, TilesMatchOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (int64_t rows : {1, 8, 9, 16, 31, 64, 65, 96, 128, 130, 192, 256, 300}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{64, 64}, {200, 72}, {1000, 520}, {4096, 1032}, {1984, 2120}}) {
      check_ends(device, rows, n, k, false);
    }
  }
}

// A gate of an output or two has a kernel of its own.
TEST(LinearCuda, FewOutputsMatchOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const int64_t k : {40, 2048, 5128}) {
    for (const int64_t rows : {1, 9, 300}) {
      check_values(device, {rows, 3, k, kBF16, kBF16, kF32, EndKind::kStore});
      check_values(device, {rows, 3, k, kBF16, kBF16, kBF16, EndKind::kStore});
    }
  }
}

TEST(LinearCuda, PortableKernelMatchesOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (int64_t rows : {1, 9, 31, 64, 130}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {200, 72}, {1984, 2120}}) {
      check_ends(device, rows, n, k, true);
    }
  }
}

// The same bits from the kernels of both generations, for one and two slices of k. On a GPU without wgmma both are the
// portable one.
TEST(LinearCuda, PortableKernelGivesTheSameBits) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const Case& c : {Case{300, 6144, 1032, kBF16, kBF16, kF32, EndKind::kStore},
                        Case{300, 4096, 4096, kBF16, kBF16, kF32, EndKind::kAdd},
                        Case{300, 24576, 512, kBF16, kBF16, kBF16, EndKind::kSwiGlu}}) {
    Weights w(device, c.n, c.k, c.weights, layout_of(c));
    const std::vector<float> x = random_values(c.rows * c.k, 3, true);
    const std::vector<float> before = random_values(c.rows * c.n, 6, false);
    for (int64_t rows : {1, 8, 16, 48, 128, 300}) {
      w.packed.portable = false;
      const std::vector<char> want = run(device, w, c, x, 0, rows, before);
      w.packed.portable = true;
      ASSERT_EQ(run(device, w, c, x, 0, rows, before), want) << "n " << c.n << " k " << c.k << " rows " << rows;
    }
  }
}

// Every tile that has a kernel gives the same bits, also those that the plan does not choose for these rows.
void check_tiles(Device& device, std::initializer_list<Case> cases) {
  for (const Case& c : cases) {
    const Weights w(device, c.n, c.k, c.weights, layout_of(c));
    if (linear_cuda_kernel(device.stream().gpu(), w.packed, c.x) != LinearKernel::kTiles)
      GTEST_SKIP() << "needs sm_90a";
    const std::vector<float> x = random_values(c.rows * c.k, 3, true);
    const std::vector<float> before = random_values(c.rows * c.n, 6, false);
    const std::vector<char> want = run(device, w, c, x, 0, c.rows, before);
    const DeviceTensor x_device(device, encode(x, c.x));
    LinearCudaPlan plan = LinearCudaPlan::make(c.n, c.k, layout_of(c), c.rows);
    for (const LinearTile& tile : LinearCudaPlan::tiles(layout_of(c), plan.split)) {
      plan.tile = tile;
      plan.row_tiles = (c.rows + tile.rows - 1) / tile.rows;
      const DeviceTensor y_device =
          c.kind == EndKind::kAdd ? DeviceTensor(device, encode(before, c.y)) : DeviceTensor(device, want.size());
      linear_tiles_cuda(device.stream(), w.packed, x_device.view(c.x, {c.rows, c.k}),
                        y_device.view(c.y, {c.rows, outputs_of(c)}), {c.kind}, plan);
      ASSERT_EQ(y_device.read<char>(), want) << tile.halves << " x " << tile.rows << (tile.shared ? " shared" : "")
                                             << (tile.by_rows ? " by rows" : "") << (tile.in_pairs ? " in pairs" : "");
    }
  }
}

TEST(LinearCuda, TilesGiveTheSameBits) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  check_tiles(device, {{200, 2000, 1032, kBF16, kBF16, kF32, EndKind::kStore},
                       {300, 2000, 2064, kBF16, kBF16, kF32, EndKind::kAdd},
                       {200, 24576, 256, kBF16, kBF16, kBF16, EndKind::kSwiGlu}});
}

// As little work as reaches every tile, with one and two slices of k: what compute-sanitizer gets through.
TEST(LinearCuda, FewBlocksOfEveryTileGiveTheSameBits) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  check_tiles(device, {{130, 200, 1032, kBF16, kBF16, kF32, EndKind::kAdd},
                       {130, 200, 520, kBF16, kBF16, kF32, EndKind::kStore},
                       {130, 400, 264, kBF16, kBF16, kBF16, EndKind::kSwiGlu}});
}

TEST(LinearCuda, PlainKernelMatchesOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const auto& [x, weights] : {std::pair{kF32, kBF16}, {kF32, kF32}, {kBF16, kBF16}, {kBF16, kF32}}) {
    for (int64_t rows : {1, 3, 4, 9}) {
      for (DType y : {kBF16, kF32}) check_values(device, {rows, 37, 129, x, weights, y, EndKind::kStore});
      check_values(device, {rows, 37, 129, x, weights, kF32, EndKind::kAdd});
      check_values(device, {rows, 74, 65, x, weights, kBF16, EndKind::kSwiGlu});
      check_values(device, {rows, 74, 65, x, weights, kBF16, EndKind::kGeGlu});
    }
  }
}

// A bias is only added: y is the sum that is stored without it, plus the bias, with every kernel and with every tile
// that adds one, for one and two slices of k.
void check_bias(Device& device, const Case& c) {
  const Weights w(device, c.n, c.k, c.weights, LinearLayout::kPlain, c.portable);
  const std::vector<float> x = random_values(c.rows * c.k, 3, c.x == kBF16);
  const std::vector<float> before = random_values(c.rows * c.n, 6, false), bias = random_values(c.n, 7, false);
  const DeviceTensor bias_device(device, bias), x_device(device, encode(x, c.x));
  const TensorView bias_view = bias_device.view(kF32, {c.n});
  Case plain = c;
  plain.kind = EndKind::kStore;
  plain.y = kF32;
  std::vector<float> want = decode(run(device, w, plain, x, 0, c.rows, before), plain.y);
  for (int64_t i = 0; i < c.rows * c.n; ++i) {
    want[i] += bias[i % c.n];
    if (c.kind == EndKind::kAdd) want[i] += before[i];
  }
  const std::vector<char> bytes = encode(want, c.y);
  for (int64_t rows : {int64_t{1}, int64_t{9}, c.rows}) {
    const auto end = bytes.begin() + static_cast<int64_t>(rows * c.n * dtype_size(c.y));
    ASSERT_EQ(run(device, w, c, x, 0, rows, before, bias_view), std::vector<char>(bytes.begin(), end)) << rows;
  }
  if (linear_cuda_kernel(device.stream().gpu(), w.packed, c.x) != LinearKernel::kTiles) return;
  LinearCudaPlan plan = LinearCudaPlan::make_biased(w.packed, c.rows);
  for (const LinearTile& tile : LinearCudaPlan::bias_tiles()) {
    plan.tile = tile;
    plan.row_tiles = (c.rows + tile.rows - 1) / tile.rows;
    const DeviceTensor y =
        c.kind == EndKind::kAdd ? DeviceTensor(device, encode(before, c.y)) : DeviceTensor(device, bytes.size());
    linear_tiles_cuda(device.stream(), w.packed, x_device.view(c.x, {c.rows, c.k}), y.view(c.y, {c.rows, c.n}),
                      {c.kind, bias_view}, plan);
    ASSERT_EQ(y.read<char>(), bytes) << tile.rows << " rows a tile";
  }
}

TEST(LinearCuda, BiasIsAddedToTheSum) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (bool portable : {false, true}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {200, 520}, {2000, 1032}, {2880, 4096}}) {
      for (int64_t rows : {13, 130}) {
        SCOPED_TRACE(testing::Message() << "n " << n << " k " << k << " rows " << rows << " portable " << portable);
        check_bias(device, {rows, n, k, kBF16, kBF16, kF32, EndKind::kStore, portable});
        check_bias(device, {rows, n, k, kBF16, kBF16, kBF16, EndKind::kStore, portable});
        check_bias(device, {rows, n, k, kBF16, kBF16, kF32, EndKind::kAdd, portable});
      }
    }
  }
  for (EndKind kind : {EndKind::kStore, EndKind::kAdd}) check_bias(device, {13, 37, 129, kF32, kF32, kF32, kind});
}

void check_rows_independent(Device& device, const Case& c, std::initializer_list<int64_t> batches) {
  const Weights w(device, c.n, c.k, c.weights, layout_of(c), c.portable);
  const std::vector<float> x = random_values(c.rows * c.k, 3, c.x == kBF16);
  const std::vector<float> before = random_values(c.rows * c.n, 6, false);
  const size_t row_bytes = outputs_of(c) * dtype_size(c.y);
  for (int64_t row : {int64_t{0}, int64_t{1}, int64_t{7}, c.rows / 2, c.rows - 1}) {
    const std::vector<char> want = run(device, w, c, x, row, 1, before);
    for (int64_t rows : batches) {
      const int64_t begin = std::max<int64_t>(0, std::min(row - rows / 3, c.rows - rows));
      const std::vector<char> y = run(device, w, c, x, begin, rows, before);
      ASSERT_EQ(std::memcmp(&y[(row - begin) * row_bytes], want.data(), row_bytes), 0)
          << "row " << row << " in a batch of " << rows << " from " << begin << ", n " << c.n << " k " << c.k;
    }
  }
}

// Where a product sends `parts` parts in turn 4, which has the second mailbox. One part goes to two places.
struct Mailboxes {
  const DeviceTensor turns, places;
  const int64_t count;
  SentSums sent;

  Mailboxes(Device& device, int64_t count, int parts)
      : turns(device, std::vector<uint64_t>{4}),
        places(device, static_cast<size_t>(std::max(parts, 2) * count * 4)),
        count(count) {
    sent.turns = static_cast<const uint64_t*>(turns.view(DType::kU8, {8}).data);
    sent.part = parts == 1 ? 0 : static_cast<uint32_t>((count + 4 * parts - 1) / (4 * parts) * 4);
    float* const first = places.view(kF32, {count}).as<float>() - kMailboxFloats;
    for (int p = 0; p < std::max(parts, 2); ++p) sent.to[p] = first + p * count;
  }
  // Sums arrive at their places, and no other memory changes.
  bool have(const std::vector<char>& sums) const {
    std::vector<uint32_t> y(static_cast<size_t>(count));
    std::memcpy(y.data(), sums.data(), sums.size());
    const std::vector<uint32_t> got = places.read<uint32_t>();
    for (int64_t at = 0; at < std::ssize(got); ++at) {
      const int64_t i = at % count;
      const bool belongs = sent.part == 0 || i / sent.part == at / count;
      if (got[at] != (belongs ? y[i] : 0xffffffff)) return false;
    }
    return true;
  }
};

// Every tile that sends, with one and two slices of k: messages have the bits that y would have.
TEST(LinearCuda, TilesSendWhatTheyStore) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const Case& c : {Case{61, 200, 1032, kBF16, kBF16, kF32, EndKind::kStore},
                        Case{128, 200, 520, kBF16, kBF16, kF32, EndKind::kStore},
                        Case{3, 2000, 1032, kBF16, kBF16, kF32, EndKind::kStore}}) {
    const Weights w(device, c.n, c.k, c.weights, layout_of(c));
    if (!linear_sends(device.stream(), w.packed, c.x, c.rows)) GTEST_SKIP() << "needs sm_90a";
    std::vector<float> x = random_values(c.rows * c.k, 3, true);
    x[5] = std::nanf("");
    const std::vector<char> want = run(device, w, c, x, 0, c.rows, {});
    const DeviceTensor x_device(device, encode(x, c.x));
    LinearCudaPlan plan = LinearCudaPlan::make(c.n, c.k, layout_of(c), c.rows);
    for (const LinearTile& tile : LinearCudaPlan::tiles(layout_of(c), plan.split)) {
      if (tile.rows > kMostSentRows) continue;
      plan.tile = tile;
      plan.row_tiles = (c.rows + tile.rows - 1) / tile.rows;
      for (const int parts : {1, 4, 8}) {
        const DeviceTensor y_device(device, want.size());
        const Mailboxes boxes(device, c.rows * c.n, parts);
        End end;
        end.sent = boxes.sent;
        linear_tiles_cuda(device.stream(), w.packed, x_device.view(c.x, {c.rows, c.k}),
                          y_device.view(c.y, {c.rows, c.n}), end, plan);
        ASSERT_TRUE(boxes.have(want)) << tile.halves << " x " << tile.rows << (tile.by_rows ? " by rows" : "")
                                      << (tile.in_pairs ? " in pairs" : "") << ", rows " << c.rows << ", " << parts;
      }
    }
  }
}

TEST(LinearCuda, ProductsOfCodesSendWhatTheyStore) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  if (!linear_takes_fp8(DeviceKind::kCuda, device.stream().gpu())) GTEST_SKIP() << "needs sm_90a";
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{200, 2064}, {200, 528}}) {
    const std::vector<char> bytes = encode(random_values(n * k, 11, true), kBF16);
    const WeightRows part = {bytes.data(), kBF16, n};
    const LinearWeight w = std::move(pack_linear(device, {&part, 1}, k, kFp8Rows)).value();
    for (const int64_t rows : {1, 16, 61, 128}) {
      ASSERT_TRUE(linear_sends(device.stream(), w, kBF16, rows));
      const DeviceTensor x(device, encode(random_values(rows * k, 3, true), kBF16));
      Arena scratch(std::move(device.allocate(1 << 20)).value());
      const auto run = [&](const End& end) {
        const DeviceTensor y(device, static_cast<size_t>(rows * n * 4));
        linear(device.stream(), w, x.view(kBF16, {rows, k}), y.view(kF32, {rows, n}), end, scratch);
        return y.read<char>();
      };
      const std::vector<char> want = run({});
      for (const int parts : {1, 4}) {
        const Mailboxes boxes(device, rows * n, parts);
        End end;
        end.sent = boxes.sent;
        run(end);
        ASSERT_TRUE(boxes.have(want)) << "rows " << rows << ", k " << k << ", " << parts;
      }
    }
  }
}

// The shapes of an 8B model, where the split along k is in use, and ones that no tile divides.
TEST(LinearCuda, RowsAreIndependent) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const Case& c : {Case{512, 6144, 4096, kBF16, kBF16, kF32, EndKind::kStore},
                        Case{512, 4096, 4096, kBF16, kBF16, kF32, EndKind::kAdd},
                        Case{512, 24576, 1024, kBF16, kBF16, kBF16, EndKind::kSwiGlu},
                        Case{512, 1000, 1032, kBF16, kBF16, kF32, EndKind::kStore},
                        Case{512, 3, 2048, kBF16, kBF16, kF32, EndKind::kStore}}) {
    check_rows_independent(device, c, {1, 2, 8, 13, 16, 32, 48, 64, 100, 128, 192, 256, 400, 512});
  }
  check_rows_independent(device, {70, 101, 77, kF32, kF32, kF32, EndKind::kStore}, {1, 2, 5, 64, 70});
}

// Neither another row nor memory after the last one reaches a result, not even as 0 * NaN.
TEST(LinearCuda, NeighboursStayOut) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const Case c{40, 200, 1032, kBF16, kBF16, kF32, EndKind::kStore};
  const Weights w(device, c.n, c.k, c.weights, LinearLayout::kPlain);
  std::vector<float> x = random_values(c.rows * c.k, 3, true);
  const std::vector<float> clean = decode(run(device, w, c, x, 0, c.rows, {}), c.y);
  for (int64_t i = 0; i < c.rows * c.k; ++i) {
    if (i / c.k % 2 == 0) x[i] = std::nanf("");
  }
  const std::vector<float> mixed = decode(run(device, w, c, x, 0, c.rows, {}), c.y);
  for (int64_t i = 0; i < c.rows * c.n; ++i) {
    if (i / c.n % 2 == 1) {
      ASSERT_EQ(mixed[i], clean[i]);
    } else {
      ASSERT_TRUE(std::isnan(mixed[i]));
    }
  }
}

TEST(LinearCudaPlan, FillsTheProcessors) {
  struct Want {
    int64_t n, k;
    LinearLayout layout;
    int split, halves;
  };
  const LinearLayout plain = LinearLayout::kPlain;
  for (const Want& want : {Want{6144, 4096, plain, 2, 3},
                           {4096, 4096, plain, 2, 2},
                           {4096, 12288, plain, 2, 2},
                           {24576, 4096, LinearLayout::kGateUp, 1, 6},
                           {151936, 4096, plain, 1, 6}}) {
    const LinearCudaPlan plan = LinearCudaPlan::make(want.n, want.k, want.layout, 16);
    EXPECT_EQ(plan.split, want.split) << want.n;
    EXPECT_EQ(plan.tile.halves, want.halves) << want.n;
  }
  EXPECT_EQ(LinearCudaPlan::make(256, 256, plain, 16).split, 1);
}

// Gates and ups of Llama-3.1-8B are seven small blocks for each multiprocessor; a head's blocks are large.
TEST(LinearCudaPlan, SmallBlocksThatComeInWavesShareAMultiprocessor) {
  const auto plan = [](int64_t n, LinearLayout layout, int64_t rows, const WeightFormat& format = kBF16) {
    return LinearCudaPlan::make(n, 4096, layout, rows, format).tile;
  };
  EXPECT_EQ(plan(28672, LinearLayout::kGateUp, 16), (LinearTile{2, 16, false, false, true}));
  EXPECT_EQ(plan(28672, LinearLayout::kGateUp, 64, kFp8Rows), (LinearTile{2, 64, false, false, true}));
  EXPECT_FALSE(plan(28672, LinearLayout::kGateUp, 65).in_pairs);
  EXPECT_FALSE(plan(28672, LinearLayout::kGateUp, 16, kFp8Blocks).in_pairs);
  EXPECT_FALSE(plan(24576, LinearLayout::kGateUp, 16).in_pairs);
  EXPECT_FALSE(plan(151936, LinearLayout::kPlain, 16).in_pairs);
}

// The fastest tiles on an H200 for the shapes of Qwen3-8B (linear_cuda_bench --tiles): qkv, o, gate and up, down.
TEST(LinearCudaPlan, ChoosesTheFastestTiles) {
  const LinearLayout plain = LinearLayout::kPlain, pairs = LinearLayout::kGateUp;
  struct Want {
    int64_t rows;
    LinearTile qkv, o, gate_up, down;
  };
  for (const Want& want : {Want{64, {3, 64}, {2, 64}, {6, 64}, {2, 64}},
                           {96, {3, 96}, {2, 96}, {6, 96}, {2, 96}},
                           {128, {3, 128, false, true}, {2, 128}, {6, 128}, {2, 128}},
                           {160, {4, 160}, {4, 96}, {6, 160, true}, {4, 96}},
                           {192, {4, 192}, {4, 96}, {6, 192, true}, {4, 96}},
                           {256, {6, 128}, {4, 128, false, true}, {6, 256, true}, {4, 128, false, true}},
                           {320, {6, 160}, {4, 160}, {6, 160, true}, {4, 160}},
                           {384, {6, 192}, {4, 192}, {6, 192, true}, {4, 192}},
                           {448, {6, 224}, {4, 224}, {6, 224, true}, {4, 224}},
                           {512, {6, 128, true, true}, {4, 256}, {6, 256, true}, {4, 256}}}) {
    EXPECT_EQ(LinearCudaPlan::make(6144, 4096, plain, want.rows).tile, want.qkv) << want.rows;
    EXPECT_EQ(LinearCudaPlan::make(4096, 4096, plain, want.rows).tile, want.o) << want.rows;
    EXPECT_EQ(LinearCudaPlan::make(24576, 4096, pairs, want.rows).tile, want.gate_up) << want.rows;
    EXPECT_EQ(LinearCudaPlan::make(4096, 12288, plain, want.rows).tile, want.down) << want.rows;
  }
}

TEST(LinearCudaPlan, ChoosesTheKernel) {
  LinearWeight w;
  w.n = w.k = 64;
  EXPECT_EQ(linear_cuda_kernel({.compute_capability = 90}, w, kF32), LinearKernel::kPlain);
  EXPECT_EQ(linear_cuda_kernel({.compute_capability = 70}, w, kBF16), LinearKernel::kPlain);
  EXPECT_EQ(linear_cuda_kernel({.compute_capability = 80}, w, kBF16), LinearKernel::kPortable);
  EXPECT_EQ(linear_cuda_kernel({.compute_capability = 100}, w, kBF16), LinearKernel::kPortable);
  w.portable = true;
  EXPECT_EQ(linear_cuda_kernel({.compute_capability = 90}, w, kBF16), LinearKernel::kPortable);
  w.k = 60;
  EXPECT_EQ(linear_cuda_kernel({.compute_capability = 90}, w, kBF16), LinearKernel::kPlain);
}

TEST(LinearCudaPlan, SendsFromTilesOfFewRows) {
  const GpuInfo hopper = {.compute_capability = 90};
  const auto sends = [&](const LinearWeight& w, int64_t rows) { return linear_cuda_sends(hopper, w, kBF16, rows); };
  LinearWeight w;
  // o and down of Qwen3-8B on 1, 2, 4 and 8 ranks, and of Qwen3-32B.
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{4096, 4096},
                             {4096, 2048},
                             {4096, 1024},
                             {4096, 512},
                             {4096, 6144},
                             {4096, 1536},
                             {5120, 4096},
                             {5120, 12800}}) {
    w.n = n;
    w.k = k;
    const bool built = linear_cuda_kernel(hopper, w, kBF16) == LinearKernel::kTiles;
    for (int64_t rows = 1; rows <= kMostSentRows; ++rows) ASSERT_EQ(sends(w, rows), built) << rows;
    EXPECT_FALSE(sends(w, kMostSentRows + 1));
  }
  EXPECT_FALSE(linear_cuda_sends({.compute_capability = 80}, w, kBF16, 16));
  EXPECT_FALSE(linear_cuda_sends(hopper, w, kF32, 16));
  w.portable = true;
  EXPECT_FALSE(sends(w, 16));
  w.portable = false;
  w.format = kInt4Weights;
  EXPECT_FALSE(sends(w, 16));
  w.format = kFp8Rows;
  EXPECT_TRUE(sends(w, 16));
  w.layout = LinearLayout::kGateUp;
  EXPECT_FALSE(sends(w, 16));
}

// A bias moves neither the split nor, by it, a bit.
TEST(LinearCudaPlan, BiasedPlansKeepTheSplit) {
  LinearWeight w;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {2880, 4096}, {4096, 4096}, {24576, 4096}}) {
    w.n = n;
    w.k = k;
    for (int64_t rows : {1, 8, 9, 96, 128, 129, 300, 600}) {
      const LinearCudaPlan plan = LinearCudaPlan::make_biased(w, rows);
      ASSERT_EQ(plan.split, LinearCudaPlan::make(n, k, LinearLayout::kPlain, rows).split);
      ASSERT_EQ(plan.tile.halves, kBiasHalves);
      ASSERT_GE(plan.tile.rows * plan.row_tiles, rows);
    }
  }
}

// A part of a matrix, as a rank of several has it: its rows lie apart, or its columns.
TEST(LinearCuda, RowsWithGapsArePackedAsThoseWithout) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  constexpr int64_t kRows = 96, kColumns = 200, kWhole = 333;
  for (const DType dtype : {kBF16, kF32}) {
    const std::vector<float> dense = random_values(kRows * kColumns, 5, dtype == kBF16);
    std::vector<float> by_rows(kRows * kWhole, 9.0f), by_columns(kColumns * kWhole, 9.0f);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < kColumns; ++i) {
        by_rows[r * kWhole + i] = by_columns[i * kWhole + r] = dense[r * kColumns + i];
      }
    }
    const auto packed = [&](const std::vector<float>& values, int64_t row_stride, int64_t column_stride) {
      const std::vector<char> bytes = encode(values, dtype);
      const WeightRows part = {bytes.data(), dtype, kRows, row_stride, column_stride};
      const LinearWeight w = std::move(pack_linear(device, {&part, 1}, kColumns, dtype, LinearLayout::kPlain)).value();
      std::vector<char> read(w.packed.bytes());
      device.download(read.data(), w.packed.data(), read.size());
      return read;
    };
    const std::vector<char> want = packed(dense, 0, 1);
    EXPECT_TRUE(packed(by_rows, kWhole, 1) == want);
    EXPECT_TRUE(packed(by_columns, 1, kWhole) == want);
  }
}

// The split must not move with the rows; up to 128 rows the weights are read once and most of a tile is not padding; no
// tile cuts a gate from its up.
TEST(LinearCudaPlan, TilesFitTheRows) {
  for (LinearLayout layout : {LinearLayout::kPlain, LinearLayout::kGateUp}) {
    for (int64_t n : {64, 128, 320, 4096, 6144, 24576, 151936}) {
      const int split = LinearCudaPlan::make(n, 4096, layout, 1).split;
      ASSERT_EQ(LinearPortablePlan::make(n, 4096, layout, 300).split, split);
      for (int64_t rows = 1; rows <= 600; ++rows) {
        const LinearCudaPlan plan = LinearCudaPlan::make(n, 4096, layout, rows);
        ASSERT_EQ(plan.split, split);
        ASSERT_GT(plan.tile.halves, 0);
        ASSERT_GE(plan.tile.rows * plan.row_tiles, rows);
        if (layout == LinearLayout::kGateUp) {
          ASSERT_EQ(plan.tile.halves % 2, 0);
        }
        if (rows <= 128) {
          ASSERT_EQ(plan.row_tiles, 1);
          ASSERT_LT(plan.tile.rows, std::max<int64_t>(2 * rows, 9));
        }
      }
    }
  }
}

}  // namespace
}  // namespace volley::ops
