// Protects: the value of every output against an fp64 oracle, for all dtypes, layouts, ends and ragged shapes;
// that a row's bits depend on nothing but the row; that padding is never seen.
#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <random>
#include <vector>

#include "ops/instruction_sets_for_test.h"
#include "ops/linear/cpu/linear_cpu.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

// A matrix of some dtype, and its exact values.
struct Matrix {
  int64_t rows = 0, columns = 0;
  DType dtype = DType::kF32;
  std::vector<char> data;
  std::vector<double> values;

  Matrix(int64_t rows, int64_t columns, DType dtype)
      : rows(rows), columns(columns), dtype(dtype), data(rows * columns * dtype_size(dtype)), values(rows * columns) {}

  void set(int64_t i, float v) {
    char* to = data.data() + i * dtype_size(dtype);
    if (dtype == DType::kF32) {
      std::memcpy(to, &v, 4);
    } else if (dtype == DType::kBF16) {
      const BFloat16 b = to_bfloat16(v);
      std::memcpy(to, &b, 2);
      v = to_float(b);
    } else {  // a normal fp16 near v: sign, 5 bits of exponent, 10 of fraction
      int e = 0;
      const float f = std::frexp(std::fabs(v), &e);
      const uint16_t bits =
          v == 0 || e < -12 ? 0 : static_cast<uint16_t>((e + 14) << 10 | static_cast<int>(f * 2048 - 1024));
      const Float16 h{static_cast<uint16_t>(bits | (v < 0 ? 0x8000 : 0))};
      std::memcpy(to, &h, 2);
      v = to_float(h);
    }
    values[i] = v;
  }
  double get(int64_t i) const {
    const char* from = data.data() + i * dtype_size(dtype);
    if (dtype == DType::kF32) {
      float f;
      std::memcpy(&f, from, 4);
      return f;
    }
    BFloat16 b;
    std::memcpy(&b, from, 2);
    return to_float(b);
  }
  TensorView view() { return {data.data(), dtype, {rows, columns}}; }
  WeightRows part() const { return {data.data(), dtype, rows}; }
};

Matrix random_matrix(int64_t rows, int64_t columns, DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Matrix m(rows, columns, dtype);
  for (int64_t i = 0; i < rows * columns; ++i) m.set(i, normal(random));
  return m;
}

LinearWeight pack(Device& device, const std::vector<Matrix>& parts, int64_t k, WeightFormat storage,
                  LinearLayout layout = LinearLayout::kPlain) {
  std::vector<WeightRows> rows;
  for (const Matrix& m : parts) rows.push_back(m.part());
  return std::move(pack_linear(device, rows, k, storage, layout)).value();
}

void run(Device& device, const LinearWeight& w, TensorView x, TensorView y, const End& end) {
  Arena none{Buffer()};
  linear(device.stream(), w, x, y, end, none);
}

struct Sum {
  double value = 0, magnitude = 0;
};

// The sum, and that of the magnitudes, for one row of x and one row of weights as they are stored.
Sum oracle(const Matrix& x, int64_t m, const Matrix& w, int64_t row, DType storage) {
  Sum sum;
  for (int64_t i = 0; i < x.columns; ++i) {
    double v = w.values[row * x.columns + i];
    if (storage == DType::kBF16) v = to_float(to_bfloat16(static_cast<float>(v)));
    sum.value += x.values[m * x.columns + i] * v;
    sum.magnitude += std::fabs(x.values[m * x.columns + i] * v);
  }
  return sum;
}

// Products are exact for bf16 and rounded once for fp32; adding k of them in any order rounds k - 1 times, and a dot
// product of pairs no more often.
double sum_bound(const Sum& s, int64_t k) {
  return (k + 1) * kRound * s.magnitude;
}

double output_bound(double value, DType dtype) {
  return std::fabs(value) * (dtype == DType::kBF16 ? kRoundBF16 + kRound : kRound);
}

struct Combination {
  DType x, source, storage;
};
const std::vector<Combination> kCombinations = {
    {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kF32, DType::kBF16},
    {DType::kBF16, DType::kF16, DType::kBF16},  {DType::kF32, DType::kBF16, DType::kBF16},
    {DType::kF32, DType::kF32, DType::kBF16},   {DType::kF32, DType::kF32, DType::kF32},
    {DType::kF32, DType::kBF16, DType::kF32},   {DType::kF32, DType::kF16, DType::kF32},
    {DType::kBF16, DType::kF32, DType::kF32}};

