// A checkpoint whose tensors are called what the model layer calls them: the names of the Hugging Face layout without a
// leading "model.". The names in a folder's files are described here, as data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/schemes/schemes.h"

namespace volley::weights {

struct NameRules {
  // Tried in order before each name: files of one model have "model.norm.weight" or "norm.weight".
  std::vector<std::string> prefixes = {"model.", ""};
  // Other beginnings of names that some files use, after the prefix.
  struct Alias {
    std::string ours, stored;
  };
  std::vector<Alias> aliases = {};
  // Replacements inside names: some files have "mlp.gate." for "mlp.router.". Each is applied to the result of those
  // before.
  std::vector<Alias> inner = {};
  // Tensors that some files store as one of rank 3. LAYER + folder + stored, [count, parts * rows, columns], stands for
  // LAYER + folder + N + "." + part, [rows, columns], for N from 0 on.
  struct Stack {
    std::string folder, stored;
    std::vector<std::string> parts;
    int64_t count = 0;
  };
  std::vector<Stack> stacks = {};
  // Tensors that are copies of another folder's: they are never read, and names() leaves them out.
  std::vector<std::string> copies = {};
  // Unused parts of the files: names() leaves out names that begin so (after the prefix).
  struct Skipped {
    std::string begins, what;  // what: for people, "vision"
  };
  std::vector<Skipped> skipped = {};
  // How the files' matrices are quantised; null: not at all.
  std::shared_ptr<const Quantisation> quantisation = {};
};

// A view of `files` by those names. With NameRules::quantisation, matrices that are codes are found under the name that
// their plain weights would have ("…q_proj.weight"), and names() leaves out their scales and other side tensors.
//
std::shared_ptr<const Checkpoint> with_names(std::shared_ptr<const Checkpoint> files, NameRules rules);

}  // namespace volley::weights
