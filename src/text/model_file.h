// Small files, read whole, of a model's folder or of a GGUF file treated as a folder.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>

namespace volley::text {

// The contents of the file, or nothing if it does not exist. kDataLoss: it exists and cannot be read, is no regular
// file, is a Git LFS pointer, or is larger than any such file should be.
Result<std::optional<std::string>> read_model_file(const std::string& path);

// The same for a file DIR/NAME whose content clients can see: a link must stay within the folder or, in a folder of
// Hugging Face's cache, within its repository. kDataLoss otherwise.
Result<std::optional<std::string>> read_own_file(const std::string& dir, const std::string& name);

}  // namespace volley::text