struct Shape {
  int64_t rows, k;
  std::vector<int64_t> parts;
};
const std::vector<Shape> kShapes = {{1, 1, {1}},       {1, 64, {37}},     {2, 7, {16, 5}},    {3, 129, {5, 0, 43}},
                                    {5, 2, {100}},     {7, 33, {48}},     {8, 300, {33, 31}}, {11, 65, {17}},
                                    {16, 1031, {40}},  {17, 96, {64, 7}}, {35, 514, {21}},    {1, 5001, {70}},
                                    {4, 2500, {15, 3}}};

void check_plain(const Shape& shape, const Combination& c, DType y_dtype, EndKind kind, bool biased = false) {
  auto device = *make_cpu_device(2);
  std::vector<Matrix> parts;
  int64_t n = 0;
  for (int64_t rows : shape.parts) {
    parts.push_back(random_matrix(rows, shape.k, c.source, static_cast<uint32_t>(17 + n)));
    n += rows;
  }
  const LinearWeight w = pack(*device, parts, shape.k, c.storage);
  ASSERT_EQ(w.n, n);
  Matrix x = random_matrix(shape.rows, shape.k, c.x, 5);
  Matrix y = random_matrix(shape.rows, n, y_dtype, 6), bias = random_matrix(1, n, DType::kF32, 7);
  run(*device, w, x.view(), y.view(), {kind, biased ? bias.view() : TensorView()});
  for (int64_t m = 0; m < shape.rows; ++m) {
    int64_t column = 0;
    for (const Matrix& part : parts) {
      for (int64_t row = 0; row < part.rows; ++row, ++column) {
        const Sum sum = oracle(x, m, part, row, c.storage);
        const double whole = sum.value + (biased ? bias.values[column] : 0);
        const double want = whole + (kind == EndKind::kAdd ? y.values[m * n + column] : 0);
        const double sums = sum_bound(sum, shape.k) + (biased ? kRound * std::fabs(whole) : 0);
        const double bound = sums * (1 + kRoundBF16) + output_bound(want, y_dtype);
        ASSERT_NEAR(y.get(m * n + column), want, bound)
            << "row " << m << " column " << column << " k " << shape.k << " x " << dtype_name(c.x) << " source "
            << dtype_name(c.source) << " storage " << dtype_name(c.storage);
      }
    }
  }
}

TEST(Linear, StoreMatchesOracle) {
  for (const Shape& shape : kShapes) {
    for (const Combination& c : kCombinations) {
      for (DType y : {DType::kF32, DType::kBF16}) check_plain(shape, c, y, EndKind::kStore);
    }
  }
}

TEST(Linear, AddMatchesOracle) {
  for (const Shape& shape : kShapes) {
    for (const Combination& c : kCombinations) check_plain(shape, c, DType::kF32, EndKind::kAdd);
  }
}

TEST(Linear, BiasMatchesOracle) {
  for (const Shape& shape : kShapes) {
    for (const Combination& c : {kCombinations[0], kCombinations[4], kCombinations[5]}) {
      for (DType y : {DType::kF32, DType::kBF16}) check_plain(shape, c, y, EndKind::kStore, true);
      check_plain(shape, c, DType::kF32, EndKind::kAdd, true);
    }
  }
}

