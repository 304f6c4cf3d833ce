// From the list of a model's tensors (params.h) to weights on a device: the one place that converts and packs.
// Threads: by one at a time.
#pragma once

#include <volley/engine.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/params.h"
#include "ops/attention/attention.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "weights/checkpoint.h"

namespace volley::model {

// How a model's arithmetic runs, resolved from options and checkpoint.
struct Numerics {
  DType activation = DType::kBF16;  // inputs of matrix products, q: kBF16 or kF32. The residual stream is always fp32.
  ops::WeightFormat storage = DType::kBF16;  // of most matrices (matrix_storage()); codes: the model is quantised
  ops::AttentionBackend attention = ops::AttentionBackend::kAuto;
  // Whether a checkpoint's e4m3 is stored as ops::kFp8Rows (one scale for a row or for all of them) or ops::kFp8Blocks,
  // where scales and shape have kernels. Other codes are stored as they are where the device multiplies them, else as
  // plain values.
  bool fp8_products = false;
};

// --dtype for one checkpoint, whose bytes are mostly of that dtype: kAuto is bfloat16 for bf16 checkpoints, else
// float32.
Numerics resolve_numerics(ComputeType requested, DType checkpoint);

// What a matrix is stored as that is made of rows of these dtypes, one or several. In a quantised model as codes, as
// far as the matrix bears it; else with fp32 activations the smallest type that holds them exactly, which is kBF16
// where all are bf16 and kF32 otherwise, and with bf16 activations kBF16.
ops::WeightFormat matrix_storage(const Numerics& numerics, std::span<const DType> parts,
                                 Param::Codes codes = Param::Codes::kAny);

// How the checkpoint stores a matrix whose values are codes there; no value for what is plain. REQUIRES:
// check_tensors().
std::optional<weights::CodeFormat> coded_as(const weights::Checkpoint& checkpoint, const Param& param);
// What a matrix is stored as that the checkpoint has as codes.
ops::WeightFormat coded_storage(const weights::CodeFormat& coded, const Param& param, const Numerics& numerics,
                                DeviceKind device);
// Sentences for people about matrices of `list` that the device does not multiply as the checkpoint stores them:
// "mxfp4 weights are computed as bfloat16".
std::vector<std::string> widened_codes(std::span<const Param> list, const weights::Checkpoint& checkpoint,
                                       const Numerics& numerics, DeviceKind device);

// Memory of the weights of `list` on a device, as the checkpoint has them. Exactly what a WeightLoader takes: tables
// stay where the checkpoint is unless the device cannot read it, and count where that takes memory.
struct WeightBytes {
  std::map<DType, int64_t> matrices;  // by what they are stored as
  int64_t rest = 0;
  int64_t total() const;
  void add(const WeightBytes& more);
};
WeightBytes weight_bytes(std::span<const Param> list, const Numerics& numerics, const weights::Checkpoint& checkpoint,
                         DeviceKind device);

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

// Loads weights by their roles in `list`. Errors: Checkpoint::get()'s where the checkpoint has no such tensor or one of
// another shape, pack_linear()'s for a type or storage that is not built, kResourceExhausted where the device has no
// room. A role that is not in the list is a CHECK failure. On a dry device no tensor is read.
class WeightLoader {
 public:
  // checkpoint: by the model layer's names (weights/named.h). References must outlive the loader.
  WeightLoader(Device& device, const weights::Checkpoint& checkpoint, const Numerics& numerics,
               const std::vector<Param>& list);

  bool has(const std::string& role) const { return params_.contains(role); }
  Result<Vector> vector(const std::string& role);
  Result<ops::LinearWeight> linear(const std::string& role);
  Result<ops::ExpertWeights> experts(const std::string& role);
  // A matrix as stored, for row look-ups (embeddings): copied only to a device that cannot read the checkpoint's
  // memory.
  Result<Table> table(const std::string& role);

  // Into `out`, where the list has the role; `out` stays empty where not.
  Status optional_vector(const std::string& role, Vector& out);

  Device& device() const { return device_; }
  int64_t packed_bytes() const { return packed_bytes_; }
  // Called with the packed bytes so far after each weight.
  std::function<void(int64_t)> on_packed;

 private:
  // What pack_*() take, of the checkpoint.
  struct Sources {
    std::vector<weights::SourceTensor> tensors;
    std::vector<ops::WeightRows> rows;  // some hold on to matrices of codes
  };
  bool dry() const { return device_.stream().dry(); }
  ops::WeightFormat storage_of(const Param& param) const;
  const Param& param(const std::string& role) const;
  Result<Sources> sources(const Param& param) const;
  void packed(const Sources& sources, const Buffer& weight);

  Device& device_;
  const weights::Checkpoint& checkpoint_;
  Numerics numerics_;
  std::map<std::string, const Param*> params_;
  int64_t packed_bytes_ = 0;
};

}  // namespace volley::model
