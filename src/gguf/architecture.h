// Names of architectures in GGUF files, and of their tensors in terms of Hugging Face's checkpoints.
#pragma once

#include <string>
#include <string_view>

#include "gguf/header.h"

namespace volley::gguf {

struct Architecture {
  const char* name;          // general.architecture
  const char* hugging_face;  // config.json "architectures"[0]
  // In each head's rows of q and k, rows that rotate together lie side by side: row 2i + s is Hugging Face's row s *
  // d/2 + i.
  bool pairs_rows = false;
  bool norms_hold_one = false;  // norm weights are Hugging Face's plus 1
};

// kUnimplemented names an architecture that is not built, and files that hold no language model.
Result<const Architecture*> architecture_of(const File& file);

// "blk.3.attn_q.weight" becomes "model.layers.3.self_attn.q_proj.weight"; names that are unknown stay as they are.
// Experts of a layer are one tensor here: its name has a '*' where the expert's number goes.
std::string hugging_face_name(const Architecture& architecture, std::string_view stored);

}  // namespace volley::gguf
