// A Harmony answer's text is its content, however events cut it, with its thoughts beside it.
#include "apps/generate/answer_parts.h"

#include <gtest/gtest.h>

#include "serve/formats/harmony.h"

namespace volley::apps {
namespace {

using serve::HarmonyMark;

constexpr std::array<TokenId, serve::kHarmonyMarks> kIds = {100, 101, 102, 103, 104, 105, 106};

serve::OutputParser::Options parts() {
  return {serve::harmony_answers(serve::HarmonyTokens(kIds), true), serve::ReasoningStart::kClosed};
}

TokenId id_of(HarmonyMark mark) {
  return kIds[static_cast<size_t>(mark)];
}

// "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>It is 42."
Completion answer() {
  Completion completion;
  const auto add = [&](HarmonyMark mark, const char* text) {
    completion.marks.push_back({id_of(mark), completion.text.size()});
    completion.text += text;
  };
  add(HarmonyMark::kChannel, "analysis");
  add(HarmonyMark::kMessage, "Let me see.");
  add(HarmonyMark::kEnd, "");
  add(HarmonyMark::kStart, "assistant");
  add(HarmonyMark::kChannel, "final");
  add(HarmonyMark::kMessage, "It is 42.");
  return completion;
}

TEST(AnswerParts, ContentIsTheText) {
  Completion completion = answer();
  separate(parts(), completion);
  EXPECT_EQ(completion.text, "It is 42.");
  EXPECT_EQ(completion.reasoning, "Let me see.");
}

TEST(AnswerParts, EventsGiveTheSame) {
  const Completion whole = answer();
  serve::OutputParser parser(parts());
  TokenColours colours([](std::span<const TokenId>) { return std::string(); });
  std::string content, reasoning;
  const auto show = [&](const serve::OutputDelta& delta, TokenColours::Origin) {
    content += delta.content();
    reasoning += delta.reasoning();
  };
  for (size_t at = 0; at <= whole.text.size(); ++at) {  // one byte an event
    Event event;
    event.text = whole.text.substr(at, 1);
    for (const Event::Mark& mark : whole.marks) {
      if (mark.at == at) event.marks.push_back({mark.token, 0});
    }
    parse_event(event, colours, parser, show);
  }
  show(parser.finish(), TokenColours::Origin::kUnknown);
  EXPECT_EQ(content, "It is 42.");
  EXPECT_EQ(reasoning, "Let me see.");
}

}  // namespace
}  // namespace volley::apps