// A bias is only added.
TEST(Linear, BiasIsAddedToThePlainSum) {
  auto device = *make_cpu_device(2);
  const int64_t rows = 19, n = 83;
  const LinearWeight w = pack(*device, {random_matrix(n, 200, DType::kBF16, 1)}, 200, DType::kBF16);
  Matrix x = random_matrix(rows, 200, DType::kBF16, 2), bias = random_matrix(1, n, DType::kF32, 3);
  const Matrix before = random_matrix(rows, n, DType::kF32, 4);
  Matrix sums(rows, n, DType::kF32), stored = sums, added = before;
  run(*device, w, x.view(), sums.view(), {});
  run(*device, w, x.view(), stored.view(), {EndKind::kStore, bias.view()});
  run(*device, w, x.view(), added.view(), {EndKind::kAdd, bias.view()});
  for (int64_t i = 0; i < rows * n; ++i) {
    const float want = static_cast<float>(sums.get(i)) + static_cast<float>(bias.get(i % n));
    ASSERT_EQ(stored.get(i), want);
    ASSERT_EQ(added.get(i), static_cast<float>(before.get(i)) + want);
  }
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

void check_gated(int64_t rows, int64_t k, int64_t half, const Combination& c, DType y_dtype, EndKind kind) {
  const auto activation = kind == EndKind::kSwiGlu ? silu : gelu;
  auto device = *make_cpu_device(2);
  const std::vector<Matrix> parts = {random_matrix(half, k, c.source, 1), random_matrix(half, k, c.source, 2)};
  const LinearWeight w = pack(*device, parts, k, c.storage, LinearLayout::kGateUp);
  Matrix x = random_matrix(rows, k, c.x, 3);
  Matrix y(rows, half, y_dtype);
  run(*device, w, x.view(), y.view(), {kind});
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t j = 0; j < half; ++j) {
      const Sum gate = oracle(x, m, parts[0], j, c.storage), up = oracle(x, m, parts[1], j, c.storage);
      const double gated = activation(gate.value), want = gated * up.value;
      // The slope of both is below 1.13; the exponential, sum, quotient and product add 4 roundings and one more.
      // GELU's cubic adds 3 to its argument, of which the sigmoid makes as many times the argument where it is not at
      // an end.
      const double cubic = kind == EndKind::kGeGlu ? 3 * std::fmin(std::fabs(2 * gate.value), 20.0) : 0;
      const double gate_error = 1.13 * sum_bound(gate, k) + (5 + cubic) * kRound * std::fabs(gated);
      const double up_error = sum_bound(up, k);
      const double error = gate_error * (std::fabs(up.value) + up_error) + std::fabs(gated) * up_error;
      ASSERT_NEAR(y.get(m * half + j), want, error * (1 + kRoundBF16) + output_bound(want, y_dtype))
          << "row " << m << " column " << j;
    }
  }
}

TEST(Linear, GatedEndsMatchOracle) {
  for (const Combination& c : kCombinations) {
    for (DType y : {DType::kF32, DType::kBF16}) {
      for (const EndKind kind : {EndKind::kSwiGlu, EndKind::kGeGlu}) {
        check_gated(1, 9, 1, c, y, kind);
        check_gated(3, 256, 37, c, y, kind);
        check_gated(18, 65, 48, c, y, kind);
      }
    }
  }
}

// exp(-gate) overflows in fp32 from gate = -89 on, and GELU's cubic does.
TEST(Linear, GatedEndsSurviveLargeGates) {
  auto device = *make_cpu_device(1);
  Matrix one(1, 1, DType::kF32);
  one.set(0, 1.0f);
  const LinearWeight w = pack(*device, {one, one}, 1, DType::kF32, LinearLayout::kGateUp);
  for (float v : {-1e30f, -300.0f, -89.0f, -20.0f, 0.0f, 20.0f, 89.0f, 300.0f, 1e10f}) {
    Matrix x(1, 1, DType::kF32), y(1, 1, DType::kF32);
    x.set(0, v);
    for (const EndKind kind : {EndKind::kSwiGlu, EndKind::kGeGlu}) {
      run(*device, w, x.view(), y.view(), {kind});
      const double want = (kind == EndKind::kSwiGlu ? silu(v) : gelu(v)) * v;
      EXPECT_NEAR(y.get(0), want, 6 * kRound * std::fabs(want) + (v < -10 ? v * v * 1e-38 : 0)) << v;
    }
  }
  Matrix x(1, 1, DType::kF32), y(1, 1, DType::kF32);
  x.set(0, std::nanf(""));
  run(*device, w, x.view(), y.view(), {EndKind::kSwiGlu});
  EXPECT_TRUE(std::isnan(y.get(0)));
}

// Every path below AVX-512 BF16, on shapes that reach each of its tile sizes.
TEST(Linear, EveryInstructionSetMatchesOracle) {
  for_each_instruction_set([] {
    for (const Combination& c : {kCombinations[1], kCombinations[4], kCombinations[5]}) {
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16}) {
        check_plain({rows, 35, {90}}, c, DType::kF32, EndKind::kAdd);
        check_plain({rows, 35, {90}}, c, DType::kF32, EndKind::kAdd, true);
      }
      check_plain({19, 1500, {21}}, c, DType::kBF16, EndKind::kStore);
      check_gated(5, 31, 37, c, DType::kBF16, EndKind::kSwiGlu);
      check_gated(5, 31, 37, c, DType::kBF16, EndKind::kGeGlu);
    }
  });
}

