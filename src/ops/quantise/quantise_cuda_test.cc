// Protects, on a GPU: codes and scales of rows and of groups against an oracle, value for value; rows of zeros, of
// tiny, of huge and of no numbers; that RMSNorm writes the codes that quantise_rows() makes of its fp32 result.
#include "ops/quantise/quantise.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "ops/device_for_test.h"
#include "ops/norm/norm.h"
#include "ops/quantise/quantise_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr DType kF8 = DType::kF8E4M3, kF32 = DType::kF32, kBF16 = DType::kBF16;

struct Codes {
  std::vector<Float8E4M3> values;
  std::vector<float> scales;
};

class CodesOnDevice {
 public:
  CodesOnDevice(Device& device, int64_t rows, int64_t k, bool in_groups = false)
      : rows_(rows),
        k_(k),
        groups_(in_groups ? (k + 127) / 128 : 0),
        values_(device, rows * k),
        scales_(device, (in_groups ? groups_ * stride() : rows) * sizeof(float)) {}
  Input view() const {
    const TensorView values = values_.view(kF8, {rows_, k_});
    return {values, groups_ > 0 ? scales_.view(kF32, {groups_, stride()}) : scales_.view(kF32, {rows_})};
  }
  int64_t stride() const { return (rows_ + 3) / 4 * 4; }
  Codes read() const { return {values_.read<Float8E4M3>(), scales_.read<float>()}; }

 private:
  int64_t rows_, k_, groups_;
  DeviceTensor values_, scales_;
};

// Rows of every kind: all finite codes under many scales, zeros, subnormal and nearly infinite values, and quotients
// that fall on ties, because the scale is a power of two.
std::vector<float> rows_of_all_kinds(int64_t rows, int64_t k) {
  std::vector<float> values = normal_values(rows * k, 2);
  for (int64_t row = 0; row < rows; ++row) {
    float* const v = &values[row * k];
    for (int64_t i = 0; i < k; ++i) {
      const float code = to_float(Float8E4M3{static_cast<uint8_t>((i + 1) % 127 + (i / 127 % 2) * 128)});
      if (row % 8 == 0) v[i] = std::ldexp(code, static_cast<int>(row) - 4);
      if (row % 8 == 1) v[i] = 0;
      if (row % 8 == 2) v[i] *= 1e-41f;
      if (row % 8 == 3) v[i] = std::clamp(v[i] * 1e38f, -3e38f, 3e38f);  // finite in bf16, too
      if (row % 8 == 4) v[i] = std::ldexp(std::round(std::ldexp(v[i], 4)), -4);
    }
    if (row % 8 == 0) v[k - 1] = std::ldexp(-448.0f, static_cast<int>(row) - 4);
    if (row % 8 == 4) v[0] = 448.0f / 64;
    if (row % 8 == 5) v[0] = -1e6f;  // makes zeros of the others
  }
  return values;
}

void expect_codes(const Codes& got, const std::vector<float>& values, int64_t k) {
  for (int64_t row = 0; row < static_cast<int64_t>(got.scales.size()); ++row) {
    const QuantisedRow want(&values[row * k], k);
    ASSERT_EQ(got.scales[row], want.scale) << "row " << row;
    for (int64_t i = 0; i < k; ++i) {
      ASSERT_EQ(to_float(got.values[row * k + i]), want.values[i]) << "row " << row << " column " << i;
    }
  }
}

// Calls check() after values were quantised from fp32, and after they were rounded to bf16 and quantised from that.
void quantise_both_types(Device& device, std::vector<float>& values, int64_t k, const CodesOnDevice& codes,
                         const std::function<void()>& check) {
  const int64_t rows = static_cast<int64_t>(values.size()) / k;
  const DeviceTensor x(device, values);
  quantise_rows(device.stream(), x.view(kF32, {rows, k}), codes.view());
  check();
  std::vector<BFloat16> rounded;
  for (float& v : values) {
    rounded.push_back(to_bfloat16(v));
    v = to_float(rounded.back());
  }
  const DeviceTensor x_rounded(device, rounded);
  quantise_rows(device.stream(), x_rounded.view(kBF16, {rows, k}), codes.view());
  check();
}

TEST(QuantiseCuda, MatchesOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  // Rows that threads hold in one, three and six pieces, and longer ones.
  for (int64_t k : {16, 272, 4096, 12288, 12304, 24592}) {
    const int64_t rows = 41;
    std::vector<float> values = rows_of_all_kinds(rows, k);
    const CodesOnDevice codes(device, rows, k);
    quantise_both_types(device, values, k, codes, [&] { expect_codes(codes.read(), values, k); });
  }
}

