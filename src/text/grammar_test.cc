#include <gmock/gmock.h>

#include <thread>

#include "base/sanitized.h"
#include "text/grammar_testing.h"

namespace volley::text {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;  // the properties of an object come in the order in which its schema has them
using testing::HasSubstr;

Ordered person() {
  return Ordered::parse(R"({
    "type": "object", "additionalProperties": false, "required": ["name", "age", "tags", "home"],
    "properties": {
      "name": {"type": "string", "minLength": 1, "maxLength": 6},
      "age": {"type": "integer", "minimum": 0, "maximum": 130},
      "kind": {"enum": ["cat", "dog", 3, null]},
      "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{2}$"}, "minItems": 1, "maxItems": 3},
      "home": {"type": "object", "additionalProperties": false, "required": ["zip"],
               "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"},
                              "floor": {"type": "number", "minimum": -2, "maximum": 2.5, "multipleOf": 0.5}}}}})");
}

TEST_F(GrammarTest, SchemaAcceptsWhatItSaysAndRefusesTheRest) {
  const GrammarSpec grammar = schema(person());
  const std::string home = R"("home":{"zip":"12345"})";
  EXPECT_TRUE(accepts(grammar, R"({"name":"Bo","age":7,"tags":["ab"],)" + home + "}"));
  EXPECT_TRUE(accepts(
      grammar, "{\n\"name\": \"Bo\",\r\n\"age\": 130, \"kind\": 3,\n\"tags\": [\"ab\", \"cc\"],\n" + home + "\n}"));
  EXPECT_TRUE(
      accepts(grammar, R"({"name":"é日","age":0,"kind":null,"tags":["aa"],"home":{"zip":"00000","floor":-1.5}})"));
  for (const std::string& wrong : std::vector<std::string>{
           R"({"name":"","age":7,"tags":["ab"],)" + home + "}",      // too short
           R"({"name":"Bo","age":131,"tags":["ab"],)" + home + "}",  // above the maximum
           R"({"name":"Bo","age":7,"tags":[],)" + home + "}",        // too few
           R"({"name":"Bo","age":7,"tags":["ad"],)" + home + "}",    // not of the pattern
           R"({"name":"Bo","age":7,"kind":"cow","tags":["ab"],)" + home + "}",
           R"({"name":"Bo","age":7,"tags":["ab"],"home":{"zip":"1234"}})",
           R"({"name":"Bo","age":7,"tags":["ab"],)" + home + R"(,"more":1})",
           R"({"name":"Bo","age":7,"tags":["ab"]})",  // home is missing
           R"({"name":"Bo","age":07,"tags":["ab"],)" + home + "}",
       }) {
    EXPECT_FALSE(accepts(grammar, wrong)) << wrong;
  }
}

// Also the last digit.
TEST_F(GrammarTest, NumbersOfASchemaStayAsTheyAre) {
  for (const char* number : {"94.95886283158103", "-18.183216676054286", "9223372036854775807"}) {
    const GrammarSpec one{GrammarSpec::Kind::kJsonSchema, std::string(R"({"const": )") + number + "}", {}};
    EXPECT_TRUE(accepts(one, number));
  }
}

// One space or line break may stand between tokens: with room for more a model wanders there.
TEST_F(GrammarTest, WhitespaceIsBounded) {
  const GrammarSpec any{GrammarSpec::Kind::kJsonObject, "", {}};
  EXPECT_TRUE(accepts(any, "{\"a\": [1, true], \"b\": {\"c\": \"d\"}}"));
  EXPECT_TRUE(accepts(any, "{}"));
  EXPECT_FALSE(accepts(any, "[]"));
  EXPECT_FALSE(accepts(any, "{  }"));
  EXPECT_FALSE(accepts(any, "{\n\n}"));
  EXPECT_FALSE(accepts(any, "{\n  \"a\": 1}"));
  const GrammarSpec free = schema({{"type", "object"}, {"x-guidance", {{"whitespace_flexible", true}}}});
  EXPECT_TRUE(accepts(free, "{\n\n  \"a\" :\t1}")) << "a schema may ask for more";
  EXPECT_TRUE(accepts(schema({{"type", "object"}, {"x-guidance", {{"whitespace_flexible", false}}}}), "{\"a\":1}"));
  EXPECT_FALSE(accepts(schema({{"type", "object"}, {"x-guidance", {{"whitespace_flexible", false}}}}), "{\"a\": 1}"));
}

