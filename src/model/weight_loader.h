// Turns the list of a model's tensors (params.h) into weights on a device: the one place that converts and packs.
// Threads: one at a time.
#pragma once

#include <volley/engine.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/params.h"
#include "ops/attention/attention.h"
#include "ops/embedding/embedding.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "weights/checkpoint.h"

namespace volley::model {

// How a model's arithmetic runs, resolved from options and checkpoint.
struct Numerics {
  DType activation = DType::kBF16;  // inputs of matrix products, q: kBF16 or kF32. The residual stream is always fp32.
  // format of most matrices (matrix_storage()); codes if the model is quantised
  ops::WeightFormat storage = DType::kBF16;
  ops::AttentionBackend attention = ops::AttentionBackend::kAuto;
  // Whether a checkpoint's e4m3 matrices are stored as ops::kFp8Rows (one scale a row, or one in all) or
  // ops::kFp8Blocks, where kernels exist for the scales and the shape. Other codes are stored as they are where the
  // device multiplies them, else as plain values.
  bool fp8_products = false;
};

// Resolves --dtype for one checkpoint, whose bytes are mostly of that dtype: kAuto is bfloat16 for bf16 checkpoints,
// else float32.
Numerics resolve_numerics(ComputeType requested, DType checkpoint);

// The storage type of a matrix made of rows of these dtypes. In a quantised model it is codes, if the matrix may be
// quantised. Otherwise it is kBF16 with bf16 activations; with fp32 activations it is the smallest type that holds the
// rows exactly: kBF16 if all are bf16, else kF32.
ops::WeightFormat matrix_storage(const Numerics& numerics, std::span<const DType> parts,
                                 Param::Codes codes = Param::Codes::kAny);

// The checkpoint's code format of a matrix; no value for a plain one. REQUIRES: check_tensors().
std::optional<weights::CodeFormat> coded_as(const weights::Checkpoint& checkpoint, const Param& param);
// The storage type of a matrix that the checkpoint has as codes.
ops::WeightFormat coded_storage(const weights::CodeFormat& coded, const Param& param, const Numerics& numerics,
                                DeviceKind device);
// Sentences for the user about matrices of `list` that the device cannot multiply as the checkpoint stores them: "mxfp4
// weights are computed as bfloat16".
std::vector<std::string> widened_codes(std::span<const Param> list, const weights::Checkpoint& checkpoint,
                                       const Numerics& numerics, DeviceKind device);

// Memory of the weights of `list` on a device: exactly what a WeightLoader takes. Look-up tables stay in the
// checkpoint's memory, as codes if that has codes, unless the device cannot read it; they count where that takes
// memory.
struct WeightBytes {
  std::map<DType, int64_t> matrices;  // by storage type
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

// A matrix in the checkpoint's dtype, as codes, or of codes widened, with the owner of its memory.
struct Table {
  Buffer buffer;
  weights::SourceTensor source;
  TensorView view;                                    // [rows, k]; a null view if it is codes
  std::shared_ptr<const weights::CodedMatrix> codes;  // on the CPU: rows are widened one by one
  std::optional<ops::CodeTable> code_table;           // on CUDA
};

// Loads weights by their roles in `list`. Errors: Checkpoint::get()'s for a tensor that is missing or has another
// shape, pack_linear()'s for a type or storage that is not built, kResourceExhausted where the device has too little
// memory. A role that is not in the list is a CHECK failure. On a dry device no tensor is read.
class WeightLoader {
 public:
  // checkpoint: uses the model layer's names (weights/named.h). References must outlive the loader.
  WeightLoader(Device& device, const weights::Checkpoint& checkpoint, const Numerics& numerics,
               const std::vector<Param>& list);

  bool has(const std::string& role) const { return params_.contains(role); }
  Result<Vector> vector(const std::string& role);
  Result<ops::LinearWeight> linear(const std::string& role);
  Result<ops::ExpertWeights> experts(const std::string& role);  // of any stack
  // A matrix as stored, for row look-ups (embeddings): copied only to a device that cannot read the checkpoint's
  // memory.
  Result<Table> table(const std::string& role);

  // Loads into `out` if the list has the role; otherwise `out` stays empty.
  Status optional_vector(const std::string& role, Vector& out);

  Device& device() const { return device_; }
  int64_t packed_bytes() const { return packed_bytes_; }
  // Called with the packed bytes so far after each weight.
  std::function<void(int64_t)> on_packed;

 private:
  // The arguments of pack_*(), read from the checkpoint.
  struct Sources {
    std::vector<weights::SourceTensor> tensors;
    std::vector<ops::WeightRows> rows;  // matrices of codes own theirs
  };
  Result<Table> code_table(const Param& param, const weights::CodeFormat& format);
  Result<Table> widened_table(const Param& param);
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
