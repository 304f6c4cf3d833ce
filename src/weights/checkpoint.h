// Named tensors of a checkpoint, wherever they come from.
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

// What a file's header says of a tensor.
struct TensorInfo {
  std::string dtype;  // as the file spells it: "BF16", "F8_E4M3"
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
};

// How a matrix is stored whose values are codes times scales.
struct CodeFormat {
  DType code = DType::kF8E4M3;  // kF8E4M3, kF4E2M1 or kI4
  int32_t group = 0;            // columns of a row that share a scale; 0: all
  int32_t block_rows = 1;       // with a group: rows that share scales, from a multiple of this on
  bool zeros = false;           // groups have zero points
  bool scattered = false;       // columns of a group lie anywhere
  std::string name = {};        // for people
  int64_t bytes = 0;            // in the file, scales included

  // Whether products take them alike.
  bool agrees_with(const CodeFormat& other) const {
    return code == other.code && group == other.group && block_rows == other.block_rows && zeros == other.zeros &&
           scattered == other.scattered;
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
  // A tensor of `count` whole numbers (I64, I32, U8 or BOOL), which maps between vocabularies have. Errors as get()'s.
  virtual Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const = 0;
  // Its errors that need no bytes.
  virtual Status check_integers(std::string_view name, int64_t count) const = 0;
  // A tensor of any dtype as it lies in the file; no value where there is none.
  virtual std::optional<TensorInfo> info(std::string_view name) const { return std::nullopt; }
  // `count` of its bytes from `first` on, as a tensor of kU8. REQUIRES: they lie within it.
  virtual Result<SourceTensor> bytes(std::string_view name, uint64_t first, uint64_t count) const;
  // How the matrix of that name and shape is stored where its values are codes; no value where they are plain. Errors
  // name what is missing (kNotFound), wrong (kFailedPrecondition) or not built (kUnimplemented). Needs no bytes.
  virtual Result<std::optional<CodeFormat>> code_format(std::string_view name, std::span<const int64_t> shape) const {
    return std::optional<CodeFormat>();
  }
  // That matrix. REQUIRES: code_format() has a value.
  virtual Result<std::shared_ptr<const CodedMatrix>> coded(std::string_view name, std::span<const int64_t> shape) const;
  // What its matrices are quantised to, as its files call it; empty where nothing is.
  virtual std::string quantisation() const { return {}; }
  // The dtype most of its bytes have: decides ComputeType::kAuto.
  virtual DType main_dtype() const = 0;
  // What that tensor is stored as; kBF16 where there is none, or one that cannot be read, as get() will say.
  virtual DType dtype_of(std::string_view name) const { return DType::kBF16; }
  // Whether the bytes that get() hands out take memory of their own, as those of a mapped file do not.
  virtual bool takes_memory() const { return false; }
  // All names that it holds; empty for one that makes up whatever it is asked for.
  virtual std::vector<std::string> names() const { return {}; }
  // What names it in messages: the file that lists its tensors.
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

// Random weights of any name and shape, bf16, for measuring: normal with standard deviation 1 / sqrt(last dimension),
// norm weights (rank 1) all one. The same seed, name and shape give the same values.
std::unique_ptr<Checkpoint> make_dummy_checkpoint(uint64_t seed);

}  // namespace volley::weights
