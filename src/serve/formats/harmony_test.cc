#include "serve/formats/harmony.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "serve/api/chat_messages.h"
#include "serve/formats/harmony_engine_for_test.h"
#include "serve/formats/harmony_prompt.h"
#include "serve/formats/output_parser_for_test.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kNames[] = {"start", "message", "channel", "constrain", "end", "return", "call"};

// Pieces as in the fixtures: a control token, or text that may look like one.
std::vector<TokenId> tokens_of(const json& pieces) {
  std::vector<TokenId> tokens;
  for (const json& piece : pieces) {
    if (piece.contains("mark")) {
      tokens.push_back(kFirstMark + static_cast<TokenId>(std::ranges::find(kNames, piece["mark"]) - kNames));
    } else {
      for (const char c : piece["text"].get<std::string>()) tokens.push_back(static_cast<unsigned char>(c));
    }
  }
  return tokens;
}

json pieces_of(const std::vector<TokenId>& tokens) {
  json pieces = json::array();
  std::string text;
  const auto end_text = [&] {
    if (!text.empty()) pieces.push_back({{"text", text}});
    text.clear();
  };
  for (const TokenId token : tokens) {
    if (token < kFirstMark) {
      text += static_cast<char>(token);
      continue;
    }
    end_text();
    pieces.push_back({{"mark", kNames[token - kFirstMark]}});
  }
  end_text();
  return pieces;
}

// The arguments as clients get them.
std::string closed(const std::string& arguments) {
  CallArguments reader;
  std::string json;
  reader.push(arguments, json);
  reader.end(json);
  return json;
}

class Harmony : public ::testing::Test {
 protected:
  // Options for an answer behind a prompt with a user's message.
  OutputParser::Options options(bool tools = true, bool reasoning = true) const {
    const std::vector<TokenId> prompt = tokens_of(json::parse(R"([{"mark": "start"}, {"text": "assistant"}])"));
    OutputParser::Options options;
    options.format = format_.answers->after(engine_, prompt);
    if (!tools) options.format = options.format->without_calls();
    options.reasoning = reasoning ? ReasoningStart::kClosed : ReasoningStart::kOff;
    return options;
  }

  // Text between two marks comes in pieces of `size` tokens.
  Message read(const std::vector<TokenId>& tokens, size_t size, const OutputParser::Options& options) const {
    OutputParser parser(options);
    Message message;
    std::string text;
    const auto push = [&] {
      if (!text.empty()) message.add(parser.push(text));
      text.clear();
    };
    for (const TokenId token : tokens) {
      if (token >= kFirstMark) {
        push();
        message.add(parser.mark(token));
        continue;
      }
      text += static_cast<char>(token);
      if (text.size() == size) push();
    }
    push();
    message.add(parser.finish());
    return message;
  }

  // Spells out control tokens, for short tests.
  Message read(const std::string& text, bool tools = true, bool reasoning = true) const {
    const std::vector<TokenId> tokens = engine_.encode(text, false).value();
    const Message whole = read(tokens, text.size() + 1, options(tools, reasoning));
    for (size_t size = 1; size < 9; ++size) EXPECT_EQ(read(tokens, size, options(tools, reasoning)), whole) << text;
    return whole;
  }

  int64_t thoughts(const std::vector<TokenId>& tokens, bool calls = true) const {
    const auto counter = options(calls).format->counter(ReasoningStart::kClosed);
    for (const TokenId token : tokens) {
      counter->push(token, [&](TokenId id) { return engine_.decode({&id, 1}, false); });
    }
    return counter->tokens();
  }

  HarmonyEngine engine_;
  OutputFormat format_ = format_of(engine_);
};

