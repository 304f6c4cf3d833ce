// Names of architectures in GGUF files, and where their tensors hold those of Hugging Face's checkpoints.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/header.h"

namespace volley::gguf {

// An order of rows or columns. In each run of a * b * c from `kept` on, the one at (i * b + j) * c + k is stored at
// (j * a + i) * c + k; those before `kept` are stored in place.
struct Order {
  int64_t kept = 0, a = 1, b = 1, c = 1;

  bool is_plain() const { return a == 1 || b == 1; }
  Order inverse() const { return {kept, b, a, c}; }
  int64_t operator()(int64_t at) const;
};

// How a stored value differs from Hugging Face's.
enum class Change { kNone, kPlusOne, kMinusExp };  // kPlusOne: it is x + 1; kMinusExp: -exp(x)

// A tensor of Hugging Face's checkpoint in a stored tensor.
struct Place {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;    // bytes of the file
  int64_t first_row = 0;          // its row r is stored at rows(first_row + r)
  Order rows = {}, columns = {};  // of the bytes; rows of a vector are its elements
  Change change = Change::kNone;
};

struct Name {
  std::string_view stored, hugging_face;
};

struct Architecture {
  const char* name;                        // general.architecture
  const char* hugging_face;                // config.json "architectures"[0]
  std::span<const Name> layer_names = {};  // beginnings of names that differ from those that architectures share
  bool norms_hold_one = false;             // norm weights are Hugging Face's plus 1
  bool drafts_as_layer = false;            // Hugging Face, too, has what drafts as layers behind the last one
  // Undoes what else the converter did to a tensor: one place becomes those of the tensors in it. Numbers that the
  // metadata lack are 0 in orders.
  void (*arrange)(const File& file, std::vector<Place>& places) = nullptr;
};

// kUnimplemented names an architecture that is not built, and files that hold no language model.
Result<const Architecture*> architecture_of(const File& file);

// The number of layers without those that only draft, which lie behind them; 0 or less if the metadata name none.
int64_t layers_of(const File& file);

// What `tensor` holds: "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight". Tensors of unknown names keep
// them. kDataLoss: a shape contradicts the file's metadata.
Result<std::vector<Place>> places_of(const File& file, const Architecture& architecture, const Tensor& tensor);

}  // namespace volley::gguf