TEST_F(GrammarTest, RegexChoiceAndLark) {
  EXPECT_TRUE(accepts(regex(R"(\d{3}-[a-f]+)"), "123-abc"));
  EXPECT_FALSE(accepts(regex(R"(\d{3}-[a-f]+)"), "123-"));
  EXPECT_TRUE(accepts(regex(R"(^\d+\$$)"), "12$"));  // anchors around it are allowed, an escaped one is a character
  EXPECT_TRUE(accepts(regex("(^a|^b$)"), "b"));
  EXPECT_FALSE(accepts(regex("a|b"), "ab"));
  EXPECT_TRUE(accepts(regex("a/b"), "a/b"));
  EXPECT_TRUE(accepts(regex("(ab)?"), ""));
  const GrammarSpec words = choice({"yes", "yes, please", "n\"o/", "Ünï 日本"});
  for (const std::string& text : words.choices) EXPECT_TRUE(accepts(words, text)) << text;
  for (const std::string text : {"", "ye", "yes,", "no", "n\"o/ ", "Ün"}) EXPECT_FALSE(accepts(words, text)) << text;
  const GrammarSpec sum = lark("start: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/\n");
  EXPECT_TRUE(accepts(sum, "1+22+3"));
  EXPECT_FALSE(accepts(sum, "1+"));
}

// A lead before the text does not weaken the text's own rules.
TEST_F(GrammarTest, ALeadPrecedesTheText) {
  const std::string lead = "lead: /[a-z]+/ \": \"\n";
  GrammarSpec any{Kind::kJsonObject, "", {}, lead};
  EXPECT_TRUE(accepts(any, "so: {\"a\": [1, true]}"));
  for (const std::string text : {"{}", "so: ", "so: {  }", "so: {\n\n}"}) EXPECT_FALSE(accepts(any, text)) << text;
  any.kind = Kind::kJsonSchema;
  any.text = R"({"x-guidance": {"whitespace_flexible": false}, "type": "array", "items": {"type": "integer"}})";
  EXPECT_TRUE(accepts(any, "so: [1,2]"));
  EXPECT_FALSE(accepts(any, "so: [1, 2]")) << "a schema's own rule goes first";
  EXPECT_TRUE(accepts({Kind::kRegex, "^a/b|c$", {}, lead}, "so: c"));
  EXPECT_TRUE(accepts({Kind::kChoice, "", {"n\"o/", "日本"}, lead}, "so: 日本"));
  EXPECT_NE(error_of({Kind::kLark, "start: \"a\"", {}, lead}), "");
  EXPECT_NE(error_of({Kind::kEbnf, "root ::= \"a\"", {}, lead}), "");
}

