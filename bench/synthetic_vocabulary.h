// A byte-level BPE tokenizer with as many tokens as asked for, made up: words of syllables with and without a space
// before them, numbers, punctuation as code and JSON have it, and characters of several bytes.
#pragma once

#include <cstdint>
#include <string>

namespace volley::bench {

// The contents of a tokenizer.json. Equal arguments give equal files.
std::string synthetic_tokenizer(int32_t tokens);

}  // namespace volley::bench
