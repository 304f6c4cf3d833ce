// Named tensors of a checkpoint, whatever its source.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/dtype.h"

namespace volley::weights {

// One tensor's bytes as stored: row-major, little-endian. `owner` keeps `data` alive. `data` is aligned to the dtype's
// size.
struct SourceTensor {
  const std::byte* data = nullptr;
  DType dtype = DType::kBF16;  // kBF16, kF16 or kF32
  std::vector<int64_t> shape;
  std::shared_ptr<const void> owner;
};

// A tensor as its file's header describes it.
struct TensorInfo {
  std::string dtype;  // as the file spells it: "BF16", "F8_E4M3"
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
};

// How a matrix is stored if its values are codes times scales.
struct CodeFormat {
  DType code = DType::kF8E4M3;  // kF8E4M3, kF4E2M1, kI8, kI6 or kI4; kF32: other codes, which are only widened
  int32_t group = 0;            // columns of a row that share a scale; 0: all columns
  int32_t block_rows = 1;       // with a group: rows per scale block; blocks start at multiples of it
  bool zeros = false;           // groups have zero points
  bool minimums = false;        // groups have minimums, which are added to codes times scale
  bool halves = false;          // with minimums: they and the scales are values of fp16
  bool scattered = false;       // columns of a group lie anywhere
  std::string name = {};        // for people
  int64_t bytes = 0;            // in the file, scales included

  // Whether products treat the two formats alike.
  bool agrees_with(const CodeFormat& other) const {
    return code == other.code && group == other.group && block_rows == other.block_rows && zeros == other.zeros &&
           minimums == other.minimums && halves == other.halves && scattered == other.scattered;
  }
};
class CodedMatrix;  // weights/coded.h

// Threads: const functions from any thread.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual bool has(std::string_view name) const = 0;
  // The tensor of that name, which must have that shape. kNotFound and kFailedPrecondition name tensor, file and
  // shapes. kDataLoss: its bytes cannot be read.
  virtual Result<SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const = 0;
  // The elements from `first` on of a tensor of shape `whole`, as a tensor of shape `shape`. Errors as get()'s.
  // REQUIRES: they lie within the tensor.
  virtual Result<SourceTensor> get_part(std::string_view name, std::span<const int64_t> whole, int64_t first,
                                        std::span<const int64_t> shape) const = 0;
  // The errors of get() that need no bytes.
  virtual Status check(std::string_view name, std::span<const int64_t> shape) const = 0;
  // A tensor of `count` whole numbers (I64, I32, U8 or BOOL), such as maps between vocabularies. Errors as get()'s.
  virtual Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const = 0;
  // The errors of the call above that need no bytes.
  virtual Status check_integers(std::string_view name, int64_t count) const = 0;
  // A tensor of any dtype as it lies in the file; no value if it is missing.
  virtual std::optional<TensorInfo> info(std::string_view name) const { return std::nullopt; }
  // `count` bytes of that tensor from `first` on, as a tensor of kU8. REQUIRES: they lie within it.
  virtual Result<SourceTensor> bytes(std::string_view name, uint64_t first, uint64_t count) const;
  // The code format of the matrix of that name and shape; no value for a plain one. Errors name a tensor that is
  // missing (kNotFound) or wrong (kFailedPrecondition), or a format that is not built (kUnimplemented). Reads no bytes
  // of tensors.
  virtual Result<std::optional<CodeFormat>> code_format(std::string_view name, std::span<const int64_t> shape) const {
    return std::optional<CodeFormat>();
  }
  // Reads that matrix. REQUIRES: code_format() has a value.
  virtual Result<std::shared_ptr<const CodedMatrix>> coded(std::string_view name, std::span<const int64_t> shape) const;
  // The files' name for the matrices' quantisation; empty if they are plain.
  virtual std::string quantisation() const { return {}; }
  // The dtype most of its bytes have: decides ComputeType::kAuto.
  virtual DType main_dtype() const = 0;
  // The stored dtype of that tensor; kBF16 if it is missing or unreadable, which get() then reports.
  virtual DType dtype_of(std::string_view name) const { return DType::kBF16; }
  // Whether the bytes from get() take memory of their own; those of a mapped file do not.
  virtual bool takes_memory() const { return false; }
  // All names of the checkpoint; empty for one that makes up any tensor that is asked for.
  virtual std::vector<std::string> names() const { return {}; }
  // The checkpoint's name in messages: the file that lists its tensors.
  virtual std::string origin() const { return "The checkpoint"; }
  // The tensor was packed and will not be read again soon: its pages may be dropped from memory.
  virtual void done_with(const SourceTensor& tensor) const {}
};

// How the bytes of weight files are reached. kMap: mapped, so that they take no memory of their own, and a file that
// is cut short meanwhile ends the process (weights/mapped_file.h). kRead: get() reads a tensor into memory.
enum class FileAccess { kMap, kRead };

// A folder with model.safetensors, or model.safetensors.index.json and its shards (format: github.com/huggingface/
// safetensors). Every header is checked before any tensor is handed out: sizes, overlaps, offsets, dtypes, shapes.
// kDataLoss for a file that lies or is cut short.
Result<std::unique_ptr<Checkpoint>> open_safetensors(const std::string& dir, FileAccess access = FileAccess::kMap);

// A GGUF file, or the first of a model's parts (gguf/header.h). Its tensors have the names, shapes and order of rows of
// the same model's safetensors; blocks are codes (code_format()) or, asked for by get(), fp32 values.
Result<std::unique_ptr<Checkpoint>> open_gguf(const std::string& path, FileAccess access = FileAccess::kMap);

// Opens either: a file is read as GGUF, a folder as safetensors.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& model, FileAccess access = FileAccess::kMap);

// Random weights of any name and shape, bf16, for measuring: normal with standard deviation 1 / sqrt(last dimension),
// norm weights (rank 1) all one. The same seed, name and shape give the same values.
std::unique_ptr<Checkpoint> make_dummy_checkpoint(uint64_t seed);

}  // namespace volley::weights