// A one at k and zeros elsewhere return row k of the transposed weights, bit for bit: layout and conversion.
TEST(Linear, PackingKeepsEveryWeight) {
  auto device = *make_cpu_device(3);
  const int64_t k = 301;
  const std::vector<Matrix> parts = {random_matrix(37, k, DType::kF32, 1), random_matrix(70, k, DType::kF32, 2)};
  Matrix x(k, k, DType::kF32);
  for (int64_t i = 0; i < k; ++i) x.set(i * k + i, 1.0f);
  for (DType storage : {DType::kF32, DType::kBF16}) {
    const LinearWeight w = pack(*device, parts, k, storage);
    Matrix y(k, w.n, DType::kF32);
    run(*device, w, x.view(), y.view(), {});
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < w.n; ++j) {
        const float value = static_cast<float>(j < 37 ? parts[0].values[j * k + i] : parts[1].values[(j - 37) * k + i]);
        const float want = storage == DType::kBF16 ? to_float(to_bfloat16(value)) : value;
        ASSERT_EQ(y.get(i * w.n + j), want);
      }
    }
  }
}

std::vector<char> result_of(Device& device, const LinearWeight& w, TensorView x, DType y_dtype, EndKind kind) {
  Matrix y(x.shape[0], kind == EndKind::kSwiGlu ? w.n / 2 : w.n, y_dtype);
  run(device, w, x, y.view(), {kind});
  return y.data;
}

// Each row alone on one thread, against batches of many sizes on 1 to 3 threads.
void check_rows_independent(const Combination& c, LinearLayout layout, int64_t k, int64_t half) {
  auto reference = *make_cpu_device(1);
  const std::vector<Matrix> parts = {random_matrix(half, k, c.source, 1), random_matrix(half, k, c.source, 2)};
  const LinearWeight w = pack(*reference, parts, k, c.storage, layout);
  const EndKind kind = layout == LinearLayout::kGateUp ? EndKind::kSwiGlu : EndKind::kStore;
  Matrix x = random_matrix(70, k, c.x, 3);
  std::vector<char> alone;
  for (int64_t m = 0; m < x.rows; ++m) {
    const auto y = result_of(*reference, w, x.view().rows(m, 1), DType::kF32, kind);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  const size_t row_bytes = alone.size() / x.rows;
  for (int threads : {1, 2, 3}) {
    auto device = *make_cpu_device(threads);
    for (int64_t rows = 1; rows <= x.rows; rows += rows < 34 ? 1 : 9) {
      const int64_t begin = (rows * 7) % (x.rows - rows + 1);
      const auto y = result_of(*device, w, x.view().rows(begin, rows), DType::kF32, kind);
      ASSERT_EQ(std::memcmp(y.data(), alone.data() + begin * row_bytes, y.size()), 0)
          << rows << " rows from " << begin << ", " << threads << " threads, " << dtype_name(c.x) << " x "
          << dtype_name(c.storage);
    }
  }
}

TEST(Linear, RowsAreIndependent) {
  for (const Combination& c : {kCombinations[0], kCombinations[3], kCombinations[5]}) {
    check_rows_independent(c, LinearLayout::kPlain, 1027, 61);
    check_rows_independent(c, LinearLayout::kGateUp, 512, 200);
  }
}

TEST(Linear, RowsAreIndependentOnEveryInstructionSet) {
  for_each_instruction_set([] {
    for (const Combination& c : {kCombinations[0], kCombinations[3], kCombinations[5]}) {
      check_rows_independent(c, LinearLayout::kGateUp, 199, 37);
    }
  });
}

// Neither another row nor memory after the last one reaches a result, not even as 0 * NaN.
TEST(Linear, NeighboursStayOut) {
  auto device = *make_cpu_device(2);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    const int64_t k = 37;
    const LinearWeight w = pack(*device, {random_matrix(20, k, DType::kBF16, 1)}, k, DType::kBF16);
    Matrix x = random_matrix(40, k, dtype, 2);
    const auto clean = result_of(*device, w, x.view(), DType::kF32, EndKind::kStore);
    for (int64_t m = 0; m < x.rows; m += 2) {
      for (int64_t i = 0; i < k; ++i) x.set(m * k + i, std::nanf(""));
    }
    const auto mixed = result_of(*device, w, x.view(), DType::kF32, EndKind::kStore);
    const size_t row_bytes = clean.size() / x.rows;
    for (int64_t m = 1; m < x.rows; m += 2) {
      ASSERT_EQ(std::memcmp(clean.data() + m * row_bytes, mixed.data() + m * row_bytes, row_bytes), 0) << m;
    }
    const auto single = result_of(*device, w, x.view().rows(1, 1), DType::kF32, EndKind::kStore);
    ASSERT_EQ(std::memcmp(clean.data() + row_bytes, single.data(), row_bytes), 0);
  }
}