// The package openai-harmony renders the same prompts and reads the same answers (tests/make/harmony_fixtures.py).
TEST_F(Harmony, IsWhatTheLibraryMakesOfFiftyConversations) {
  std::ifstream file("tests/data/harmony/conversations.jsonl");
  int conversations = 0;
  for (std::string line; std::getline(file, line); ++conversations) {
    const auto fixture = ordered_json::parse(line);
    SCOPED_TRACE("conversation " + std::to_string(conversations));
    ChatMessages chat;
    chat.messages_json = fixture["messages"].dump();
    if (!fixture["tools"].empty()) chat.tools_json = fixture["tools"].dump();
    chat.template_kwargs_json =
        json({{"reasoning_effort", fixture["reasoning_effort"]}, {"current_date", fixture["date"]}}).dump();
    const auto text = format_.answers->render(engine_, conversation_of(chat).value(), nullptr);
    ASSERT_TRUE(text.ok()) << text.error().message;
    const auto prompt = format_.answers->encode(engine_, *text, false, {}).value();
    EXPECT_EQ(pieces_of(prompt), json::parse(fixture["prompt"].dump()));

    Message expected{fixture["message"]["content"], fixture["message"]["reasoning"], {}};
    for (const auto& call : fixture["message"]["calls"]) {
      expected.calls.push_back({call["name"], closed(call["arguments"])});
    }
    OutputParser::Options start = options();
    start.format = format_.answers->after(engine_, prompt);
    const std::vector<TokenId> answer = tokens_of(json::parse(fixture["answer"].dump()));
    for (size_t size = 1; size <= answer.size() + 1; ++size) {
      ASSERT_EQ(read(answer, size, start), expected) << "in pieces of " << size;
    }
  }
  EXPECT_EQ(conversations, 50);
}

TEST_F(Harmony, TextWithoutAHeadIsContent) {
  EXPECT_EQ(read("Hello there."), (Message{"Hello there.", "", {}}));
  EXPECT_EQ(read(" to=the point"), (Message{" to=the point", "", {}}));
  EXPECT_EQ(read("<|channel|>analysis<|message|>a<|end|>The answer"), (Message{"The answer", "a", {}}));
  EXPECT_EQ(read("<|channel|>analysis<|message|>a<|end|>assis"), (Message{"assis", "a", {}}));
  EXPECT_EQ(read("<|channel|>analysis<|message|>a<|end|>\n<|start|>assistant<|channel|>final<|message|>b"),
            (Message{"b", "a", {}}));
  EXPECT_EQ(read("<|channel|>final\nHello"), (Message{"final\nHello", "", {}}));
  const std::string endless(300, 'x');
  EXPECT_EQ(read("<|channel|>" + endless), (Message{endless, "", {}}));
  EXPECT_EQ(read("<|start|>" + endless + "<|message|>y"), (Message{endless + "y", "", {}}));
  EXPECT_EQ(read("<|start|>assistants say<|message|>y"), (Message{"assistants sayy", "", {}}));
}

TEST_F(Harmony, ACallIsReadByItsRecipient) {
  const std::string body = "<|message|>{\"a\": 1}<|call|>";
  const Message called{"", "", {{"f.g", "{\"a\": 1}"}}};
  EXPECT_EQ(read("<|channel|>commentary to=functions.f.g" + body), called);
  EXPECT_EQ(read("<|channel|>commentary<|constrain|>json to=functions.f.g" + body), called);
  EXPECT_EQ(read("<|channel|>to=functions.f.g" + body), called);
  EXPECT_EQ(read("<|channel|>commentary to=python" + body), (Message{"", "", {{"python", "{\"a\": 1}"}}}));
  EXPECT_EQ(read("<|channel|>commentary to=user" + body), (Message{"{\"a\": 1}", "", {}}));
  EXPECT_EQ(read("<|channel|>commentary to=functions.f<|message|>"), (Message{"", "", {{"f", "{}"}}}));
  const std::string two = "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant";
  EXPECT_EQ(read(two + "<|channel|>commentary to=functions.g<|message|>[]"),
            (Message{"", "", {{"f", "{}"}, {"g", R"({"INVALID_JSON": "[]"})"}}}));
  EXPECT_EQ(read("<|channel|>commentary to=functions.f<|message|>{\"a\": 1}\n so<|call|>"),
            (Message{"so", "", {{"f", "{\"a\": 1}"}}}));
}

