// Formats for tests, by name.
#pragma once

#include <gtest/gtest.h>
#include <volley/engine.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/formats/answer_format.h"

namespace volley::serve {

// Answers no request. Each listed marker is one token, and every chat renders as `rendered`.
class SilentEngine : public Engine {
 public:
  explicit SilentEngine(std::vector<std::string> tokens = {}, std::string rendered = {})
      : tokens_(std::move(tokens)), rendered_(std::move(rendered)) {}

  Result<std::string> render_chat(const ChatMessages&) const override { return rendered_; }
  Result<std::vector<TokenId>> encode_within(std::string_view text, bool, const EncodeLimits&) const override {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i] == text) return std::vector<TokenId>{static_cast<TokenId>(i)};
    }
    return std::vector<TokenId>(text.size(), 0);
  }
  std::string decode(std::span<const TokenId> ids, bool) const override {
    return tokens_.at(static_cast<size_t>(ids.front()));
  }

  Result<RequestId> submit(GenerateRequest, EventSink) override { return internal_error("not asked for"); }
  bool compiles(const GrammarSpec&) const override { return false; }
  Result<std::vector<std::string>> check_grammar(const GenerateRequest&) const override {
    return std::vector<std::string>();
  }
  void cancel(RequestId) override {}
  Status set_verify(const VerifyPolicy&) override { return {}; }
  void set_target_step_ms(int) override {}
  void drop_prefix_cache() override {}
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override { return {}; }

 private:
  std::vector<std::string> tokens_;
  std::string rendered_;
  EngineInfo info_;
};

inline OutputFormat format_of(const Engine& engine, std::string_view tools = "auto",
                              std::string_view reasoning = "auto") {
  auto format = find_output_format(engine, tools, reasoning);
  EXPECT_TRUE(format.ok()) << format.error().message;
  return format.ok() ? *format : OutputFormat{};
}

// The format for a model without further facts.
inline OutputFormat format_named(std::string_view name) {
  return format_of(SilentEngine(), name, "none");
}
inline std::shared_ptr<const AnswerFormat> answers_named(std::string_view name) {
  return format_named(name).answers;
}

}  // namespace volley::serve
