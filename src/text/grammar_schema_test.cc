// Which JSON texts a schema lets through, letter by letter: a model may write exactly what a validator accepts.
#include <gmock/gmock.h>

#include "text/grammar_testing.h"

namespace volley::text {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class SchemaTest : public GrammarTest {
 protected:
  static GrammarSpec parsed(std::string text) { return {Kind::kJsonSchema, std::move(text), {}}; }
  // A string of this pattern, alone and as a tool's argument in a grammar of its own.
  static std::vector<GrammarSpec> patterned(const std::string& pattern) {
    const std::string text = json({{"type", "string"}, {"pattern", pattern}}).dump();
    return {parsed(text), lark("start: \"<\" value \">\"\nvalue: %json " + text + "\n"),
            GrammarSpec{Kind::kJsonSchema, text, {}, "lead: \"<\"\n"}};
  }
  static bool takes(const std::string& pattern, const std::string& string) {
    const auto specs = patterned(pattern);
    const bool taken = accepts(specs[0], string);
    EXPECT_EQ(accepts(specs[1], "<" + string + ">"), taken) << pattern << " " << string;
    EXPECT_EQ(accepts(specs[2], "<" + string), taken) << pattern << " " << string;
    return taken;
  }
};

// Characters that a pattern excludes cannot be written as escapes, and those that it requires can.
TEST_F(SchemaTest, PatternsHoldForTheDecodedString) {
  struct Case {
    std::string pattern;
    std::vector<std::string> taken, refused;
  };
  const std::vector<Case> cases = {
      {R"(^[^\\]{2}$)",
       {R"("ab")", R"("\"a")", R"("\na")"},
       {R"("\\\\")", R"("a\\")", R"("\u005ca")", R"("\u005c\u005c")"}},
      {R"(^[^"\\]+$)", {R"("ab")", R"("\n")"}, {R"("\\")", R"("\"")", R"("a\"")", R"("\u0022")"}},
      {R"(^[^"]*$)", {R"("")", R"("\\")"}, {R"("\"")", R"("\u0022")"}},
      {R"(^[^"\\\n]{1,3}$)", {R"("a")", R"("\t")"}, {R"("\n")", R"("\u000a")", R"("\\")", R"("\"")"}},
      {R"(^[^\n]$)", {R"("\\")", R"("\"")"}, {R"("\n")", R"("\u000A")"}},
      {R"(^(?:[^"\\]|x\\)$)", {R"("a")", R"("x\\")"}, {R"("\\")", R"("\"")"}},
      {R"(^[^\x00-\x1f\\]$)", {R"("\"")", R"("a")"}, {R"("\n")", R"("\\")", R"("\u0001")"}},
      {R"(^[^\\/:*?"<>|]+$)", {R"("a b")"}, {R"("\\")", R"("a\"")", R"("a\\b")"}},
      {R"(^\\\"\n$)", {R"("\\\"\n")"}, {R"("\\\"n")", R"("\"\\\n")"}},
      {R"(^\x1b\[m$)", {R"("\u001b[m")", R"("\u001B[m")"}, {R"("\u001a[m")"}},
      {"^\\S+$", {R"("a\\")", R"("\"")"}, {R"("\n")", R"("a b")", R"("\t")"}},
  };
  for (const Case& one : cases) {
    for (const std::string& text : one.taken) EXPECT_TRUE(takes(one.pattern, text)) << one.pattern << " " << text;
    for (const std::string& text : one.refused) EXPECT_FALSE(takes(one.pattern, text)) << one.pattern << " " << text;
  }
}

// Patterns are ECMAScript's, not those of the library underneath; where Python reads one otherwise, both must agree.
TEST_F(SchemaTest, PatternsAreECMAScripts) {
  EXPECT_TRUE(takes("^[a&&b]$", "\"&\""));
  EXPECT_TRUE(takes("^[[]$", "\"[\""));
  EXPECT_TRUE(takes("^[~~]$", "\"~\""));
  EXPECT_TRUE(takes("^\\<a\\>$", "\"<a>\""));
  EXPECT_TRUE(takes("^(?<stop>a)b$", "\"ab\""));
  EXPECT_TRUE(takes("^\\cJ$", R"("\n")"));
  EXPECT_TRUE(takes("^[\\b]$", R"("\b")"));
  EXPECT_TRUE(takes("^\\ud83d\\ude00\\u{e9}$", "\"😀é\""));
  EXPECT_TRUE(takes("^[\\w\\W]{2}$", "\"é.\""));
  EXPECT_FALSE(takes("^.$", R"("\r")"));
  EXPECT_FALSE(takes("^\\W$", "\"é\"")) << "a letter for Python";
  EXPECT_FALSE(takes("^\\w$", "\"é\"")) << "none for ECMAScript";
  for (const char* pattern : {"^(?!x)a", "a\\b", "(a)\\1", "^a(?=b)", "a^b", "[]a]", "\\ud83d"}) {
    EXPECT_THAT(error_of(schema({{"type", "array"}, {"items", {{"pattern", pattern}}}})),
                HasSubstr("\"pattern\" at \"#/items\" cannot be enforced"))
        << pattern;
  }
}

// A key that is already used cannot be repeated in other letters.
TEST_F(SchemaTest, KeysAreTakenHoweverTheyAreSpelled) {
  const GrammarSpec open = parsed(R"({"properties": {"a": {"type": "integer"}}, "type": "object",
                                      "additionalProperties": {"type": "string"}})");
  EXPECT_TRUE(accepts(open, R"({"a":1,"b":"x"})"));
  EXPECT_FALSE(accepts(open, R"({"\u0061":"x"})"));
  EXPECT_FALSE(accepts(open, R"({"a":"x"})"));
  const GrammarSpec patterns = parsed(R"({"type": "object", "patternProperties": {"^[^\"\\\\]$": {"type": "null"}},
                                          "additionalProperties": false})");
  EXPECT_TRUE(accepts(patterns, R"({"a":null})"));
  for (const char* text : {R"({"\"":null})", R"({"\\":null})", R"({"\u0022":null})"}) {
    EXPECT_FALSE(accepts(patterns, text)) << text;
  }
}

