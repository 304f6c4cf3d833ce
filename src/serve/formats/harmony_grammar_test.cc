// Constrained answers in Harmony: thoughts are free, and the constraint holds behind them, in the right messages.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "serve/api/tool_choice.h"
#include "serve/formats/call_grammar.h"
#include "serve/formats/harmony.h"
#include "text/grammar.h"
#include "text/test_model.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr int kMost = 2048;  // ids of the pocket models
constexpr const char* kHarmonyTools = R"("tools": [
    {"type": "function", "function": {"name": "weather", "strict": true, "parameters": {"type": "object",
     "properties": {"place": {"type": "string"}}, "required": ["place"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "clock"}}])";

const std::string kThought = "<|channel|>analysis<|message|>Hm, {.<|end|><|start|>assistant";
const std::string kFinal = "<|channel|>final<|message|>";
const std::string kCall =
    "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"place\": \"Bonn\"}";
const std::string kClock = "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}";

class HarmonyGrammar : public ::testing::Test {
 protected:
  void SetUp() override {
    auto spec = json::parse(std::ifstream("models/pocket/tokenizer.json"));
    for (const std::string_view marker : HarmonyTokens::texts()) {
      spec["added_tokens"].push_back({{"id", kMost + spec["added_tokens"].size()},  // the library counts anew
                                      {"content", marker},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", true}});
    }
    tokenizer_ = text::load_tokenizer(spec);
    ASSERT_NE(tokenizer_, nullptr);
    std::array<TokenId, kHarmonyMarks> ids{};
    for (size_t i = 0; i < kHarmonyMarks; ++i) ids[i] = tokenizer_->token_id(HarmonyTokens::texts()[i]).value();
    format_.answers = harmony_answers(HarmonyTokens(ids), true);
    format_.reasoning = true;
  }

  bool accepts(const GrammarSpec& grammar, const std::string& text) const {
    const auto ids = tokenizer_->encode(text, false);
    EXPECT_TRUE(ids.ok());
    const auto matcher = tokenizer_->grammars()->compile(grammar);
    EXPECT_TRUE(matcher.ok()) << matcher.error().message << "\n" << grammar.lead << grammar.text;
    if (!matcher.ok()) return false;
    constexpr int kWords = (kMost + 31) / 32;
    std::vector<uint32_t> words((ids->size() + 1) * kWords);
    std::vector<text::TextEnd> ends(ids->size() + 1);
    const auto filled = (*matcher)->masks_along(*ids, words.data(), kWords, ends.data());
    EXPECT_TRUE(filled.status.ok());
    return filled.rows == static_cast<int32_t>(ids->size()) + 1 && ends.back() != text::TextEnd::kNo;
  }

  GrammarSpec of_tools(const std::string& choice, ReasoningStart start = ReasoningStart::kClosed) const {
    const std::string body = "{" + std::string(kHarmonyTools) + choice + "}";
    const json parsed = json::parse(body);
    FieldReader in(parsed);
    ToolRequest request;
    read_tools(in, body, request);
    EXPECT_FALSE(in.error());
    const auto made = tool_grammar(request, format_, start);
    EXPECT_TRUE(made.ok() && made->has_value()) << choice;
    return made.ok() && *made ? **made : GrammarSpec{};
  }

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  OutputFormat format_;
};

TEST_F(HarmonyGrammar, HoldsTheFinalMessage) {
  const GrammarSpec choice{GrammarSpec::Kind::kChoice, "", {"yes", "no"}};
  const GrammarSpec object{GrammarSpec::Kind::kJsonObject, "", {}};
  for (const auto& [grammar, good, bad] : {std::tuple{choice, "yes", "maybe"}, {object, "{\"a\": 1}", "[]"}}) {
    const GrammarSpec closed = after_reasoning(grammar, format_, ReasoningStart::kClosed);
    for (const std::string& lead : {kFinal, kThought + kFinal, kThought + kThought + kFinal}) {
      EXPECT_TRUE(accepts(closed, lead + good)) << lead << "\n" << closed.lead;
      EXPECT_FALSE(accepts(closed, lead + bad)) << lead;
      EXPECT_FALSE(accepts(closed, lead)) << lead;
    }
    EXPECT_FALSE(accepts(closed, good));
    EXPECT_FALSE(accepts(closed, std::string("<|channel|>commentary<|message|>") + good));
    EXPECT_FALSE(accepts(closed, std::string("<|channel|>analysis<|message|>") + good));
    const GrammarSpec open = after_reasoning(grammar, format_, ReasoningStart::kOpen);
    EXPECT_TRUE(accepts(open, "Hm.<|end|><|start|>assistant" + kFinal + good));
    EXPECT_TRUE(accepts(open, "<|end|><|start|>assistant" + kThought + kFinal + good));
    EXPECT_FALSE(accepts(open, kFinal + good));
    EXPECT_TRUE(accepts(after_reasoning(grammar, format_, ReasoningStart::kOff), good));
  }
}

TEST_F(HarmonyGrammar, ARequiredCall) {
  const GrammarSpec required = of_tools(R"(, "tool_choice": "required")");
  EXPECT_TRUE(accepts(required, kCall)) << required.text;
  EXPECT_TRUE(accepts(required, kThought + kClock));
  for (const std::string& text :
       {std::string("Hi"), kFinal + "Hi", kThought, kCall + kCall, kCall + "x",
        std::string("<|channel|>commentary to=functions.other <|constrain|>json<|message|>{}"),
        std::string("<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{}")}) {
    EXPECT_FALSE(accepts(required, text)) << text;
  }
  const GrammarSpec named =
      of_tools(R"(, "tool_choice": {"type": "function", "function": {"name": "clock"}})", ReasoningStart::kOpen);
  EXPECT_TRUE(accepts(named, "Hm.<|end|><|start|>assistant" + kClock)) << named.text;
  EXPECT_FALSE(accepts(named, "Hm.<|end|><|start|>assistant" + kCall));
}

TEST_F(HarmonyGrammar, AStrictToolLeavesTextFree) {
  const GrammarSpec free = of_tools("");
  const std::string preamble = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant";
  for (const std::string& lead : {std::string(), kThought, preamble, kThought + preamble + kThought + preamble}) {
    EXPECT_TRUE(accepts(free, lead + kCall)) << lead << "\n" << free.text;
    EXPECT_TRUE(accepts(free, lead + kFinal + "Hello."));
    EXPECT_TRUE(accepts(free, lead + kFinal));
  }
  EXPECT_FALSE(accepts(free, "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"x\": 1}"));
  EXPECT_FALSE(accepts(free, "<|channel|>analysis to=functions.weather <|constrain|>json<|message|>{}"));
}

TEST_F(HarmonyGrammar, ACallOrJson) {
  const std::string body = "{" + std::string(kHarmonyTools) + "}";
  const json parsed = json::parse(body);
  FieldReader in(parsed);
  ToolRequest request;
  read_tools(in, body, request);
  ASSERT_TRUE(may_call_instead(request, format_, ReasoningStart::kClosed));
  const GrammarSpec object{GrammarSpec::Kind::kJsonObject, "", {}};
  const GrammarSpec either = calls_or(object, request, format_, ReasoningStart::kClosed);
  const std::string preamble = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant";
  for (const std::string& lead : {std::string(), kThought, kThought + kThought}) {
    for (const std::string& text : {kCall, kClock, kFinal + "{\"a\": 1}", preamble + kThought + kCall}) {
      EXPECT_TRUE(accepts(either, lead + text)) << lead << text << "\n" << either.lead;
    }
    for (const std::string& text : {kFinal + "Hello.", kFinal, preamble + kFinal + "{}", kCall + kFinal + "{}"}) {
      EXPECT_FALSE(accepts(either, lead + text)) << lead << text;
    }
  }
  EXPECT_FALSE(may_call_instead(request, format_, ReasoningStart::kOff)) << "the final message has begun";
}

}  // namespace
}  // namespace volley::serve