TEST(Linear, EndsAgreeBitForBit) {
  auto device = *make_cpu_device(2);
  const LinearWeight w = pack(*device, {random_matrix(83, 200, DType::kBF16, 1)}, 200, DType::kBF16);
  Matrix x = random_matrix(19, 200, DType::kBF16, 2);
  Matrix stored(19, 83, DType::kF32), added(19, 83, DType::kF32), rounded(19, 83, DType::kBF16);
  run(*device, w, x.view(), stored.view(), {});
  run(*device, w, x.view(), added.view(), {EndKind::kAdd});
  run(*device, w, x.view(), rounded.view(), {});
  EXPECT_EQ(stored.data, added.data);
  for (int64_t i = 0; i < 19 * 83; ++i) {
    ASSERT_EQ(rounded.get(i), to_float(to_bfloat16(static_cast<float>(stored.get(i)))));
  }
}

// The plain product is an output's own sum, so SwiGlu must be a function of the two plain sums.
TEST(Linear, SwiGluUsesThePlainSums) {
  auto device = *make_cpu_device(2);
  const std::vector<Matrix> parts = {random_matrix(45, 130, DType::kBF16, 1), random_matrix(45, 130, DType::kBF16, 2)};
  const LinearWeight plain = pack(*device, parts, 130, DType::kBF16);
  const LinearWeight fused = pack(*device, parts, 130, DType::kBF16, LinearLayout::kGateUp);
  Matrix x = random_matrix(9, 130, DType::kBF16, 3), sums(9, 90, DType::kF32), y(9, 45, DType::kF32);
  run(*device, plain, x.view(), sums.view(), {});
  run(*device, fused, x.view(), y.view(), {EndKind::kSwiGlu});
  for (int64_t m = 0; m < 9; ++m) {
    for (int64_t j = 0; j < 45; ++j) {
      const double want = silu(sums.get(m * 90 + j)) * sums.get(m * 90 + 45 + j);
      ASSERT_NEAR(y.get(m * 45 + j), want, 6 * kRound * std::fabs(want));
    }
  }
}

TEST(Linear, ZeroRowsAndEmptyParts) {
  auto device = *make_cpu_device(2);
  const LinearWeight w = pack(*device, {random_matrix(8, 4, DType::kF32, 1)}, 4, DType::kBF16);
  run(*device, w, {nullptr, DType::kBF16, {0, 4}}, {nullptr, DType::kF32, {0, 8}}, {});
  const LinearWeight empty = pack(*device, {Matrix(0, 4, DType::kF32)}, 4, DType::kF32);
  Matrix x(3, 4, DType::kF32), y(3, 0, DType::kF32);
  run(*device, empty, x.view(), y.view(), {});
  EXPECT_EQ(empty.n, 0);
}

TEST(Linear, FirstOutputsAloneHaveTheBitsOfAll) {
  auto device = *make_cpu_device(2);
  Matrix x = random_matrix(19, 256, DType::kBF16, 1);
  for (const WeightFormat& format : {WeightFormat(DType::kBF16), kFp8Weights, kInt4Weights}) {
    const LinearWeight w = pack(*device, {random_matrix(100, 256, DType::kBF16, 2)}, 256, format);
    Matrix all(19, 100, DType::kF32);
    run(*device, w, x.view(), all.view(), {});
    for (const int64_t n : {1, 16, 37, 99}) {
      Matrix some(19, n, DType::kF32);
      run(*device, w, x.view(), some.view(), {.fewer = true});
      for (int64_t i = 0; i < 19 * n; ++i) ASSERT_EQ(some.get(i), all.get(i / n * 100 + i % n)) << n << " " << i;
    }
  }
}

