// The one list of a model's tensors. Loading, counting, checking a checkpoint, planning memory and describing a model
// to the cost cache all read this list, so they cannot disagree.
#pragma once

#include <volley/result.h>

#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/spec.h"
#include "ops/linear/linear.h"
#include "weights/checkpoint.h"

namespace volley::model {

// How a tensor is divided among the ranks of a tensor-parallel group.
enum class Split {
  kNone,     // every rank has all of it
  kOutputs,  // rows, in equal numbers
  kInputs,   // columns, in equal numbers; all parts of a tensor alike
  kVocab,    // rows, as vocabulary_part() (shard.h) says
  kExperts,  // parts, in equal numbers; all parts of a tensor alike
};

// One weight as a device holds it, and the checkpoint's tensors that it is made of.
struct Param {
  enum class Kind {
    kVector,         // fp32, the parts one after the other
    kMatrix,         // packed for products, the parts' rows stacked
    kGateUp,         // the same of two equal parts, in ops::LinearLayout::kGateUp
    kTable,          // rows as stored, for look-ups
    kExperts,        // packed for grouped products: a part for each expert
    kExpertsGateUp,  // packed for grouped products: two parts for each expert, gate and up
    kHeads,          // packed for ops::head_linear(): a part for each head
    kIndex,          // whole numbers that name tokens: int32, not counted as parameters
  };
  // The storage that a quantised model may use for a matrix.
  enum class Codes {
    kAny,
    kBytes,  // at least 8 bits, rows in the checkpoint's order: the output head
    kNone,   // a small matrix that decides: a router, gates; a table that kernels read as values
  };
  struct Part {
    std::string name;  // as the Hugging Face layout calls it, without the leading "model."
    int64_t rows = 0;  // elements of a vector
    Split split = Split::kNone;
    // The rows of the checkpoint's tensor that this part takes, in order, as (first, number); empty: all rows.
    std::vector<std::pair<int64_t, int64_t>> ranges = {};
    std::vector<int64_t> stored = {};  // the tensor's shape, if not [rows, columns], or [rows] for a vector
    // Without ranges: rows first, first + step, … of the tensor. transposed: these are columns of the tensor (experts
    // only).
    int64_t first = 0, step = 1;
    bool transposed = false;
    bool codes_too = false;    // whether codes of the tensor are transposed, too; they are widened
    int64_t first_column = 0;  // of this part, beside Param::first_column
    // For kOutputs: runs of rows in load order, each divided among the ranks by itself; empty: one run of all rows.
    // heads > 0: a run of so many heads; ranks beyond their number share heads.
    struct Run {
      int64_t rows = 0, heads = 0;
    };
    std::vector<Run> runs = {};
  };
  std::string role;  // unique in a model: "layers.3.qkv"
  Kind kind = Kind::kMatrix;
  int64_t columns = 0;  // 0: a vector
  std::vector<Part> parts;
  bool again = false;  // a copy of tensors in another parameter: counts as memory, not as parameters
  Codes codes = Codes::kAny;
  float plus = 0, times = 1;  // added to each element of a vector when it is loaded, and then its factor
  int64_t first_column = 0;   // the first column taken from the checkpoint's tensor, which has more than `columns`

  // A table that kernels read as values, whatever the checkpoint has.
  bool is_value_table() const { return kind == Kind::kTable && codes == Codes::kNone; }
  bool is_matrix() const { return kind == Kind::kMatrix || kind == Kind::kGateUp; }
  bool is_experts() const { return kind == Kind::kExperts || kind == Kind::kExpertsGateUp; }
  // Several matrices of one shape.
  bool is_stack() const { return is_experts() || kind == Kind::kHeads; }
  // How many there are. REQUIRES: is_stack().
  int64_t experts() const { return std::ssize(parts) / (kind == Kind::kExpertsGateUp ? 2 : 1); }
  int64_t rows() const;
  int64_t elements() const { return rows() * (columns > 0 ? columns : 1); }
  // The shape of a part's tensor in the checkpoint.
  std::vector<int64_t> stored_shape(const Part& part) const;
  // The same for codes, which are not transposed without Part::codes_too.
  std::vector<int64_t> coded_shape(const Part& part) const;
  // Whether the part takes only some columns of the checkpoint's tensor. REQUIRES: columns > 0.
  bool cuts_columns() const { return width_of(coded_shape(parts[0])) != columns; }
  // Columns of a tensor of this shape, whose first dimension is its rows.
  static int64_t width_of(std::span<const int64_t> shape);
};

ops::LinearLayout layout_of(const Param& param);

// The list of a whole model: embedding, layers, final norm, output head.
std::vector<Param> params(const Decoder& spec);
// The list of the layers and the final norm: a drafter that borrows embedding and head has only these.
std::vector<Param> body_params(const Decoder& spec);
std::vector<Param> layer_params(const Decoder& spec, int layer);
Param embedding_param(const Decoder& spec);
Param head_param(const Decoder& spec);  // a tied model's head: the embedding again

void append(std::vector<Param>& list, std::vector<Param> more);

// Parameters, each counted once.
int64_t count(std::span<const Param> list);

// Checks that the checkpoint holds the listed tensors, in the right shapes, and nothing else that would change results.
// Returns the checkpoint's number of tensors, or an error that names the first tensor that is missing, wrong
// (kFailedPrecondition, kNotFound) or unknown (kUnimplemented). Allowed beside the list: a tied model's own head
// (model/output_head.h), tables that are computed anyway, and biases beside quantised matrices if they are all zero,
// for which their bytes are read.
Result<int64_t> check_tensors(const weights::Checkpoint& checkpoint, std::span<const Param> list);

}  // namespace volley::model
