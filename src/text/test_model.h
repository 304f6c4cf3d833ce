// Small model folders for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/temp_folder_for_test.h"
#include "text/text.h"

namespace volley::text {

inline constexpr const char* kPocket = "models/pocket";

// A folder with these files (name, contents).
class ModelDir : public TempFolder {
 public:
  explicit ModelDir(const std::map<std::string, std::string>& files) {
    for (const auto& [name, contents] : files) write(name, contents);
  }
};

// A tokenizer.json whose vocabulary is `tokens` with their indices as ids. The first `specials` of them are special.
inline nlohmann::json tokenizer_json(const std::vector<std::string>& tokens, size_t specials, nlohmann::json decoder) {
  nlohmann::json vocab = nlohmann::json::object(), added = nlohmann::json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    vocab[tokens[id]] = id;
    if (id < specials) {
      added.push_back({{"id", id},
                       {"content", tokens[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", std::move(decoder)},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
}

inline std::shared_ptr<const Tokenizer> load_tokenizer(const nlohmann::json& json) {
  const ModelDir dir({{"tokenizer.json", json.dump()}});
  auto tokenizer = Tokenizer::load(dir.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? *tokenizer : nullptr;
}

// How byte-level vocabularies spell raw bytes: printable ones as themselves, the others from U+0100 on.
inline std::string byte_level(std::string_view bytes) {
  std::string out;
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  for (const char c : bytes) {
    const int byte = static_cast<unsigned char>(c);
    int code = byte;
    if (!printable(byte)) {
      code = 256;
      for (int b = 0; b < byte; ++b) code += !printable(b);
    }
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else {
      out += static_cast<char>(0xC0 | (code >> 6));
      out += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return out;
}

// Whether text holds only whole, well-formed sequences (the JSON writer refuses all others).
inline bool is_utf8(const std::string& text) {
  try {
    return !nlohmann::json(text).dump().empty();
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace volley::text
