// An engine that renders and encodes Harmony chats, and answers none.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "serve/formats/harmony.h"
#include "serve/formats/template_engine_for_test.h"

namespace volley::serve {

inline constexpr const char* kHarmonyTemplate = "tests/data/harmony/chat_template.jinja";
inline constexpr TokenId kFirstMark = 256;

inline std::string file_text(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A token is a byte, or a control token of Harmony (some can be missing). A template renders texts.
class HarmonyEngine final : public TemplateEngine {
 public:
  explicit HarmonyEngine(const std::string& source = file_text(kHarmonyTemplate), size_t marks = kHarmonyMarks)
      : TemplateEngine(source), marks_(marks) {}

  Result<std::vector<TokenId>> encode_within(std::string_view text, bool, const EncodeLimits& limits) const override {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      size_t size = 1;
      TokenId id = static_cast<unsigned char>(text.front());
      for (size_t i = 0; i < marks_ && !limits.plain; ++i) {
        if (!text.starts_with(HarmonyTokens::texts()[i])) continue;
        size = HarmonyTokens::texts()[i].size();
        id = kFirstMark + static_cast<TokenId>(i);
      }
      ids.push_back(id);
      text.remove_prefix(size);
    }
    encoded_ += ids.size();
    if (limits.last_tokens > 0 && ids.size() > limits.last_tokens) {
      ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(limits.last_tokens));
    }
    return ids;
  }
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    std::string text;
    for (const TokenId id : ids) {
      if (id < kFirstMark) {
        text += static_cast<char>(id);
      } else if (!skip_special_tokens) {
        text += HarmonyTokens::texts()[static_cast<size_t>(id - kFirstMark)];
      }
    }
    return text;
  }

  size_t encoded() const { return encoded_; }

 private:
  const size_t marks_;
  mutable size_t encoded_ = 0;
};

inline HarmonyTokens harmony_tokens(const Engine& engine) {
  std::string missing;
  return HarmonyTokens::find(engine, missing).value();
}

}  // namespace volley::serve
