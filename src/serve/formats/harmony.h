// Harmony: an answer is messages, each a head and a body between control tokens.
//
//   <|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"a": 1}<|call|>
//
// The prompt ends with the first message's "<|start|>assistant". Bodies on the channel "analysis" are reasoning; a
// recipient ("to=…", anywhere in the head) makes a call; all else is content. Where calls are not told from text, a
// call is text of its channel. Messages by others than the assistant, such as tools, are no part of the answer. Only
// its id makes a control token: the same characters in other tokens are text.
//
// Outputs may break the form. Inside a body <|start|> and <|channel|> end it; <|message|> and <|constrain|> mean
// nothing. Text in a head's place that cannot be a head is content, with every character. A head after a control token
// may have line ends for spaces; if <|message|> never comes, a single line is dropped, and several lines are content.
// Source: the format's published description and the package openai-harmony.
#pragma once

#include <volley/engine.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "serve/formats/answer_format.h"

namespace volley::serve {

enum class HarmonyMark { kStart, kMessage, kChannel, kConstrain, kEnd, kReturn, kCall };
inline constexpr size_t kHarmonyMarks = 7;

// The control tokens by their marks; each is one id.
class HarmonyTokens {
 public:
  // Nothing if the vocabulary lacks one, which `missing` then names.
  static std::optional<HarmonyTokens> find(const Engine& engine, std::string& missing);

  explicit HarmonyTokens(const std::array<TokenId, kHarmonyMarks>& ids) : ids_(ids) {}

  std::optional<HarmonyMark> mark_of(TokenId token) const;
  TokenId id_of(HarmonyMark mark) const { return ids_[static_cast<size_t>(mark)]; }
  std::span<const TokenId> ids() const { return ids_; }
  static std::string_view text_of(HarmonyMark mark);
  static std::span<const std::string_view> texts();

 private:
  std::array<TokenId, kHarmonyMarks> ids_;
};

// preambles: the chat template takes content beside thoughts and a call.
std::shared_ptr<const AnswerFormat> harmony_answers(const HarmonyTokens& tokens, bool preambles);

}  // namespace volley::serve