// Some outputs have one before the next control token.
TEST_F(Harmony, ALineEndInAHeadIsASpace) {
  const Message called{"", "", {{"f", "{}"}}};
  for (const char* head :
       {"<|channel|>commentary to=functions.f\n<|message|>", "<|channel|>commentary\nto=functions.f<|message|>",
        "<|channel|>\r\ncommentary to=functions.f<|constrain|>json\n<|message|>", " to=functions.f\n<|message|>",
        "\n<|channel|>commentary to=functions.f\n<|constrain|>\njson<|message|>"}) {
    EXPECT_EQ(read(std::string(head) + "{}<|call|>"), called) << head;
  }
  EXPECT_EQ(read("<|channel|>analysis\n<|message|>a<|end|><|start|>\nassistant\n<|channel|>\nfinal\n<|message|>b"),
            (Message{"b", "a", {}}));
  EXPECT_EQ(read("<|channel|>analysis\n"), (Message{"", "", {}}));
  EXPECT_EQ(thoughts(engine_.encode("<|channel|>analysis\n<|message|>abc", false).value()), 3);
  // Several lines of text in a head's place are an answer without a head.
  EXPECT_EQ(read("<|start|>Well\nthen<|end|>"), (Message{"Well\nthen", "", {}}));
  EXPECT_EQ(read("<|channel|>\nfinal\nHello<|return|>"), (Message{"\nfinal\nHello", "", {}}));
}

// The library also reads tools' names as authors.
TEST_F(Harmony, OnlyTheAssistantSpeaks) {
  const std::string next = "<|end|><|start|>assistant<|channel|>final<|message|>b";
  for (const char* author : {"user", "python to=assistant", "browser.search to=assistant", "functions.f", "search"}) {
    EXPECT_EQ(read("<|channel|>analysis<|message|>a<|end|><|start|>" + std::string(author) +
                   "<|channel|>commentary<|message|>not its own" + next),
              (Message{"b", "a", {}}))
        << author;
  }
  EXPECT_EQ(read("<|channel|>final<|message|>a<|end|><|start|>to=functions.f<|message|>{}"),
            (Message{"a", "", {{"f", "{}"}}}));
}

// A message to a built-in tool stays a thought if no tools are asked for.
TEST_F(Harmony, AnalysisToARecipientIsAThoughtWithoutTools) {
  const std::string text = "<|channel|>analysis to=python code<|message|>1+1<|call|>";
  EXPECT_EQ(read(text), (Message{"", "", {{"python", R"({"INVALID_JSON": "1+1"})"}}}));
  EXPECT_EQ(read(text, false), (Message{"", "1+1", {}}));
  EXPECT_EQ(read(text, false, false), (Message{"1+1", "", {}}));
  const std::vector<TokenId> tokens = engine_.encode(text, false).value();
  EXPECT_EQ(thoughts(tokens), 0);
  EXPECT_EQ(thoughts(tokens, false), 3);
}

TEST_F(Harmony, WhatIsNotWantedApartIsContent) {
  const std::string text =
      "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}";
  EXPECT_EQ(read(text), (Message{"", "a", {{"f", "{}"}}}));
  EXPECT_EQ(read(text, false), (Message{"{}", "a", {}}));
  EXPECT_EQ(read(text, true, false), (Message{"a", "", {{"f", "{}"}}}));
  EXPECT_EQ(read(text, false, false), (Message{"a\n{}", "", {}}));
}

