// A checkpoint whose tensors are called what the model layer calls them: the names of the Hugging Face layout without a
// leading "model.". What a folder's files call them is said here, as data.
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
  // Other beginnings that some files give to names, after the prefix.
  struct Alias {
    std::string ours, stored;
  };
  std::vector<Alias> aliases = {};
  // What these files call parts inside of names: "mlp.gate." is "mlp.router." in some.
  std::vector<Alias> inner = {};
  // Tensors that some files hold as one of rank 3: LAYER + folder + stored, [count, parts * rows, columns], is what
  // other files have as LAYER + folder + N + "." + part, [rows, columns], for N from 0 on.
  struct Stack {
    std::string folder, stored;
    std::vector<std::string> parts;
    int64_t count = 0;
  };
  std::vector<Stack> stacks = {};
  // Tensors that are copies of another folder's: nobody reads them here, and names() leaves them out.
  std::vector<std::string> copies = {};
  // Parts of the files that nobody reads here: names() leaves out what begins so (after the prefix).
  struct Skipped {
    std::string begins, what;  // what: for people, "vision"
  };
  std::vector<Skipped> skipped = {};
  // How the files' matrices are quantised; null: they are not.
  std::shared_ptr<const Quantisation> quantisation = {};
};

// A view of `files` by those names. With NameRules::quantisation, matrices that are codes are found under the name that
// their plain weights would have ("…q_proj.weight"), and names() leaves out what belongs to them (scales).
//
std::shared_ptr<const Checkpoint> with_names(std::shared_ptr<const Checkpoint> files, NameRules rules);

}  // namespace volley::weights