// A key always follows a comma.
TEST_F(SchemaTest, NoTextComesToADeadEnd) {
  const std::vector<std::string> schemas = {
      R"({"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],"patternProperties":{"^a$":true},"additionalProperties":false})",
      R"({"type":"object","properties":{"a":true,"b":{"type":"null"}},"patternProperties":{"^(a|b)$":{"type":"null"}},"additionalProperties":false})",
      R"({"type":"object","properties":{"a":{"type":"null"}},"patternProperties":{"^[^a]":false,"^a.":false,"^$":false}})",
      R"({"type":"object","properties":{"a":{"type":"null"}},"required":["b"],"patternProperties":{"^b$":{"type":"null"}},"additionalProperties":false})",
      R"({"type":"object","properties":{"a":{"type":"null"},"n":{"type":"integer","minimum":1,"maximum":4,"multipleOf":5}}})",
      R"({"type":"object","properties":{"a":{"type":"null"},"n":{"enum":[1,2,4],"multipleOf":3}}})",
      R"({"type":"object","properties":{"a":{"type":"null"},"n":{"enum":["x"],"type":"integer"},"m":{"const":"y","enum":["z"]}}})",
      R"({"type":"object","properties":{"a":{"type":"null"},"n":{"$ref":"#/$defs/never"}},"$defs":{"never":false}})",
      R"({"type":"object","properties":{"a":{"type":"null"},"n":{"$ref":"#/$defs/n"}},
          "$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}},"required":["n"]}}})",
      R"({"type":"array","prefixItems":[{"type":"null"}],"items":{"type":"number","exclusiveMinimum":1,"maximum":1},"maxItems":3})",
      R"({"type":"object","propertyNames":{"enum":["a"]},"additionalProperties":{"type":"null"}})",
      R"({"type":"object","patternProperties":{"^[ab]$":{"type":"null"},"^$":false,"^[^ab]":false,"^[\\s\\S]{2}":false},"maxProperties":2})",
  };
  std::mt19937 random(17);
  for (const std::string& schema : schemas) {
    for (int i = 0; i < 12; ++i) {
      const std::string text = random_text(*matcher(parsed(schema)), random, 60);
      EXPECT_TRUE(json::accept(text)) << schema << "\n" << text;
    }
  }
  for (const char* never : {R"({"type":"integer","minimum":1,"maximum":4,"multipleOf":5})", R"({"enum":[]})",
                            R"({"type":"string","const":3})", R"({"$ref":"#"})",
                            R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"}) {
    EXPECT_NE(error_of(parsed(never)), "") << never;
  }
}

