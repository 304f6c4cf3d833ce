// An engine that renders and encodes chats in Harmony, and answers none.
#pragma once

#include <gtest/gtest.h>
#include <volley/engine.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "serve/harmony.h"
#include "serve/output_format.h"
#include "text/test_model.h"
#include "text/text.h"

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

// A token is a byte, or a control token of Harmony (some can be missing); texts are rendered with a template.
class HarmonyEngine final : public Engine {
 public:
  explicit HarmonyEngine(const std::string& source = file_text(kHarmonyTemplate), size_t marks = kHarmonyMarks)
      : marks_(marks) {
    const text::ModelDir dir({{"chat_template.jinja", source}});
    template_ = text::ChatTemplate::load(dir.path()).value();
  }

  Result<std::string> render_chat(const ChatMessages& chat) const override {
    return template_->render({.messages_json = chat.messages_json,
                              .tools_json = chat.tools_json,
                              .kwargs_json = chat.template_kwargs_json,
                              .add_generation_prompt = chat.add_generation_prompt,
                              .continue_final_message = chat.continue_final_message});
  }
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

  Result<RequestId> submit(GenerateRequest, EventSink) override { return internal_error("not asked for"); }
  bool compiles(const GrammarSpec&) const override { return false; }
  void cancel(RequestId) noexcept override {}
  Status set_verify(const VerifyPolicy&) override { return {}; }
  void set_target_step_ms(int) override {}
  void drop_prefix_cache() override {}
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override { return {}; }
  size_t encoded() const { return encoded_; }

 private:
  const size_t marks_;
  mutable size_t encoded_ = 0;
  std::shared_ptr<const text::ChatTemplate> template_;
  EngineInfo info_;
};

inline OutputFormat format_of(const Engine& engine, const char* tools = "auto", const char* reasoning = "auto") {
  auto format = find_output_format(engine, tools, reasoning);
  EXPECT_TRUE(format.ok()) << format.error().message;
  return format.ok() ? *format : OutputFormat{};
}

}  // namespace volley::serve