// A grammar may require special tokens by name, as models' tool calls do; no ordinary text matches one.
TEST_F(GrammarTest, SpecialTokensByName) {
  const auto call = matcher(lark(R"gbnf(start: TEXT? <|im_start|> "\n" %json {"type": "boolean"}
TEXT: /[a-z ]+/
)gbnf"));
  const auto marker = tokenizer_->token_id("<|im_start|>");
  ASSERT_TRUE(marker);
  EXPECT_TRUE(row(*call).allows(*marker));
  EXPECT_EQ(walk(*call, "so "), TextEnd::kNo);
  EXPECT_TRUE(row(*call).allows(*marker));
  ASSERT_TRUE(call->commit({{*marker}}).ok());
  EXPECT_EQ(walk(*call, "\ntrue"), TextEnd::kMust);
}

// The text may end exactly where it is complete; where nothing more fits, it must.
TEST_F(GrammarTest, EndsWhereTheTextIsComplete) {
  const auto ends = [&](const GrammarSpec& grammar, std::string_view text) { return walk(*matcher(grammar), text); };
  EXPECT_EQ(ends(regex("[ab]+c"), "ab"), TextEnd::kNo);
  EXPECT_EQ(ends(choice({"yes", "yes, please"}), "yes"), TextEnd::kMay);
  EXPECT_EQ(ends(choice({"yes", "yes, please"}), "yes, please"), TextEnd::kMust);
  EXPECT_EQ(ends(regex("[ab]*"), ""), TextEnd::kMay);
  EXPECT_EQ(ends(schema({{"type", "boolean"}}), "true"), TextEnd::kMust);
  EXPECT_EQ(ends({GrammarSpec::Kind::kJsonObject, "", {}}, "{\"a\":1}"), TextEnd::kMust);
  EXPECT_EQ(ends(schema({{"type", "integer"}}), "12"), TextEnd::kMay);
  EXPECT_EQ(ends(regex("[ab]*"), "abc"), std::nullopt);
}

// Where only one text can follow, one token is allowed, its canonical one; special tokens match no text, not even one
// that spells them.
TEST_F(GrammarTest, ForcedTextIsOneToken) {
  const auto forced = matcher(choice({"<|im_end|> and more"}));
  std::string text;
  for (int i = 0; i < 30 && row(*forced).end != TextEnd::kMust; ++i) {
    const auto allowed = row(*forced).tokens();
    ASSERT_EQ(allowed.size(), 1u) << "after \"" << text << "\"";
    ASSERT_FALSE(bytes_[allowed[0]].empty()) << "a special token after \"" << text << "\"";
    text += bytes_[allowed[0]];
    ASSERT_TRUE(forced->commit(allowed).ok());
  }
  EXPECT_EQ(text, "<|im_end|> and more");
  for (const TokenId token : row(*matcher(regex("(?s:.)*"))).tokens()) EXPECT_FALSE(bytes_[token].empty()) << token;
}

// Invariant 1 depends on this: a mask is a function of the grammar and the tokens before it, whatever drafts were tried
// and taken back, and whatever used the matcher's cached parts before.
TEST_F(GrammarTest, MasksDependOnTheTextAlone) {
  std::mt19937 random(7);
  const std::vector<GrammarSpec> grammars = {
      schema(person()),
      {GrammarSpec::Kind::kJsonObject, "", {}},
      regex("(foo|[a-z]{2,9} ?)+\\."),
      choice({"one", "two", "twenty", "twenty-one and a half"}),
      lark("start: item+\nitem: \"(\" start \")\" | /[a-z]+/ \" \"\n"),
      lark("start: word \"!\" word\nword[max_tokens=3]: /[a-z ]+/\n"),  // an attribute that cannot roll back
      lark("start: (/[a-z]{1,9}/ <|im_start|>)+ /[0-9]+/\n"),
      // Tokens by number, with a text of their own and without one, in the text and in its lead.
      lark("start: (<[300]> /[a-z]{1,4}/)+ \".\"\n"),
      {GrammarSpec::Kind::kRegex, "[a-z]{1,4}\\.", {}, "lead: (<[300-310]> \" \")+\n"},
      lark("start: (/[a-z]{1,9}/ <[" + std::to_string(tokenizer_->token_id("<|im_start|>").value()) +
           "]>)+ /[0-9]+/\n"),
      ebnf("root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]{1,3}"),
  };
  for (const GrammarSpec& grammar : grammars) {
    for (int round = 0; round < (kSanitized ? 3 : 12); ++round) {
      const auto drafting = matcher(grammar), plain = matcher(grammar);
      for (int step = 0; step < 25; ++step) {
        const Row now = row(*plain);
        const auto allowed = now.tokens();
        if (allowed.empty()) break;
        // A draft of tokens allowed so far, its last one often not; then the committed tokens are some of them and one
        // more.
        std::vector<TokenId> draft;
        const auto scout = matcher(grammar);
        for (const TokenId token : committed_) ASSERT_TRUE(scout->commit({{token}}).ok());
        std::vector<Row> expected = {now};
        const size_t size = random() % 6;
        while (draft.size() < size && !expected.back().tokens().empty()) {
          const auto next = expected.back().tokens();
          draft.push_back(next[random() % next.size()]);
          ASSERT_TRUE(scout->commit({{draft.back()}}).ok());
          expected.push_back(row(*scout));
        }
        const size_t good = draft.size();
        if (random() % 2 == 0) draft.push_back(random() % (kMaskWords * 32));
        const bool extra = draft.size() > good && expected.back().allows(draft.back());
        const auto rows = rows_along(*drafting, draft);
        ASSERT_EQ(rows.size(), expected.size() + (extra ? 1 : 0)) << grammar.text;
        for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(rows[i], expected[i]) << grammar.text << " row " << i;
        const size_t keep = random() % (good + 1);
        std::vector<TokenId> commit(draft.begin(), draft.begin() + keep);
        const auto bonus = expected[keep].tokens();
        if (!bonus.empty()) commit.push_back(bonus[random() % bonus.size()]);
        ASSERT_TRUE(drafting->commit(commit).ok());
        for (const TokenId token : commit) {
          ASSERT_TRUE(plain->commit({{token}}).ok());
          committed_.push_back(token);
        }
      }
      committed_.clear();
    }
  }
}

// Whatever the model's logits, a text that ends satisfies the schema.
TEST_F(GrammarTest, RandomTextsAreJsonOfTheSchema) {
  std::mt19937 random(11);
  for (int i = 0; i < 40; ++i) {
    const std::string text = random_text(*matcher(schema(person())), random, 400);
    const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(value.is_object()) << text;
    ASSERT_TRUE(value["age"].is_number_integer() && value["age"] >= 0 && value["age"] <= 130) << text;
    ASSERT_TRUE(value["tags"].size() >= 1 && value["tags"].size() <= 3) << text;
    ASSERT_EQ(value["home"]["zip"].get<std::string>().size(), 5u) << text;
    ASSERT_TRUE(is_utf8(text));
  }
}

TEST_F(GrammarTest, SaysWhatIsWrong) {
  EXPECT_THAT(error_of({GrammarSpec::Kind::kJsonSchema, "{\"type\":", {}}),
              HasSubstr("The JSON schema cannot be used: the schema is not JSON"));
  EXPECT_THAT(error_of(schema({{"type", "strnig"}})), HasSubstr("strnig"));
  EXPECT_THAT(error_of(schema({{"type", "array"}, {"uniqueItems", true}})), HasSubstr("uniqueItems"));
  for (const char* number : {"12345678901234567890123", "-9223372036854775809"}) {
    const std::string text = std::string(R"({"enum": ["\"1", )") + number + "]}";
    EXPECT_THAT(error_of({GrammarSpec::Kind::kJsonSchema, text, {}}), HasSubstr(number));
  }
  EXPECT_THAT(error_of(schema({{"$ref", "#/$defs/none"}})), HasSubstr("none"));
  EXPECT_THAT(error_of(schema(false)), HasSubstr("The JSON schema cannot be used: "));
  EXPECT_THAT(error_of(schema({{"type", "string"}, {"minLength", 3}, {"maxLength", 2}})), HasSubstr("minLength"));
  EXPECT_THAT(error_of(regex("a(b")), HasSubstr("The regular expression cannot be used: "));
  EXPECT_THAT(error_of(regex("a(?=b)")), HasSubstr("look-around"));
  EXPECT_THAT(error_of(choice({})), HasSubstr("there are no choices"));
  EXPECT_THAT(error_of(lark("start: missing")), HasSubstr("missing"));
  EXPECT_THAT(error_of({GrammarSpec::Kind::kRegex, "\xFF", {}}), HasSubstr("UTF-8"));
  // Traces are for the library's developers.
  for (const std::string& message : {error_of(regex("a(b")), error_of(lark("start: ("))}) {
    EXPECT_THAT(message, testing::Not(HasSubstr("backtrace"))) << message;
  }
}

