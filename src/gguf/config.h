// The small files of a Hugging Face folder, made of a GGUF file's metadata.
#pragma once

#include <string>

#include "gguf/header.h"

namespace volley::gguf {

// config.json. Errors as architecture_of(); kDataLoss: a value is missing; kUnimplemented: an unread value may change
// results.
Result<std::string> config_json(const File& file);
// generation_config.json: the ids that end an answer, and the sampling that the makers recommend.
std::string generation_config_json(const File& file);

// tokenizer.json. kUnimplemented: a tokenizer of another kind.
Result<std::string> tokenizer_json(const File& file);
// The same of Kimi's tokenizer, which its folders have as a file of tiktoken. config: tokenizer_config.json, which
// names some of the 256 special tokens behind the others.
Result<std::string> tiktoken_json(const std::string& path, std::string_view file, std::string_view config);
// tokenizer_config.json: special tokens and the chat template.
std::string tokenizer_config_json(const File& file);

}  // namespace volley::gguf
