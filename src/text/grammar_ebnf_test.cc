// GBNF: a grammar accepts exactly the texts of its notation, in both forms into which it is converted.
#include <gmock/gmock.h>

#include <tuple>

#include "text/grammar_testing.h"

namespace volley::text {
namespace {

using testing::HasSubstr;

class Ebnf : public GrammarTest {};

TEST_F(Ebnf, WithoutRecursion) {
  const GrammarSpec query = ebnf(R"(# as vLLM's documentation writes them
root ::= "SELECT " column " from " table " where " condition
column ::= "col_1 "
         | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number   # the end of a rule is where the next begins
number ::= "1 " | "2 "
)");
  EXPECT_TRUE(accepts(query, "SELECT col_1  from table_2  where col_2 = 1 "));
  EXPECT_FALSE(accepts(query, "SELECT col_3  from table_2  where col_2 = 1 "));
  EXPECT_FALSE(accepts(query, "SELECT col_1  from table_2 "));
}

// However deep rules stand in one another when they are written out: a deep one is no regular expression any more.
TEST_F(Ebnf, ChainsOfRules) {
  for (const int rules : {1, 40, 41, 80, 200}) {
    std::string grammar = "root ::= a0\n";
    for (int i = 0; i < rules; ++i) {
      grammar += "a" + std::to_string(i) + " ::= (\"x\" a" + std::to_string(i + 1) + ")? | \"b\"\n";
    }
    grammar += "a" + std::to_string(rules) + " ::= \"c\"";
    const std::string all(static_cast<size_t>(rules), 'x');
    EXPECT_TRUE(accepts(ebnf(grammar), all + "c")) << rules;
    EXPECT_TRUE(accepts(ebnf(grammar), "b")) << rules;
    EXPECT_FALSE(accepts(ebnf(grammar), all + "d")) << rules;
    EXPECT_FALSE(accepts(ebnf(grammar), all + "xc")) << rules;
  }
}

// No lexer takes the longest match: a text is accepted if any way of reading it matches.
TEST_F(Ebnf, IsNotGreedy) {
  for (const std::string rule :
       {"root ::= [a-z]+ \"end\"", "root ::= word \"end\" (\"(\" root \")\")?\nword ::= [a-z]+"}) {
    EXPECT_TRUE(accepts(ebnf(rule), "lend")) << rule;
    EXPECT_TRUE(accepts(ebnf(rule), "endend")) << rule;
    EXPECT_FALSE(accepts(ebnf(rule), "end")) << rule;
  }
  EXPECT_TRUE(accepts(ebnf("root ::= a (\"oo\" | \"(\" root \")\") | \"foox\"\na ::= \"f\""), "foo"));
  EXPECT_TRUE(accepts(ebnf("root ::= a (\"oo\" | \"(\" root \")\") | \"foox\"\na ::= \"f\""), "foox"));
  EXPECT_TRUE(accepts(ebnf("root ::= a (\"oo\" | \"(\" root \")\") | \"foox\"\na ::= \"f\""), "f(f(foo))"));
}

TEST_F(Ebnf, Recursion) {
  const GrammarSpec sums = ebnf(R"gbnf(root ::= expr
expr ::= term ([-+*/] term)*
term ::= num | "(" ws expr ws ")"
num ::= [0-9]+ ("." [0-9]{
    1, 2})?
ws ::= [ \t\n]?)gbnf");
  for (const std::string text : {"1", "1+2.25*3", "((1)- 2)/3", "( 12 )"}) {
    EXPECT_EQ(accepts(sums, text), text != "((1)- 2)/3") << text;
  }
  for (const std::string text : {"", "1+", "(1", "1.234", "1)"}) EXPECT_FALSE(accepts(sums, text)) << text;
}

TEST_F(Ebnf, RepetitionsClassesAndEscapes) {
  const std::tuple<std::string, std::string_view, bool> cases[] = {
      {"\"a\"{2,3}", "aaa", true},
      {"\"a\"{2,3}", "a", false},
      {"\"a\"{2,3}", "aaaa", false},
      {"\"a\"{2}", "aa", true},
      {"\"a\"{2,} \"b\"?", "aaaaab", true},
      {"(\"ab\" | \"c\")+", "abcab", true},
      {"\"x\" (\"ab\" | \"c\")*", "x", true},
      {"[^a-c\\]-]", "d", true},
      {"[^a-c\\]-]", "]", false},
      {"[^a-c\\]-]", "-", false},
      {"[a-]", "-", true},
      {R"("\"\\\n\x41\u00e9")", "\"\\\nA\u00e9", true},
      {R"("\a[\e\f]\0")", std::string_view("\a[\x1b\f]\0", 6), true},
      {"[α-ω日]+", "βω日", true},
      {"[α-ω日]+", "本", false},
      {". \"!\"", "日!", true},
      {". \"!\"", "\n!", true},
      {"\"\" \"a\"", "a", true},
      {"\"a.b*[/]\"", "a.b*[/]", true},
  };
  for (const auto& [body, text, accepted] : cases) {
    const std::string recursive = "root ::= one\none ::= " + body + " | \"<\" one \">\"";
    for (const std::string& rules : {"root ::= " + body, recursive}) {
      EXPECT_EQ(accepts(ebnf(rules), text), accepted) << rules << " on " << text;
    }
  }
}

TEST_F(Ebnf, SaysWhatIsWrong) {
  EXPECT_THAT(error_of(ebnf("start ::= \"a\"")), HasSubstr("no rule named root"));
  EXPECT_THAT(error_of(ebnf("root ::= \"a\" b")), HasSubstr("the rule b is used but not defined"));
  EXPECT_THAT(error_of(ebnf("root ::= a\na ::= \"a\"\na ::= \"b\"")), HasSubstr("the rule a is defined twice"));
  EXPECT_THAT(error_of(ebnf("root ::= \"a")), HasSubstr("line 1 of the grammar: expected the closing \""));
  EXPECT_THAT(error_of(ebnf("root ::=\n (\"a\" | \"b\"")), HasSubstr("line 2 of the grammar: expected a closing )"));
  EXPECT_THAT(error_of(ebnf("root ::= [b-a]")), HasSubstr("the range b-a is empty"));
  EXPECT_THAT(error_of(ebnf("root ::= \"\\q\"")), HasSubstr("an escape such as"));
  EXPECT_THAT(error_of(ebnf("root ::= \"a\"{3,2}")), HasSubstr("{3,2} allows nothing"));
  EXPECT_THAT(error_of(ebnf("root ::= \"a\"{1,99999}")), HasSubstr("at most 1000"));
  EXPECT_THAT(error_of(ebnf("root ::= \"a\" )")), HasSubstr("a rule (name ::= ...), found \")\""));
  EXPECT_THAT(error_of(ebnf("")), HasSubstr("no rule named root"));
}

}  // namespace
}  // namespace volley::text