// The engine requires patterns of keys that are disjoint; patterns with excluded keys may overlap all the same.
TEST_F(SchemaTest, PatternsThatExcludeKeysMayOverlap) {
  struct Case {
    const char* schema;
    std::vector<std::string> taken, refused;
  };
  const std::vector<Case> cases = {
      {R"({"type":"object","patternProperties":{"^[ab]$":{"type":"null"},"^$":false,"^[^ab]":false,"^..":false}})",
       {R"({})", R"({"a":null})", R"({"b":null})", R"({"a\nb":1})"},  // "." is no line break
       {R"({"":null})", R"({"c":null})", R"({"ab":null})", R"({"cc":null})"}},
      {R"({"type":"object","patternProperties":{"x":false,"y$":false,"^z|w":false}})",
       {R"({"ab":1})", R"({"ya":1})", R"({"az":1})"},
       {R"({"axb":1})", R"({"ay":1})", R"({"xy":1})", R"({"za":1})", R"({"aw":1})"}},
      {R"({"type":"object","patternProperties":{"^ab":{"type":"null"},"^a":false,"^b":{"type":"null"}}})",
       {R"({"b":null})", R"({"c":1})"},
       {R"({"ab":null})", R"({"a":null})", R"({"b":1})"}},
      {R"({"type":"object","patternProperties":{"^a":{"type":"integer","minimum":2,"maximum":1},"a$":false}})",
       {R"({"bab":1})"},
       {R"({"a":1})", R"({"ab":1})", R"({"ba":1})"}},
      {R"({"type":"object","properties":{"ab":{"type":"null"}},"patternProperties":{"^a.+":false,"^.b":false},
           "additionalProperties":{"type":"null"}})",
       {R"({"a":null})", R"({"c":null})"},
       {R"({"ab":null})", R"({"cb":null})"}},
      {R"({"allOf":[{"type":"object","patternProperties":{"^a":false}},{"patternProperties":{"^a":false,"^b":false}}]})",
       {R"({"c":1})"},
       {R"({"a":1})", R"({"b":1})"}},
  };
  for (const Case& one : cases) {
    for (const std::string& text : one.taken) EXPECT_TRUE(accepts(parsed(one.schema), text)) << one.schema << text;
    for (const std::string& text : one.refused) EXPECT_FALSE(accepts(parsed(one.schema), text)) << one.schema << text;
  }
  EXPECT_THAT(error_of(parsed(R"({"type":"object","patternProperties":{"^a":{"type":"null"},"b$":false}})")),
              HasSubstr("at \"#\": patternProperty regexes /^a/ and /b$/ are not disjoint"))
      << "some keys of a pattern cannot be taken out of it";
}

// "format" constrains if it is known; an annotation never does.
TEST_F(SchemaTest, AnnotationsDoNotConstrain) {
  for (const char* format : {"password", "path", "uri-reference", "binary", "int64", "color", "unknown", "regex"}) {
    EXPECT_TRUE(accepts(schema({{"type", "string"}, {"format", format}}), R"("any \"text\"")")) << format;
  }
  const auto of_format = [&](const char* format, const char* text) {
    return accepts(schema({{"type", "string"}, {"format", format}}), text);
  };
  EXPECT_TRUE(of_format("date", "\"2024-02-29\""));
  EXPECT_FALSE(of_format("date", "\"2023-02-29\"")) << "there is no such day";
  EXPECT_FALSE(of_format("date", "\"2024-13-01\""));
  EXPECT_FALSE(of_format("uuid", "\"x\""));
  EXPECT_FALSE(of_format("ipv4", "\"1.2.3.256\""));
  EXPECT_TRUE(of_format("date-time", "\"2024-02-29T10:00:59Z\""));
  EXPECT_TRUE(
      accepts(parsed(R"({"type":"boolean","deprecated":true,"x-order":1,"examples":[3],"nullable":true})"), "true"));
  EXPECT_TRUE(accepts(parsed(R"({"type":"array","items":{"type":"null"},"uniqueItems":false})"), "[null,null]"));
  EXPECT_TRUE(
      accepts(parsed(R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"null"}})"),
              R"({"any":null})"));
}

