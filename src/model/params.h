// The one list of a model's tensors. Loading, counting, checking a checkpoint, planning memory and describing a model
// to the cost cache all read it, so that none of them can disagree with another.
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

// Along what a tensor is divided among the ranks of a tensor-parallel group.
enum class Split {
  kNone,     // every rank has all of it
  kOutputs,  // rows, in equal numbers
  kInputs,   // columns, likewise; all parts of a tensor alike
  kVocab,    // rows, as vocabulary_part() (shard.h) says
  kExperts,  // parts, in equal numbers; all parts of a tensor alike
};

// One weight as a device holds it, and the checkpoint's tensors that it is made of.
struct Param {
  enum class Kind {
    kVector,         // fp32, the parts one after the other
    kMatrix,         // packed for products, the parts' rows stacked
    kGateUp,         // the same of two equal parts, in ops::LinearLayout::kGateUp
    kTable,          // as stored, for look-ups of rows
    kExperts,        // packed for grouped products: a part for each expert
    kExpertsGateUp,  // the same, two parts for each expert, gate and up
    kIndex,          // whole numbers that name tokens: int32, and no parameters
  };
  // What a matrix may be stored as in a quantised model.
  enum class Codes {
    kAny,
    kBytes,  // 8 bits at least, and its rows stay as they are: the output head
    kNone,   // a small one that decides: a router, gates
  };
  struct Part {
    std::string name;  // as the Hugging Face layout calls it, without the leading "model."
    int64_t rows = 0;  // of a vector: elements
    Split split = Split::kNone;
    // Which rows of the checkpoint's tensor these are, in their order, as (first, number); empty: all of them.
    std::vector<std::pair<int64_t, int64_t>> ranges = {};
    std::vector<int64_t> stored = {};  // that tensor's shape where it is not [rows, columns], of a vector [rows]
    // Without ranges: rows first, first + step, … of the tensor. transposed: that are its columns; of experts alone.
    int64_t first = 0, step = 1;
    bool transposed = false;
    // For kOutputs: rows that are divided by themselves, one run after the other as they are loaded; empty: one run of
    // all. heads > 0: a run of so many heads, which ranks beyond their number share.
    struct Run {
      int64_t rows = 0, heads = 0;
    };
    std::vector<Run> runs = {};
  };
  std::string role;  // unique in a model: "layers.3.qkv"
  Kind kind = Kind::kMatrix;
  int64_t columns = 0;  // 0: a vector
  std::vector<Part> parts;
  // Its tensors are part of another one as well: it takes memory, but it is no parameter of its own.
  bool again = false;
  Codes codes = Codes::kAny;
  float plus = 0;            // of a vector: added to each element when it is loaded
  int64_t first_column = 0;  // of the checkpoint's tensors, of which it has `columns`

  bool is_matrix() const { return kind == Kind::kMatrix || kind == Kind::kGateUp; }
  bool is_experts() const { return kind == Kind::kExperts || kind == Kind::kExpertsGateUp; }
  // How many there are. REQUIRES: is_experts().
  int64_t experts() const { return std::ssize(parts) / (kind == Kind::kExpertsGateUp ? 2 : 1); }
  int64_t rows() const;
  int64_t elements() const { return rows() * (columns > 0 ? columns : 1); }
  // The checkpoint's shape of a part's tensor.
  std::vector<int64_t> stored_shape(const Part& part) const;
  // The same where it is codes: these are never transposed.
  std::vector<int64_t> coded_shape(const Part& part) const;
  // Whether it has some columns of the checkpoint's tensors. REQUIRES: columns > 0.
  bool cuts_columns() const { return coded_shape(parts[0]).back() != columns; }
};

ops::LinearLayout layout_of(const Param& param);

// The list of a whole model: embedding, layers, final norm, output head.
std::vector<Param> params(const Decoder& spec);
// Its layers and its final norm: what a drafter has that borrows the rest.
std::vector<Param> body_params(const Decoder& spec);
// One layer.
std::vector<Param> layer_params(const Decoder& spec, int layer);
Param embedding_param(const Decoder& spec);
Param head_param(const Decoder& spec);  // of a tied model: the embedding, again

// Appends `more`.
void append(std::vector<Param>& list, std::vector<Param> more);

// Parameters, each counted once.
int64_t count(std::span<const Param> list);

// Whether the checkpoint holds what the list names, in the right shapes, and nothing else that would change results:
// its number of tensors, or an error that names the first that is missing, wrong (kFailedPrecondition, kNotFound) or
// unknown (kUnimplemented). A tied model's own head, tables of rotary frequencies and biases of zeros beside
// matrices of a quantised checkpoint, whose bytes are read, are no such thing.
Result<int64_t> check_tensors(const weights::Checkpoint& checkpoint, std::span<const Param> list);

}  // namespace volley::model
