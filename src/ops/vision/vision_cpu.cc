#include <algorithm>
#include <cmath>
#include <numbers>

#include "device/cpu/thread_pool.h"
#include "ops/vision/vision_kernels.h"

namespace volley::ops {
namespace {

// work(begin, end) of all rows, on the stream's threads. A task is worth waking a thread for.
template <typename F>
void for_patches(Stream& stream, int64_t rows, int64_t width, const F& work) {
  constexpr int64_t kTaskElements = 8 << 10;
  if (stream.dry()) return;
  const int64_t tasks = std::clamp(rows * width / kTaskElements, int64_t{1}, rows);
  stream.pool().parallel_for(tasks, [&](int64_t t, int) { work(rows * t / tasks, rows * (t + 1) / tasks); });
}

void put(float value, float& to) {
  to = value;
}
void put(float value, BFloat16& to) {
  to = to_bfloat16(value);
}
float taken(float x) {
  return x;
}
float taken(BFloat16 x) {
  return to_float(x);
}

// Calls f with a null pointer of the elements' type.
template <typename F>
void with_elements(const TensorView& x, const F& f) {
  x.dtype == DType::kF32 ? f(static_cast<float*>(nullptr)) : f(static_cast<BFloat16*>(nullptr));
}

void take_patches_cpu(Stream& stream, TensorView pixels, const PatchGrid& grid, const PatchValues& values,
                      int64_t first, TensorView y) {
  const int64_t size = values.size, line = grid.width * size * 3, width = y.dim(1);
  with_elements(y, [&]<typename T>(T*) {
    for_patches(stream, y.dim(0), width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const PatchPlace place = place_of(grid, first + i);
        const uint8_t* from = pixels.as<uint8_t>() + place.row * size * line + place.column * size * 3;
        T* to = y.as<T>() + i * width;
        for (int64_t channel = 0; channel < 3; ++channel) {
          const float mean = values.mean[static_cast<size_t>(channel)], std = values.std[static_cast<size_t>(channel)];
          for (int32_t frame = 0; frame < values.frames; ++frame) {
            for (int64_t r = 0; r < size; ++r) {
              for (int64_t c = 0; c < size; ++c) put((from[r * line + c * 3 + channel] - mean) / std, *to++);
            }
          }
        }
      }
    });
  });
}

void add_places_cpu(Stream& stream, TensorView bias, TensorView table, int32_t side, const PatchGrid& grid,
                    int64_t first, TensorView x) {
  const int64_t h = x.dim(1);
  for_patches(stream, x.dim(0), h, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PatchPlace place = place_of(grid, first + i);
      const PlaceBetween row = place_between(place.row, grid.height, side);
      const PlaceBetween column = place_between(place.column, grid.width, side);
      const auto at = [&](int r, int c) {
        return table.as<float>() + (int64_t{std::min(r, side - 1)} * side + std::min(c, side - 1)) * h;
      };
      const float *a = at(row.low, column.low), *b = at(row.low, column.low + 1);
      const float *c = at(row.low + 1, column.low), *d = at(row.low + 1, column.low + 1);
      const float down = row.high, right = column.high;
      const float wa = (1 - down) * (1 - right), wb = (1 - down) * right, wc = down * (1 - right), wd = down * right;
      float* to = x.as<float>() + i * h;
      const float* plus = bias.as<float>();
      for (int64_t j = 0; j < h; ++j) to[j] = to[j] + plus[j] + (a[j] * wa + b[j] * wb + c[j] * wc + d[j] * wd);
    }
  });
}

// Sixteen chains, whatever the width of vectors.
template <typename F>
float sum_of(int64_t h, const F& term) {
  constexpr int64_t kChains = 16;
  float sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains <= h; i += kChains) {
    for (int64_t k = 0; k < kChains; ++k) sums[k] += term(i + k);
  }
  for (int64_t k = 0; i < h; ++i, ++k) sums[k] += term(i);
  for (int64_t step = kChains / 2; step > 0; step /= 2) {
    for (int64_t k = 0; k < step; ++k) sums[k] += sums[k + step];
  }
  return sums[0];
}

void layer_norm_cpu(Stream& stream, TensorView x, TensorView weight, TensorView bias, float eps, TensorView y,
                    const BiasesAround& around) {
  const int64_t h = x.dim(1);
  const float *w = weight.as<float>(), *b = bias.as<float>();
  with_elements(y, [&]<typename T>(T*) {
    for_patches(stream, x.dim(0), h, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* from = x.as<float>() + i * h;
        T* to = y.as<T>() + i * h;
        const auto add = [&](const TensorView& vector) {
          if (vector.data == nullptr) return;
          for (int64_t j = 0; j < h; ++j) from[j] += vector.as<float>()[j];
        };
        add(around.before);
        const float mean = sum_of(h, [&](int64_t j) { return from[j]; }) / static_cast<float>(h);
        const float squares = sum_of(h, [&](int64_t j) { return (from[j] - mean) * (from[j] - mean); });
        const float scale = 1.0f / std::sqrt(squares / static_cast<float>(h) + eps);
        for (int64_t j = 0; j < h; ++j) put((from[j] - mean) * scale * w[j] + b[j], to[j]);
        add(around.after);
      }
    });
  });
}

float gelu_of(float x, bool by_tanh) {
  if (!by_tanh) return 0.5f * x * (1.0f + std::erf(x * std::numbers::sqrt2_v<float> / 2));
  return x / (1.0f + std::exp(-1.59576912f * x * (1.0f + 0.044715f * x * x)));
}

void gelu_cpu(Stream& stream, TensorView x, TensorView bias, bool by_tanh) {
  const int64_t n = x.dim(1);
  const float* plus = bias.as<float>();
  with_elements(x, [&]<typename T>(T*) {
    for_patches(stream, x.dim(0), n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* row = x.as<T>() + i * n;
        for (int64_t j = 0; j < n; ++j) put(gelu_of(taken(row[j]) + plus[j], by_tanh), row[j]);
      }
    });
  });
}

void narrow_heads_cpu(Stream& stream, TensorView wide, int32_t heads, TensorView narrow) {
  const int64_t halves = 2 * heads, from = wide.dim(1) / halves, to = narrow.dim(1) / halves;
  with_elements(narrow, [&]<typename T>(T*) {
    for_patches(stream, narrow.dim(0), narrow.dim(1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * halves; i < end * halves; ++i) {
        std::copy_n(wide.as<T>() + i * from, to, narrow.as<T>() + i * to);
      }
    });
  });
}

}  // namespace

const VisionKernels VisionKernels::kCpu = {take_patches_cpu, add_places_cpu, layer_norm_cpu, gelu_cpu,
                                           narrow_heads_cpu};

}  // namespace volley::ops
