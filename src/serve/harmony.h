// Harmony: an answer is messages, each a head and a body between control tokens.
//
//   <|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"a": 1}<|call|>
//
// The prompt ends with the first message's "<|start|>assistant". Bodies on the channel "analysis" are reasoning; a
// recipient ("to=…", in any part of the head) makes a call; all else is content. Where calls are not told from text,
// theirs is text of their channel. Messages by others than the assistant, such as tools, are no part of the answer. A
// control token is one by its id alone: the same characters in other tokens are text.
//
// Outputs that are not quite in the form: <|start|> or <|channel|> within a body ends it, <|message|> and <|constrain|>
// there mean nothing. Text where a head should be, and that cannot be one, is content, with every character. A head
// that control tokens began may have line ends for spaces; if <|message|> never comes, one in a single line is no text,
// and several lines are content. Source: the format's published description and the package openai-harmony.
#pragma once

#include <volley/engine.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "serve/output_parser.h"

namespace volley::serve {

// The tokens by their marks. Each is one id.
class HarmonyTokens {
 public:
  // Nothing if the vocabulary lacks one; `missing` then names it.
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

// Where a text in this form stands: reads heads, and says what the text of bodies is. A value: copies go on
// independently.
class HarmonyReader {
 public:
  enum class Part {
    kHead,       // none that is shown
    kReasoning,  // the body of a message on the channel "analysis"
    kContent,
    kCall,   // a call's arguments
    kOther,  // a message that is not the assistant's
  };

  HarmonyReader() = default;  // between two messages
  // Where an output stands that follows this prompt.
  static HarmonyReader after(const Engine& engine, const HarmonyTokens& tokens, std::span<const TokenId> prompt);

  // Text up to the next mark. What is returned is text of part(): all of it in a body; in a head nothing, until it
  // shows that it is none, and then what was held.
  std::string text(std::string_view text);
  // Returns what was held for a head and is content instead: message() is then that content's.
  std::string mark(HarmonyMark mark);
  // The output ends here; returns as mark() does.
  std::string finish();

  Part part() const { return part_; }
  // Whether the text of part() is shown as thoughts. calls: calls are told from text.
  bool is_reasoning(bool calls) const;
  // Whom a call is for, without "functions.".
  const std::string& recipient() const { return recipient_; }
  int message() const { return message_; }  // counts bodies; equal numbers are one message

 private:
  enum class Place { kBetween, kAuthor, kChannel, kConstraint };

  bool may_be_head() const;
  void end_segment();
  void begin_body(Part part);
  void begin_head(Place place);
  std::string give_up();

  Part part_ = Part::kHead;
  Place place_ = Place::kBetween;  // in a head: the segment that is being read
  std::string segment_;
  size_t of_prompt_ = 0;  // bytes of the segment that the prompt brought: never given back
  bool foreign_ = false;
  std::string channel_, recipient_;
  int message_ = 0;
};

// REQUIRES: options.harmony.
std::unique_ptr<OutputStage> harmony_stage(const OutputParser::Options& options);

// Counts the tokens of reasoning bodies. calls: as of HarmonyReader::is_reasoning().
class HarmonyCounter {
 public:
  HarmonyCounter(HarmonyTokens tokens, HarmonyReader start, bool calls)
      : tokens_(tokens), reader_(std::move(start)), calls_(calls) {}

  // `text`: of the token by itself; asked for in heads alone.
  template <class Text>
  void push(TokenId token, const Text& text) {
    if (const auto mark = tokens_.mark_of(token)) {
      reader_.mark(*mark);
    } else if (reader_.is_reasoning(calls_)) {
      ++count_;
    } else if (reader_.part() == HarmonyReader::Part::kHead) {
      reader_.text(text(token));
    }
  }
  int64_t tokens() const { return count_; }

 private:
  HarmonyTokens tokens_;
  HarmonyReader reader_;
  bool calls_;
  int64_t count_ = 0;
};

// As ReasoningStart, where a prompt ends.
ReasoningStart reasoning_start(const HarmonyReader& start);
// A request for such a text, and how it is read: stop strings count in content; <|return|> and <|call|> end the turn,
// whatever the checkpoint's files list. start: where the prompt ends. reasoning: is told from content. The request's
// grammar is the final one (after_reasoning()), or there is none.
void plan_harmony(const HarmonyTokens& tokens, std::shared_ptr<const HarmonyReader> start, bool reasoning,
                  GenerateRequest& request, OutputParser::Options& options);

}  // namespace volley::serve
