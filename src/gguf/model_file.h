// A GGUF file read as the folder that it stands for: FILE.gguf/config.json and so on.
#pragma once

#include <volley/result.h>

#include <string>

namespace volley::gguf {

// Whether `path` is FILE.gguf/NAME, a name inside a GGUF file instead of a folder.
bool lies_in_file(const std::string& path);

// The content of FILE/NAME as it would be in a folder. kNotFound where a folder made of the file would not have it.
// Errors as open_file() and gguf/config.h. REQUIRES: lies_in_file(path).
Result<std::string> read_model_file(const std::string& path);

}  // namespace volley::gguf
