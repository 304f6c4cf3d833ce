// How the files of quantised checkpoints hold a matrix: which tensors are its codes, scales and zero points, and in
// what layout. That a matrix is quantised, its tensors say; lists of modules that a config.json leaves alone only
// repeat it.
//
//   FP8        M.weight F8_E4M3 [n, k], M.weight_scale_inv or M.weight_scale: one, one a row, or one a block
//   integers   M.weight_packed I32 [n, k / 8], M.weight_scale [n, groups], M.weight_zero_point I32 [n / 8, groups]
//              (compressed-tensors); M.qweight I32 [k / 8, n] (GPTQ) or [k, n / 8] (AWQ), M.scales, M.qzeros, M.g_idx
//   FP4        M.weight_packed or M.weight U8 [n, k / 2], M.weight_scale e8m0 or e4m3 [n, k / group], and with e4m3
//              M.weight_global_scale (divides) or M.weight_scale_2 (multiplies)
//   of experts that lie in one tensor T [experts, n, k]: T_scale_inv; or T_blocks [experts, n, k / 32, 16], T_scales
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weights/coded.h"

namespace volley::weights {

// What quantization_config says that tensors do not.
struct Quantisation {
  enum class Integers { kPacked, kAwq, kGptq };

  std::string name;                           // for people: "fp8", "gptq"; empty: matrices are plain
  int32_t block_rows = 0, block_columns = 0;  // of FP8 in blocks; 0: there are none
  std::vector<int32_t> groups = {};           // columns of a group of integers; what M's shapes choose from
  Integers integers = Integers::kPacked;
  bool act_order = false;       // GPTQ: columns of a group may lie anywhere, as M.g_idx says
  bool zeros_less_one = false;  // zero points are stored less 1 (the first format of GPTQ)
  std::string kv_format = {};   // for people: what scales of keys and values are for; empty: e4m3
};

// Where a matrix [rows, columns] lies in the files.
struct CodeSite {
  std::string module;  // its tensors' names without ".weight"; of a stack the whole tensor's name
  bool stacked = false;
  int64_t count = 1, parts = 1;  // of a stack: matrices that it is of, each of so many parts
  int64_t index = 0;             // among its count * parts
  int64_t rows = 0, columns = 0;
};

struct Codes {
  CodeFormat format;
  std::function<Result<std::shared_ptr<const CodedMatrix>>()> open;
};

// The codes of that matrix; no value where it is plain, or missing. Errors as Checkpoint::code_format().
Result<std::optional<Codes>> find_codes(std::shared_ptr<const Checkpoint> files, const Quantisation& quantisation,
                                        const CodeSite& site);

// Whether the files have codes under another name than `weight`, in its place.
bool has_codes(const Checkpoint& files, const std::string& weight);
// Names of codes become those of the weights that they stand for; those of scales and the like go.
void keep_weights_alone(std::vector<std::string>& names);

}  // namespace volley::weights