// Where parts are shown in their order, only neighbours need a line end between them.
TEST_F(Harmony, NeighboursAloneAreJoinedInOrder) {
  OutputParser::Options in_order = options();
  in_order.in_order = true;
  const std::string next = "<|end|><|start|>assistant";
  const std::string thought = "<|channel|>analysis<|message|>a", said = "<|channel|>commentary<|message|>b";
  const std::string call = "<|channel|>commentary to=functions.f<|message|>{}";
  for (const auto& [text, content, reasoning] :
       {std::tuple{thought + next + thought + next + said + next + said, "b\nb", "a\na"},
        {thought + next + said + next + thought + next + said, "bb", "aa"},
        {said + next + call + next + said, "bb", ""}}) {
    const Message read_in_order = read(engine_.encode(text, false).value(), 2, in_order);
    EXPECT_EQ(read_in_order.content, content) << text;
    EXPECT_EQ(read_in_order.reasoning, reasoning) << text;
  }
}

// Any sequence of tokens reads the same in all cuts, and its thoughts have the bytes of their counted tokens.
TEST_F(Harmony, AnySequenceReadsTheSameInAllPieces) {
  const char* const texts[] = {"assistant",
                               "analysis",
                               "final",
                               "commentary",
                               " to=functions.f",
                               "to=",
                               "user",
                               "functions.f to=assistant",
                               "json",
                               "{\"a\": 1}",
                               "Hm.",
                               "\n",
                               " ",
                               "assist",
                               "x<|end|>y"};
  const char* const heads[] = {"<|channel|>analysis<|message|>", "<|channel|>final<|message|>",
                               "<|channel|>commentary to=functions.g <|constrain|>json<|message|>"};
  std::mt19937 random(7);
  int thoughts_seen = 0, calls_seen = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<TokenId> tokens;
    for (size_t left = random() % 24; left > 0; --left) {
      const auto add = [&](const char* text, bool marks) {
        const auto ids = engine_.encode_within(text, false, {.plain = !marks}).value();
        tokens.insert(tokens.end(), ids.begin(), ids.end());
      };
      switch (random() % 5) {
        case 0:
        case 1:
          tokens.push_back(kFirstMark + static_cast<TokenId>(random() % kHarmonyMarks));
          break;
        case 2:
          add(heads[random() % std::size(heads)], true);
          break;
        default:
          add(texts[random() % std::size(texts)], false);
      }
    }
    const Message whole = read(tokens, 1000, options());
    for (const size_t size : {1u, 2u, 3u, 7u}) ASSERT_EQ(read(tokens, size, options()), whole) << i;
    if (std::ranges::count(tokens, '\n') == 0) {
      const std::string& text = whole.reasoning;
      EXPECT_EQ(thoughts(tokens), std::ssize(text) - std::count(text.begin(), text.end(), '\n')) << i;
    }
    thoughts_seen += !whole.reasoning.empty();
    calls_seen += !whole.calls.empty();
  }
  EXPECT_GT(thoughts_seen, 50);
  EXPECT_GT(calls_seen, 10);
}

TEST_F(Harmony, TokensOfThoughtsAreCounted) {
  const auto count = [&](const char* text) { return thoughts(engine_.encode(text, false).value()); };
  EXPECT_EQ(count("<|channel|>analysis<|message|>four<|end|><|start|>assistant<|channel|>final<|message|>long one"), 4);
  EXPECT_EQ(count("<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>analysis<|message|>c"), 3);
  EXPECT_EQ(count("<|channel|>analysis to=functions.f<|message|>{}<|call|>"), 0);
  EXPECT_EQ(count("<|channel|>final<|message|>analysis"), 0);
}