void expect_groups(const CodesOnDevice& codes, const std::vector<float>& values, int64_t rows, int64_t k) {
  const Codes got = codes.read();
  for (int64_t at = 0; at < rows * k; at += std::min<int64_t>(128, k - at % k)) {
    const int64_t row = at / k, first = at % k, count = std::min<int64_t>(128, k - first);
    const QuantisedRow want(&values[at], count);
    ASSERT_EQ(got.scales[first / 128 * codes.stride() + row], want.scale) << "row " << row << " column " << first;
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(to_float(got.values[at + i]), want.values[i]) << "row " << row << " column " << first + i;
    }
  }
}

TEST(QuantiseCuda, GroupsMatchTheOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (int64_t k : {16, 128, 272, 4096, 4224, 12304}) {
    const int64_t rows = 41;
    std::vector<float> values = rows_of_all_kinds(rows, k);
    const CodesOnDevice codes(device, rows, k, true);
    quantise_both_types(device, values, k, codes, [&] { expect_groups(codes, values, rows, k); });
  }
}

TEST(QuantiseCuda, ValuesThatTheTypeHasStayAsTheyAre) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  std::vector<float> values;
  for (int code = 0; code < 256; ++code) {
    if (code % 128 != 127) values.push_back(to_float(Float8E4M3{static_cast<uint8_t>(code)}));
  }
  values.resize(256);
  const CodesOnDevice codes(device, 1, 256);
  const DeviceTensor x(device, values);
  quantise_rows(device.stream(), x.view(kF32, {1, 256}), codes.view());
  const Codes got = codes.read();
  ASSERT_EQ(got.scales[0], 1);
  for (int i = 0; i < 256; ++i) ASSERT_EQ(to_float(got.values[i]), values[i]);
}

TEST(QuantiseCuda, ARowWithoutANumberHasNoScale) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int64_t rows = 6, k = 1040;
  std::vector<float> values = normal_values(rows * k, 3);
  values[1 * k + 1039] = std::nanf("");
  values[2 * k] = INFINITY;
  values[4 * k + 500] = -INFINITY;
  const CodesOnDevice codes(device, rows, k);
  const DeviceTensor x(device, values);
  quantise_rows(device.stream(), x.view(kF32, {rows, k}), codes.view());
  const Codes got = codes.read();
  for (int64_t row = 0; row < rows; ++row) {
    EXPECT_EQ(std::isnan(got.scales[row]), row == 1 || row == 2 || row == 4) << row;
  }
}

// Both kernels of the norm: rows in registers, and longer ones.
TEST(QuantiseCuda, RmsNormWritesTheCodesOfItsResult) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int64_t rows = 5;
  for (int64_t h : {16, 256, 2064, 4096, 5120, 8192, 12288}) {
    const DeviceTensor x(device, normal_values(rows * h, 4)), weight(device, normal_values(h, 5));
    const DeviceTensor index(device, std::vector<int32_t>{4, 0, 0, 2}), plain(device, 4 * h * sizeof(float));
    const CodesOnDevice codes(device, 4, h);
    const TensorView from = x.view(kF32, {rows, h}), w = weight.view(kF32, {h}), at = index.view(DType::kI32, {4});
    rms_norm(device.stream(), from, w, 1e-6f, at, plain.view(kF32, {4, h}));
    rms_norm(device.stream(), from, w, 1e-6f, at, codes.view());
    expect_codes(codes.read(), plain.read<float>(), h);
    const CodesOnDevice groups(device, 4, h, true);
    rms_norm(device.stream(), from, w, 1e-6f, at, groups.view());
    expect_groups(groups, plain.read<float>(), 4, h);
  }
}

TEST(Quantise, TakesRoomForScalesOnlyWhereThereAreCodes) {
  auto device = std::move(make_cpu_device(1)).value();
  Arena scratch(std::move(device->allocate(4096)).value());
  const Input codes = take_rows(scratch, kF8, 3, 32);
  EXPECT_EQ(codes.values.bytes(), 3 * 32);
  EXPECT_EQ(codes.scales.bytes(), 3 * 4);
  EXPECT_TRUE(codes.has_scales() && !codes.in_groups());
  scratch.release(0);
  const Input groups = take_rows(scratch, kF8, 3, 272, true);
  EXPECT_EQ(groups.scales.bytes(), 3 * 4 * 4);
  EXPECT_TRUE(groups.has_scales() && groups.in_groups());
  scratch.release(0);
  EXPECT_EQ(take_rows(scratch, kBF16, 3, 16).scales.data, nullptr);
}

}  // namespace
}  // namespace volley::ops
