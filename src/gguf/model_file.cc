#include "gguf/model_file.h"

#include <filesystem>

#include "gguf/config.h"

namespace volley::gguf {

namespace fs = std::filesystem;

bool lies_in_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(path).parent_path(), ignored);
}

Result<std::string> read_model_file(const std::string& path) {
  const std::string name = fs::path(path).filename();
  VOLLEY_ASSIGN(const File file, open_file(fs::path(path).parent_path()));
  if (name == "config.json") return config_json(file);
  if (name == "generation_config.json") return generation_config_json(file);
  if (name == "tokenizer.json") return tokenizer_json(file);
  if (name == "tokenizer_config.json") return tokenizer_config_json(file);
  return not_found(path + " is not what a GGUF file holds.");
}

}  // namespace volley::gguf
