#include "ops/norm/norm_kernels.h"

#include <algorithm>
#include <cmath>

#include "device/cpu/thread_pool.h"
#include "ops/embedding/embedding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/norm_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volley::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using FVec = hn::Vec<F32>;

HWY_INLINE void store_row_vector(FVec v, float* to) {
  hn::StoreU(v, F32(), to);
}
HWY_INLINE void store_row_vector(FVec v, uint16_t* to) {
  store_bf16(F32(), v, to);
}

// Loads or stores up to a vector's worth at the end of a row, through a buffer: a row is never read past its end.
HWY_INLINE FVec load_some(const float* from, int64_t count) {
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy(from, from + count, buffer);
  return hn::Load(F32(), buffer);
}
template <typename T>
HWY_INLINE void store_some(FVec v, T* to, int64_t count) {
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(float)];
  store_row_vector(v, buffer);
  std::copy(buffer, buffer + count, to);
}

// Four chains of sums, lane by lane: the order depends on h and the instruction set alone.
float sum_of_squares(const float* x, int64_t h) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  FVec s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= h; i += 4 * lanes) {
    const auto x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + lanes);
    const auto x2 = hn::LoadU(d, x + i + 2 * lanes), x3 = hn::LoadU(d, x + i + 3 * lanes);
    s0 = hn::MulAdd(x0, x0, s0);
    s1 = hn::MulAdd(x1, x1, s1);
    s2 = hn::MulAdd(x2, x2, s2);
    s3 = hn::MulAdd(x3, x3, s3);
  }
  for (; i < h; i += lanes) {
    const auto v = i + lanes <= h ? hn::LoadU(d, x + i) : load_some(x + i, h - i);
    s0 = hn::MulAdd(v, v, s0);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

template <typename T>
void norm_row(const float* x, const float* weight, int64_t h, float eps, T* y) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto scale = hn::Set(d, 1.0f / std::sqrt(sum_of_squares(x, h) / static_cast<float>(h) + eps));
  int64_t i = 0;
  for (; i + lanes <= h; i += lanes) {
    store_row_vector(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::LoadU(d, weight + i)), y + i);
  }
  if (i < h) {
    store_some(hn::Mul(hn::Mul(load_some(x + i, h - i), scale), load_some(weight + i, h - i)), y + i, h - i);
  }
}

void norm_row_f32(const float* x, const float* weight, int64_t h, float eps, void* y) {
  norm_row(x, weight, h, eps, static_cast<float*>(y));
}
void norm_row_bf16(const float* x, const float* weight, int64_t h, float eps, void* y) {
  norm_row(x, weight, h, eps, static_cast<uint16_t*>(y));
}

// x = factor * (x + scale * (norm of y)), or without a weight factor * (x + scale * y).
void add_normed_row(const float* y, const float* weight, int64_t h, float eps, float scale, float factor, float* x) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto times = hn::Set(d, scale), last = hn::Set(d, factor);
  const auto inverse =
      hn::Set(d, weight == nullptr ? 1.0f : 1.0f / std::sqrt(sum_of_squares(y, h) / static_cast<float>(h) + eps));
  const auto sum = [&](FVec before, FVec v, FVec w) {
    return hn::Mul(last, hn::Add(before, hn::Mul(times, hn::Mul(hn::Mul(v, inverse), w))));
  };
  const auto one = hn::Set(d, 1.0f);
  int64_t i = 0;
  for (; i + lanes <= h; i += lanes) {
    hn::StoreU(sum(hn::LoadU(d, x + i), hn::LoadU(d, y + i), weight == nullptr ? one : hn::LoadU(d, weight + i)), d,
               x + i);
  }
  if (i < h) {
    store_some(
        sum(load_some(x + i, h - i), load_some(y + i, h - i), weight == nullptr ? one : load_some(weight + i, h - i)),
        x + i, h - i);
  }
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volley::ops {

HWY_EXPORT(norm_row_f32);
HWY_EXPORT(norm_row_bf16);
HWY_EXPORT(add_normed_row);

namespace {

// work(begin, end) of all rows, on the stream's threads.
template <typename F>
void for_rows(Stream& stream, int64_t rows, int64_t h, const F& work) {
  constexpr int64_t kTaskElements = 32 << 10;  // about 2 µs: below that, handing the work out costs more than it saves
  const int64_t tasks = std::clamp(rows * h / kTaskElements, int64_t{1}, rows);
  stream.pool().parallel_for(tasks, [&](int64_t t, int) { work(rows * t / tasks, rows * (t + 1) / tasks); });
}

void rms_norm_cpu(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, const Input& normed,
                  const FeatureBlock& copy) {
  if (stream.dry()) return;
  if (copy.features.data != nullptr) capture_feature(stream, x, copy.index * x.shape[1], copy.features);
  const TensorView y = normed.values;
  const int64_t rows = y.shape[0], h = x.shape[1];
  const auto norm_row =
      y.dtype == DType::kF32 ? HWY_DYNAMIC_DISPATCH(norm_row_f32) : HWY_DYNAMIC_DISPATCH(norm_row_bf16);
  const float* from = x.as<float>();
  const float* scale = weight.as<float>();
  const int32_t* index = row_index.data == nullptr ? nullptr : row_index.as<int32_t>();
  char* to = static_cast<char*>(y.data);
  const int64_t row_bytes = h * static_cast<int64_t>(dtype_size(y.dtype));
  const auto norm_rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t source = index == nullptr ? r : index[r];
      VOLLEY_CHECK(source >= 0 && source < x.shape[0]);
      norm_row(from + source * h, scale, h, eps, to + r * row_bytes);
    }
  };
  for_rows(stream, rows, h, norm_rows);
}

void add_normed_cpu(Stream& stream, const AddedNorm& args, TensorView x, bool norms) {
  if (stream.dry()) return;
  const int64_t rows = x.shape[0], h = x.shape[1];
  const float* weights = args.end_weight.data == nullptr ? nullptr : args.end_weight.as<float>();
  const float last = args.factor.data == nullptr ? 1.0f : *args.factor.as<float>();
  const auto add_row = HWY_DYNAMIC_DISPATCH(add_normed_row);
  for_rows(stream, rows, h, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      add_row(args.y.as<float>() + r * h, weights, h, args.end_eps, args.scale, last, x.as<float>() + r * h);
    }
  });
  if (norms) rms_norm_cpu(stream, x, args.weight, args.eps, {}, args.h, args.copy);
}

}  // namespace

const NormKernels NormKernels::kCpu = {rms_norm_cpu, add_normed_cpu};

}  // namespace volley::ops
#endif
