// How the files of quantised checkpoints hold a matrix: which tensors are its codes, scales and zero points, and in
// what layout. The tensors themselves show whether a matrix is quantised; a config.json's list of plain modules only
// repeats it.
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

// The facts of quantization_config that tensors do not show.
struct Quantisation {
  enum class Integers { kPacked, kAwq, kGptq };

  std::string name;                           // for people: "fp8", "gptq"; empty: matrices are plain
  int32_t block_rows = 0, block_columns = 0;  // block size of FP8 in blocks; 0: no blocks
  std::vector<int32_t> groups = {};           // columns of a group of integers, where M's shapes allow several
  Integers integers = Integers::kPacked;
  bool act_order = false;       // GPTQ: columns of a group may lie anywhere, as M.g_idx says
  bool zeros_less_one = false;  // zero points are stored less 1 (the first format of GPTQ)
  std::string kv_format = {};   // for people: the type that scales of keys and values are for; empty: e4m3
};

// The place of a matrix [rows, columns] in the files.
struct CodeSite {
  std::string module;  // its tensors' names without ".weight"; of a stack the whole tensor's name
  bool stacked = false;
  int64_t count = 1, parts = 1;  // for a stack: its number of matrices, and the parts of each
  int64_t index = 0;             // index among its count * parts
  int64_t rows = 0, columns = 0;
};

struct Codes {
  CodeFormat format;
  std::function<Result<std::shared_ptr<const CodedMatrix>>()> open;
};

// The codes of that matrix; no value if it is plain or missing. Errors as Checkpoint::code_format().
Result<std::optional<Codes>> find_codes(std::shared_ptr<const Checkpoint> files, const Quantisation& quantisation,
                                        const CodeSite& site);

// Whether the files have codes in place of `weight`, under another name.
bool has_codes(const Checkpoint& files, const std::string& weight);
// Replaces names of codes by those of the weights that they stand for, and removes those of scales and the like.
void keep_weights_alone(std::vector<std::string>& names);

}  // namespace volley::weights
