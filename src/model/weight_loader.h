// From named tensors of a checkpoint to packed weights on a device: the one place that converts and packs.
// Threads: by one at a time.
#pragma once

#include <volley/engine.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "weights/checkpoint.h"

namespace volley::model {

// How a model's arithmetic runs, resolved from options and checkpoint.
struct Numerics {
  DType activation = DType::kBF16;  // inputs of matrix products, q: kBF16 or kF32. The residual stream is always fp32.
  DType storage = DType::kBF16;     // of most matrices (matrix_storage()): kBF16, kF32, or of a drafter kF8E4M3
  ops::AttentionBackend attention = ops::AttentionBackend::kAuto;
};

// --dtype for one checkpoint, whose bytes are mostly of that dtype: kAuto is bfloat16 for bf16 checkpoints, else
// float32.
Numerics resolve_numerics(ComputeType requested, DType checkpoint);

// What a matrix is stored as that is made of rows of these dtypes, one or several: with fp32 activations the smallest
// type that holds them exactly, which is kBF16 where all are bf16 and kF32 otherwise. bf16 activations take kBF16, and
// a quantised drafter kF8E4M3.
DType matrix_storage(const Numerics& numerics, std::span<const DType> parts);

// A rank-1 tensor in fp32 with its memory.
struct Vector {
  Buffer buffer;
  TensorView view;  // [n] fp32
};

// A matrix in the checkpoint's dtype, with whatever keeps its memory alive.
struct Table {
  Buffer buffer;
  weights::SourceTensor source;
  TensorView view;  // [rows, k]
};

// Errors of what it loads: Checkpoint::get()'s where the checkpoint has no such tensor or one of another shape,
// pack_linear()'s for a type or storage that is not built, kResourceExhausted where the device has no room.
class WeightLoader {
 public:
  // A checkpoint whose names all start with "model." and one whose names do not are read alike: `prefixes` are tried in
  // order.
  WeightLoader(Device& device, const weights::Checkpoint& checkpoint, const Numerics& numerics,
               std::vector<std::string> prefixes);

  struct Matrix {
    std::string name;
    int64_t rows = 0;
  };

  Result<Vector> vector(const std::string& name, int64_t n);
  // Vectors [n], one after the other: [names * n].
  Result<Vector> vectors(const std::vector<std::string>& names, int64_t n);
  // The matrices [rows, k] stacked into one packed weight, stored as matrix_storage() says.
  Result<ops::LinearWeight> linear(const std::vector<Matrix>& matrices, int64_t k,
                                   ops::LinearLayout layout = ops::LinearLayout::kPlain);
  // A matrix as stored, for row look-ups (embeddings): copied only to a device that cannot read the checkpoint's
  // memory.
  Result<Table> table(const std::string& name, int64_t rows, int64_t k);

  int64_t packed_bytes() const { return packed_bytes_; }
  // Called with the packed bytes so far after each weight.
  std::function<void(int64_t)> on_packed;

 private:
  std::string full_name(const std::string& name) const;

  Device& device_;
  const weights::Checkpoint& checkpoint_;
  Numerics numerics_;
  std::vector<std::string> prefixes_;
  int64_t packed_bytes_ = 0;
};

}  // namespace volley::model