// Grammars made to exhaust a server are refused in bounded time and memory, or run within the limits.
TEST_F(GrammarTest, SurvivesHostileGrammars) {
  EXPECT_THAT(error_of(regex(std::string(300'000, 'a'))), HasSubstr("300000 bytes"));
  EXPECT_THAT(error_of(choice(std::vector<std::string>(10'000, "a"))), HasSubstr("10000 choices"));
  std::string nested = "1";
  for (int i = 0; i < 20'000; ++i) nested = "[" + nested;
  EXPECT_NE(error_of({GrammarSpec::Kind::kJsonSchema, "{\"enum\":" + nested + std::string(20'000, ']') + "}", {}}), "");
  EXPECT_NE(error_of(lark("start: " + std::string(100'000, '(') + "\"a\"" + std::string(100'000, ')'))), "");
  EXPECT_NE(error_of(ebnf("root ::= " + std::string(100'000, '(') + "\"a\"" + std::string(100'000, ')'))), "");
  EXPECT_NE(error_of(regex(std::string(50'000, '(') + "a" + std::string(50'000, ')'))), "");
  json deep = {{"type", "string"}};
  for (int i = 0; i < 100; ++i)
    deep = {{"type", "object"}, {"properties", {{"a", deep}}}, {"required", {"a"}}, {"additionalProperties", false}};
  const auto deep_error = error_of(schema(deep));  // nests within the JSON reader's limit: it may be used
  if (deep_error.empty()) {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "{\"a\":";
    EXPECT_EQ(walk(*matcher(schema(deep)), text), TextEnd::kNo);
  }
  // Refers to itself for ever: the text could never end.
  EXPECT_THAT(error_of(schema(json::parse(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"))),
              HasSubstr("no text satisfies"));
  // Exponentially many lexer states, and a count that multiplies up: refused at once, or on the way.
  for (const char* pattern : {"(a|b)*a(a|b){18}c", "((a{1,900}){1,900}){1,900}b{1,900}"}) {
    std::mt19937 random(3);
    std::vector<uint32_t> words(kMaskWords);
    TextEnd end;
    const auto made = compile(regex(pattern));
    for (int i = 0; made.ok() && i < 200; ++i) {
      const auto filled = (*made)->masks_along({}, words.data(), kMaskWords, &end);
      if (!filled.status.ok()) {
        EXPECT_EQ(filled.rows, 0);
        EXPECT_THAT(filled.status.error().message, HasSubstr("too complex"));
        break;
      }
      const auto allowed = Row{words, end}.tokens();
      if (allowed.empty()) break;
      ASSERT_TRUE((*made)->commit({{allowed[random() % allowed.size()]}}).ok());
    }
  }
}

// A refused token is an error, and no part of the text.
TEST_F(GrammarTest, CommittingWhatTheGrammarRefusesFails) {
  const auto made = matcher(regex("[0-9]+"));
  const auto letter = tokenizer_->token_id("a");
  ASSERT_TRUE(letter);
  EXPECT_FALSE(made->commit({{*letter}}).ok());
  EXPECT_FALSE(row(*made).allows(*letter));
}

// Masks narrower than the vocabulary, or wider, like a model's padded ones.
TEST_F(GrammarTest, MasksFitTheCallersWidth) {
  const auto made = matcher(regex("[!-~]+"));
  const Row full = row(*made);
  for (const int32_t words : {1, 3, kMaskWords + 5}) {
    std::vector<uint32_t> mask(words + 1, kPoison);
    TextEnd end;
    ASSERT_TRUE(made->masks_along({}, mask.data(), words, &end).status.ok());
    for (int32_t i = 0; i < words; ++i) EXPECT_EQ(mask[i], i < kMaskWords ? full.words[i] : 0u);
    EXPECT_EQ(mask[words], kPoison);
  }
}

TEST_F(GrammarTest, CompilesAndMatchesFromManyThreads) {
  std::vector<std::thread> threads;
  std::vector<int> valid(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 5; ++i) {
        const auto made = compile(i % 2 == 0 ? schema(person()) : regex("[a-z]{3," + std::to_string(4 + t) + "}"));
        if (!made.ok()) continue;
        const std::string text = random_text(**made, random, 400);
        valid[t] += i % 2 == 0 ? json::accept(text) : text.size() >= 3 && text.size() <= 4u + t;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(valid, std::vector<int>(4, 5));
}

// An id without a token between others matches nothing, and later tokens keep their ids.
TEST(Grammar, IdsMayHaveGaps) {
  json file =
      tokenizer_json({"<|end|>", "a", "b"}, 1,
                     {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}});
  file["model"]["vocab"] = {{"<|end|>", 0}, {"a", 2}, {"b", 40}, {"ab", 69}, {"c c", 70}};
  for (const auto& [id, content] : {std::pair(69, "ab"), {70, "c c"}}) {
    json added = file["added_tokens"][0];
    added["id"] = id;
    added["content"] = content;
    added["special"] = false;
    file["added_tokens"].push_back(added);
  }
  const auto tokenizer = load_tokenizer(file);
  const auto masked = [&](const char* regex, std::span<const TokenId> text) {
    const auto matcher = tokenizer->grammars()->compile({GrammarSpec::Kind::kRegex, regex, {}});
    EXPECT_TRUE(matcher.ok()) << matcher.error().message;
    std::vector<uint32_t> words(4);
    TextEnd end{};
    if (!matcher.ok()) return words;
    EXPECT_TRUE((*matcher)->commit(text).ok());
    EXPECT_TRUE((*matcher)->masks_along({}, words.data(), 4, &end).status.ok());
    return words;
  };
  const std::vector<TokenId> ab = {69};
  EXPECT_EQ(masked("[ -~]{4}", {}), (std::vector<uint32_t>{1u << 2, 1u << 8, 1u << 5 | 1u << 6, 0}));
  EXPECT_EQ(masked("abb", ab), (std::vector<uint32_t>{0, 1u << 8, 0, 0}));
  file["model"]["vocab"] = {{"a", 2}, {"b", 4'294'967'295}};
  file["added_tokens"] = json::array();
  const auto far = load_tokenizer(file)->grammars()->compile({GrammarSpec::Kind::kRegex, "a", {}});
  ASSERT_FALSE(far.ok());
  EXPECT_THAT(far.error().message, HasSubstr("this one has 4294967294"));
}

TEST(Grammar, TokenizersWithoutBytesSayNo) {
  const auto tokenizer = load_tokenizer(
      tokenizer_json({"[SEP]", "un", "##able"}, 1, {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}));
  const auto made = tokenizer->grammars()->compile({GrammarSpec::Kind::kJsonObject, "", {}});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(made.error().message, HasSubstr("byte-level"));
}

}  // namespace
}  // namespace volley::text