TEST_F(SchemaTest, OverlappingOneOfIsAnyOf) {
  for (const char* overlapping :
       {R"({"oneOf":[{"type":"number"},{"type":"integer"}]})", R"({"oneOf":[{"type":"integer"},{}]})",
        R"({"type":"integer","oneOf":[{"minimum":0},{"maximum":9}]})",
        R"({"oneOf":[{"$ref":"#/$defs/i"},{"type":"integer"}],"$defs":{"i":{"type":"integer"}}})"}) {
    EXPECT_TRUE(accepts(parsed(overlapping), "3")) << overlapping;
  }
}

// A closed object has the keys that its schema names; the schema may say otherwise.
TEST_F(SchemaTest, ObjectsThatNameTheirPropertiesAreClosed) {
  struct Case {
    const char *schema, *taken, *refused;
  };
  const std::vector<Case> cases = {
      {R"({"properties":{"a":{"type":"null"}},"type":"object"})", R"({"a":null})", R"({"b":1})"},
      {R"({"type":"object","properties":{"a":{"type":"object","properties":{"b":true}}}})", R"({"a":{"b":1}})",
       R"({"a":{"c":1}})"},
      {R"({"type":"object","properties":{"a":{"type":"null"}},"required":["b"]})", R"({"b":2})", R"({"b":2,"c":1})"},
      {R"({"allOf":[{"$ref":"#/$defs/base"},{"properties":{"b":{"type":"null"}}}],
           "$defs":{"base":{"type":"object","properties":{"a":{"type":"null"}},"required":["a"]}}})",
       R"({"a":null,"b":null})", R"({"a":null,"c":1})"},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
       R"({"b":null})", R"({"b":null,"c":1})"},
      {R"({"anyOf":[{"properties":{"a":{"type":"null"}},"type":"object"},{"type":"null"}]})", R"({"a":null})",
       R"({"c":1})"},
      {R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"k":{"type":"array","items":{"$ref":"#/$defs/t"}}}}}})",
       R"({"k":[{"k":[]}]})", R"({"k":[{"c":1}]})"},
      {R"({"type":"object","properties":{"a":{"type":"null"}},"patternProperties":{"^x-":{"type":"null"}}})",
       R"({"x-y":null})", R"({"c":1})"},
  };
  for (const Case& one : cases) {
    EXPECT_TRUE(accepts(parsed(one.schema), one.taken)) << one.schema;
    EXPECT_FALSE(accepts(parsed(one.schema), one.refused)) << one.schema;
    const std::string open = std::string(R"({"x-guidance":{"open_objects":true},)") + (one.schema + 1);
    EXPECT_TRUE(accepts(parsed(open), one.refused)) << one.schema;
  }
  EXPECT_TRUE(
      accepts(parsed(R"({"type":"object","properties":{"a":true},"additionalProperties":true})"), R"({"c":1})"));
  EXPECT_TRUE(accepts(parsed(R"({"type":"object"})"), R"({"c":1})"));
}

// A part that cannot be enforced is named with its place.
TEST_F(SchemaTest, ErrorsNameThePlace) {
  const auto place = [&](const char* keyword, json value, const char* at = "\"#/properties/q\"") {
    EXPECT_THAT(error_of(schema({{"type", "object"}, {"properties", {{"q", {{keyword, value}}}}}})),
                testing::AllOf(HasSubstr(keyword), HasSubstr(at)));
  };
  place("pattern", "^(?!x)a");
  place("uniqueItems", true);
  place("not", {{"type", "string"}});
  place("type", "strnig");
  place("dependentRequired", {{"a", {"b"}}});
  place("contains", {{"type", "null"}});
  place("$ref", "#/$defs/none");
  place("patternProperties", {{"(?=x)", true}}, "\"#/properties/q/patternProperties\"");
  place("enum", {9007199254740993});
  place("minProperties", 2);
  // The same for parts that the engine refuses.
  EXPECT_THAT(error_of(parsed(R"({"items":{"type":"object","patternProperties":{"^a":true,"^ab":{"type":"null"}}}})")),
              HasSubstr("at \"#/items\": patternProperty regexes /^a/ and /^ab/ are not disjoint"));
}

TEST_F(SchemaTest, NumbersThatCannotBeHeldAreNamed) {
  const std::string digits(30, '7');
  for (const auto& [number, why] :
       std::vector<std::pair<std::string, std::string>>{{"1195858088e1678", "no double holds"},
                                                        {"-1E+999", "no double holds"},
                                                        {"0." + digits + "e999", "no double holds"},
                                                        {digits, "more than 64 bits"},
                                                        {"-" + digits, "more than 64 bits"}}) {
    for (const std::string& text :
         {R"({"type":"number","maximum":)" + number + "}", R"({"items":{"enum":["a",[)" + number + "]]}}"}) {
      const std::string tool = R"({"x-guidance":{"whose":"the tool f"},)" + text.substr(1);
      const auto says = testing::AllOf(HasSubstr(number), HasSubstr(why));
      EXPECT_THAT(error_of(parsed(text)), says);
      EXPECT_THAT(error_of(lark("start: %json " + tool)), testing::AllOf(HasSubstr("the tool f"), says));
      const std::string free = R"({"x-guidance":{"otherwise":{"type":"boolean"}},)" + text.substr(1);
      EXPECT_TRUE(accepts(lark("start: %json " + free), "true"));
    }
    EXPECT_TRUE(accepts(parsed(R"({"const":")" + number + R"("})"), "\"" + number + "\"")) << "a text";
  }
  // A model may write them where anything goes.
  for (const char* number : {"1195858088e1678", "-1E+999", "1e-99999"}) {
    EXPECT_TRUE(
        accepts(parsed(R"({"properties":{"a":true},"required":["a"]})"), R"({"a":)" + std::string(number) + "}"));
  }
}

}  // namespace
}  // namespace volley::text
