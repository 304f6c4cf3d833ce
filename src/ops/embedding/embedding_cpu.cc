// Conversions of whole rows. They are exact or round one value by itself, so every way to vectorise them gives the same
// bits and the compiler's is good enough.
#include "ops/embedding/embedding_kernels.h"

#include <algorithm>
#include <cstring>

#include "device/cpu/thread_pool.h"

namespace volley::ops {
namespace {

constexpr int64_t kTaskElements = 32 << 10;  // a few µs: below that, handing the work out costs more than it saves

template <typename F>
void for_rows(Stream& stream, int64_t rows, int64_t h, F&& row) {
  if (stream.dry()) return;
  const int64_t tasks = std::clamp(rows * h / kTaskElements, int64_t{1}, rows);
  stream.pool().parallel_for(tasks, [&](int64_t t, int) {
    for (int64_t r = rows * t / tasks; r < rows * (t + 1) / tasks; ++r) row(r);
  });
}

int64_t checked_id(TensorView ids, int64_t row, int64_t vocab) {
  const int32_t id = ids.as<int32_t>()[row];
  VOLLEY_CHECK_GE(id, 0);
  VOLLEY_CHECK_LT(id, vocab);
  return id;
}

template <typename T>
void embed_rows(Stream& stream, TensorView table, TensorView ids, TensorView y, float scale) {
  const int64_t h = table.shape[1];
  const T* from = table.as<T>();
  float* to = y.as<float>();
  for_rows(stream, y.shape[0], h, [&](int64_t r) {
    const T* row = from + checked_id(ids, r, table.shape[0]) * h;
    for (int64_t i = 0; i < h; ++i) to[r * h + i] = scale * to_float(row[i]);
  });
}

void embed_cpu(Stream& stream, TensorView table, TensorView ids, TensorView y, float scale) {
  if (table.dtype == DType::kBF16) return embed_rows<BFloat16>(stream, table, ids, y, scale);
  if (table.dtype == DType::kF16) return embed_rows<Float16>(stream, table, ids, y, scale);
  embed_rows<float>(stream, table, ids, y, scale);
}

void embed_read_cpu(Stream& stream, int64_t vocab, const ReadRow& read_row, TensorView ids, TensorView y, float scale) {
  const int64_t h = y.shape[1];
  for_rows(stream, y.shape[0], h, [&](int64_t r) {
    float* to = y.as<float>() + r * h;
    read_row(checked_id(ids, r, vocab), to);
    for (int64_t i = 0; i < h; ++i) to[i] *= scale;
  });
}

void capture_feature_cpu(Stream& stream, TensorView x, int64_t column, TensorView features) {
  const int64_t h = x.shape[1], width = features.shape[1];
  const float* from = x.as<float>();
  for_rows(stream, x.shape[0], h, [&](int64_t r) {
    const float* row = from + r * h;
    if (features.dtype == DType::kF32) {
      std::memcpy(features.as<float>() + r * width + column, row, h * sizeof(float));
      return;
    }
    BFloat16* to = features.as<BFloat16>() + r * width + column;
    for (int64_t i = 0; i < h; ++i) to[i] = to_bfloat16(row[i]);
  });
}

void zero_cpu(Stream& stream, TensorView x) {
  const int64_t h = x.shape[1];
  for_rows(stream, x.shape[0], h, [&](int64_t r) { std::fill_n(x.as<float>() + r * h, h, 0.0f); });
}

void add_cpu(Stream& stream, TensorView y, TensorView x) {
  const int64_t h = x.shape[1];
  for_rows(stream, x.shape[0], h, [&](int64_t r) {
    const float* from = y.as<float>() + r * h;
    float* to = x.as<float>() + r * h;
    for (int64_t i = 0; i < h; ++i) to[i] += from[i];
  });
}

}  // namespace

const EmbeddingKernels EmbeddingKernels::kCpu = {embed_cpu,           embed_read_cpu, nullptr,
                                                 capture_feature_cpu, zero_cpu,       add_cpu};

}  // namespace volley::ops
