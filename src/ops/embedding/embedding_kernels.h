// The kernels of this folder. Private to it; shapes and dtypes are checked in embedding.cc.
#pragma once

#include "ops/embedding/embedding.h"
#include "ops/kernels.h"

namespace volley::ops {

struct EmbeddingKernels {
  void (*embed)(Stream& stream, TensorView table, TensorView ids, TensorView y, float scale);
  // Null on other devices than their contracts name.
  void (*embed_read)(Stream& stream, int64_t vocab, const ReadRow& read_row, TensorView ids, TensorView y, float scale);
  void (*embed_codes)(Stream& stream, const CodeTable& table, TensorView ids, TensorView y, float scale);
  void (*capture_feature)(Stream& stream, TensorView x, int64_t column, TensorView features);
  void (*zero)(Stream& stream, TensorView x);
  void (*add)(Stream& stream, TensorView y, TensorView x);

  static const EmbeddingKernels kCpu, kCuda;
};

}  // namespace volley::ops
