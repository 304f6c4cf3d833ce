// A thinking model still thinks when its answer is constrained: compiled grammars on texts.
#include <gtest/gtest.h>

#include "serve/formats/call_grammar.h"
#include "text/grammar_testing.h"

namespace volley::serve {
namespace {

class ReasoningGrammarTest : public text::GrammarTest {
 protected:
  static GrammarSpec make(GrammarSpec::Kind kind, std::string text, std::vector<std::string> choices = {}) {
    return {kind, std::move(text), std::move(choices)};
  }
  // Texts that the grammar takes, and texts that it refuses.
  static void expect_after_reasoning(const GrammarSpec& grammar, const std::vector<std::string>& good,
                                     const std::vector<std::string>& bad) {
    const GrammarSpec closed = after_reasoning(grammar, {}, ReasoningStart::kClosed);
    const GrammarSpec open = after_reasoning(grammar, {}, ReasoningStart::kOpen);
    for (const std::string& text : good) {
      EXPECT_TRUE(accepts(grammar, text)) << text;
      EXPECT_TRUE(accepts(closed, text)) << text << "\n\n" << closed.lead;
      EXPECT_TRUE(accepts(closed, "<think>\nHm {.\n</think>\n\n" + text)) << text << "\n\n" << closed.lead;
      EXPECT_TRUE(accepts(open, "Hm [1].\n</think>\n\n" + text)) << text << "\n\n" << open.lead;
      EXPECT_TRUE(accepts(open, "</think>" + text)) << text;
      EXPECT_FALSE(accepts(open, text)) << "the prompt has begun to think: " << text;
      EXPECT_FALSE(accepts(closed, "Hm. " + text)) << text;
    }
    for (const std::string& text : bad) {
      EXPECT_FALSE(accepts(closed, text)) << text << "\n\n" << closed.lead;
      EXPECT_FALSE(accepts(closed, "<think>Hm.</think>" + text)) << text << "\n\n" << closed.lead;
      EXPECT_FALSE(accepts(open, "Hm.</think>\n" + text)) << text << "\n\n" << open.lead;
    }
  }
};

TEST_F(ReasoningGrammarTest, Json) {
  expect_after_reasoning(make(Kind::kJsonObject, ""), {"{}", "{\"a\": [1, \"b\"]}"},
                         {"[]", "{", "x", "{  }", "{\n\n}"});
  expect_after_reasoning(make(Kind::kJsonSchema,
                              "{\"type\": \"object\",\n \"properties\": {\"a\": {\"type\": \"integer\"}},"
                              "\n \"required\": [\"a\"], \"additionalProperties\": false}"),
                         {"{\"a\": 5}", "{ \"a\":5 }"}, {"{}", "{\"a\": \"5\"}", "{\"a\":  5}", "{\"a\": 5   }"});
}

TEST_F(ReasoningGrammarTest, RegexAndChoice) {
  expect_after_reasoning(make(Kind::kRegex, R"([0-9]+/[0-9]{2}\/x\.)"), {"12/34/x."}, {"12/3/x.", "12/34/xy"});
  expect_after_reasoning(make(Kind::kRegex, "^(a|^b)$"), {"a", "b"}, {"^a", "ab", "b$"});
  expect_after_reasoning(make(Kind::kChoice, "", {"yes", "no \"way\"\n", "Köln"}), {"yes", "no \"way\"\n", "Köln"},
                         {"maybe", "yesno", "no"});
}

TEST_F(ReasoningGrammarTest, LeavesTheRestAlone) {
  const GrammarSpec lark = make(Kind::kLark, "start: \"a\"");
  EXPECT_EQ(after_reasoning(lark, {}, ReasoningStart::kOpen).text, lark.text);
  EXPECT_EQ(after_reasoning(lark, {}, ReasoningStart::kOpen).lead, "");
  EXPECT_EQ(after_reasoning(make(Kind::kRegex, "a"), {}, ReasoningStart::kOff).lead, "");
}

}  // namespace
}  // namespace volley::serve