TEST(Linear, RefusesWhatItCannotPack) {
  auto device = *make_cpu_device(1);
  const Matrix a(4, 8, DType::kF32), b(3, 8, DType::kF32), ids(4, 8, DType::kI32);
  const auto code = [&](std::vector<WeightRows> parts, int64_t k, WeightFormat format, LinearLayout layout) {
    return pack_linear(*device, parts, k, format, layout).error().code;
  };
  EXPECT_EQ(code({a.part()}, 0, DType::kF32, LinearLayout::kPlain), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({a.part()}, 8, DType::kU8, LinearLayout::kPlain), ErrorCode::kUnimplemented);
  EXPECT_EQ(code({a.part()}, 8, {DType::kBF16, 1, 128}, LinearLayout::kPlain), ErrorCode::kUnimplemented);
  EXPECT_EQ(code({ids.part()}, 8, DType::kF32, LinearLayout::kPlain), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({a.part(), b.part()}, 8, DType::kF32, LinearLayout::kGateUp), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({a.part()}, 8, DType::kF32, LinearLayout::kGateUp), ErrorCode::kInvalidArgument);
}

TEST(LinearDeathTest, ChecksItsCaller) {
  auto device = *make_cpu_device(1);
  const LinearWeight w = pack(*device, {random_matrix(8, 4, DType::kF32, 1)}, 4, DType::kF32);
  Matrix x(2, 4, DType::kF32), y(2, 8, DType::kF32), wide(2, 9, DType::kF32), narrow(2, 7, DType::kF32),
      ids(2, 4, DType::kI32);
  for (Matrix* wrong : {&wide, &narrow}) {
    EXPECT_DEATH(run(*device, w, x.view(), wrong->view(), {EndKind::kStore}), "CHECK failed");
  }
  EXPECT_DEATH(run(*device, w, ids.view(), y.view(), {EndKind::kStore}), "CHECK failed");
  EXPECT_DEATH(run(*device, w, x.view(), y.view(), {EndKind::kSwiGlu}), "CHECK failed");
  Matrix bias(1, 8, DType::kF32), short_bias(1, 7, DType::kF32), bf16_bias(1, 8, DType::kBF16), half(2, 4, DType::kF32);
  for (Matrix* wrong : {&short_bias, &bf16_bias}) {
    EXPECT_DEATH(run(*device, w, x.view(), y.view(), {EndKind::kStore, wrong->view(), {}}), "CHECK failed");
  }
  const LinearWeight pairs =
      pack(*device, {Matrix(4, 4, DType::kF32), Matrix(4, 4, DType::kF32)}, 4, DType::kF32, LinearLayout::kGateUp);
  EXPECT_DEATH(run(*device, pairs, x.view(), half.view(), {EndKind::kSwiGlu, bias.view()}), "CHECK failed");
}

// Tasks must never be empty, gate and up must stay together, and little work must not be handed out.
TEST(LinearPlan, CutsWorkSensibly) {
  for (int64_t unit : {1, 2}) {
    for (int64_t panels : {2, 8, 30, 64, 384, 9496}) {
      for (int64_t rows : {1, 5, 16, 17, 64, 512}) {
        for (int threads : {1, 2, 3, 64}) {
          const int64_t k = 1024, bytes = linear_panel_bytes(k, DType::kBF16);
          const LinearPlan plan = LinearPlan::make(rows, k, panels, bytes, unit, threads);
          EXPECT_GE(plan.panel_tasks, 1);
          EXPECT_LE(plan.panel_tasks, panels / unit);
          EXPECT_GE(plan.row_tasks, 1);
          EXPECT_LE(plan.row_tasks, rows);
          EXPECT_GE(plan.group, unit);
          EXPECT_EQ(plan.group % unit, 0);
          EXPECT_LE(plan.group * std::min(rows, kTileRows) * kLineBytes, kSumBytes);
          if (threads == 1) {
            EXPECT_EQ(plan.panel_tasks * plan.row_tasks, 1);
          }
        }
      }
    }
  }
  const int64_t small = linear_panel_bytes(64, DType::kBF16);
  EXPECT_EQ(LinearPlan::make(1, 64, 8, small, 1, 8).panel_tasks, 1);
  const int64_t large = linear_panel_bytes(1024, DType::kBF16);
  EXPECT_GE(LinearPlan::make(1, 1024, 9496, large, 1, 2).panel_tasks, 8);
}

}  // namespace
}  // namespace volley::ops