TEST_F(Harmony, StopStringsCountInContent) {
  GenerateRequest request;
  OutputParser::Options read;
  options().format->plan(true, request, read);
  EXPECT_EQ(read.reasoning, ReasoningStart::kClosed);
  TextParts& parts = *request.parts;
  EXPECT_EQ(parts.marks.size(), kHarmonyMarks);
  EXPECT_FALSE(parts.stops_count_at_start);
  const auto after = [](std::function<bool(TokenId, std::string_view)> count, const char* name, const char* before) {
    return count(kFirstMark + static_cast<TokenId>(std::ranges::find(kNames, std::string(name)) - kNames), before);
  };
  // The counter takes marks in order, and a copy of it is independent.
  auto count = parts.stops_count;
  const auto next = [&](const char* name, const char* before) {
    return count(kFirstMark + static_cast<TokenId>(std::ranges::find(kNames, std::string(name)) - kNames), before);
  };
  EXPECT_FALSE(next("channel", ""));
  EXPECT_FALSE(next("message", "analysis"));
  EXPECT_FALSE(next("end", "thought"));
  EXPECT_FALSE(next("start", ""));
  EXPECT_FALSE(next("channel", "assistant"));
  EXPECT_TRUE(next("message", "final"));
  EXPECT_TRUE(after(parts.stops_count, "message", ""));
}

TEST_F(Harmony, AnAnswerGoesOnWhereThePromptEnds) {
  const auto after = [&](const char* text) {
    const std::vector<TokenId> prompt = engine_.encode(text, false).value();
    OutputParser::Options from = options();
    from.format = format_.answers->after(engine_, prompt);
    return from;
  };
  const auto answer = [&](const char* prompt, const char* text) {
    return read(engine_.encode(text, false).value(), 3, after(prompt));
  };
  EXPECT_EQ(answer("<|start|>assistant<|channel|>final<|message|>So", " it is"), (Message{" it is", "", {}}));
  EXPECT_EQ(answer("<|start|>assistant<|channel|>analysis<|message|>", "hm<|end|><|start|>assistant<|message|>x"),
            (Message{"x", "hm", {}}));
  EXPECT_EQ(answer("<|start|>assistant<|channel|>fi", "nal<|message|>x"), (Message{"x", "", {}}));
  EXPECT_EQ(answer("<|start|>user<|message|>Hi<|end|>", "<|start|>assistant<|channel|>final<|message|>x"),
            (Message{"x", "", {}}));
  EXPECT_EQ(answer("no token at all", "x"), (Message{"x", "", {}}));
}

TEST(HarmonyFormat, IsFoundByTheTemplate) {
  const HarmonyEngine engine;
  const OutputFormat format = format_of(engine);
  EXPECT_TRUE(format.reasoning && format.answers->calls());
  EXPECT_EQ(format.answers->marks().size(), kHarmonyMarks);
  EXPECT_TRUE(format.tool_warning.empty()) << format.tool_warning;
  const auto is_harmony = [](const OutputFormat& found) { return !found.answers->marks().empty(); };
  for (const char* name : {"harmony", "openai", "gpt-oss"}) EXPECT_TRUE(is_harmony(format_of(engine, name)));
  EXPECT_FALSE(is_harmony(format_of(engine, "none", "none")));
  EXPECT_TRUE(is_harmony(format_of(engine, "none", "auto")));
  EXPECT_FALSE(format_of(engine, "none", "auto").answers->calls());
  EXPECT_FALSE(format_of(engine, "harmony", "none").reasoning);
  for (const auto& [tools, reasoning] : {std::pair{"hermes", "auto"}, {"auto", "think"}, {"hermes", "gpt-oss"}}) {
    const auto refused = find_output_format(engine, tools, reasoning);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("do not go together"));
  }
}

TEST(HarmonyFormat, ATokenThatIsMissingIsNamed) {
  const HarmonyEngine engine(file_text(kHarmonyTemplate), kHarmonyMarks - 1);
  const auto refused = find_output_format(engine, "auto", "auto");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("<|call|>"), HasSubstr("tokenizer.json")));
  EXPECT_EQ(format_of(engine, "none", "none").answers, plain_answers());
}

}  // namespace
}  // namespace volley::serve
