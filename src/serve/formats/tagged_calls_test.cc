// Calls between marks: each form as models write it, however the text is cut, and what is no call.
#include <gtest/gtest.h>

#include <tuple>

#include "serve/formats/output_parser_for_test.h"
#include "serve/formats/template_engine_for_test.h"
#include "serve/formats/typescript_tools.h"

namespace volley::serve {
namespace {

OutputParser::Options options(const char* name, ReasoningStart reasoning = ReasoningStart::kOff) {
  static const auto kTypes =
      std::make_shared<ToolTypes>(ToolTypes{{"f", {{"q", kJsonNumber}, {"s", kJsonString}}}, {"g", {}}});
  return {format_of(SilentEngine(), name, "none").answers, reasoning, "call_", kTypes};
}

const Call kF{"f", R"({"q": 1, "s": "a <b>\n\"c\""})"}, kG{"g", "{}"};
const std::string kJson = R"({"q": 1, "s": "a <b>\n\"c\""})";
const std::string kDeepSeekF = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>" + kJson + "<｜tool▁call▁end｜>";
const std::string kDeepSeekG = "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>";
const std::string kTypedF =
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n" + kJson + "\n```<｜tool▁call▁end｜>";
const std::string kTypedG = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>";
const std::string kKimiF = "<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>" + kJson + "<|tool_call_end|>";
const std::string kKimiG = "<|tool_call_begin|> g:8 <|tool_call_argument_begin|> {}<|tool_call_end|>";
const std::string kKimiCalls = "<|tool_calls_section_begin|>" + kKimiF + kKimiG + "<|tool_calls_section_end|>";
const std::string kGlmF =
    "<tool_call>f\n<arg_key>q</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n<arg_value>a <b>\n\"c\""
    "</arg_value>\n</tool_call>";
const std::string kGlmTightF =
    "<tool_call>f<arg_key>q</arg_key><arg_value>1</arg_value><arg_key>s</arg_key><arg_value>a <b>\n\"c\"</arg_value>"
    "</tool_call>";
const std::string kMiniMaxF =
    "<invoke name=\"f\">\n<parameter name=\"q\">1</parameter>\n<parameter name=\"s\">a <b>\n\"c\"</parameter>\n"
    "</invoke>\n";
const std::string kPythonF = R"(f(q=1, s='a <b>\n"c"'))";
const std::string kGemmaF = "<|tool_call>call:f{q:1,s:<|\"|>a <b>\n\"c\"<|\"|>}<tool_call|>";

TEST(TaggedCalls, AreReadHoweverTheTextIsCut) {
  const std::tuple<const char*, std::string, std::string> cases[] = {
      {"deepseek_v3", "<｜tool▁calls▁begin｜>" + kDeepSeekF + kDeepSeekG + "<｜tool▁calls▁end｜>", ""},
      {"deepseek_v3", "<｜tool▁calls▁begin｜>" + kTypedF + "\n" + kTypedG + "<｜tool▁calls▁end｜>", ""},
      {"deepseek_v3", kDeepSeekF + kTypedG, ""},  // without the marks around both
      {"kimi_k2", kKimiCalls, ""},
      {"kimi_k2", kKimiF + "\n" + kKimiG, ""},
      {"kimi_k2", "Let me see. " + kKimiCalls + " Bye.", "Let me see. Bye."},
      {"glm45", kGlmF + "\n<tool_call>g\n</tool_call>", ""},
      {"glm45", "Hm.\n" + kGlmTightF + "<tool_call>g</tool_call>", "Hm."},
      {"minimax_m2", "\n<minimax:tool_call>\n" + kMiniMaxF + "<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
       ""},
      {"minimax_m2", "See:\n" + kMiniMaxF + "<invoke name=\"g\"></invoke>", "See:"},
      {"gemma4", kGemmaF + "<|tool_call>call:g{}<tool_call|>", ""},
      {"gemma4", "I look.\n" + kGemmaF + "\n<|tool_call>call:g{ }<tool_call|>\n", "I look."},
      {"lfm2", "<|tool_call_start|>[" + kPythonF + ", g()]<|tool_call_end|>", ""},
      {"lfm2",
       "Hm.\n<|tool_call_start|> [ " + kPythonF + " ] <|tool_call_end|>\n<|tool_call_start|>g( )<|tool_call_end|> Bye.",
       "Hm. Bye."},
      {"lfm2", R"(<|tool_call_start|>[{"name": "f", "arguments": )" + kJson + R"(}, {"name": "g"},]<|tool_call_end|>)",
       ""},
      {"lfm2", "<|tool_call_start|>[" + kPythonF + ",\ng()", ""},
      {"pythonic", " [" + kPythonF + ",g(),]\n", ""},
      {"pythonic", "Hm.\n\n[" + kPythonF + ", g()]", "Hm."},
      {"gemma3", "```tool_code\n[" + kPythonF + ", g()]\n```", ""},
      {"gemma3", "Hm.\n```tool_code\n[" + kPythonF + ", g()]\n```", "Hm."},
  };
  for (const auto& [name, text, content] : cases) {
    EXPECT_EQ(parse(options(name), text), (Message{content, "", {kF, kG}})) << text;
    expect_same_however_cut(options(name), text);
  }
}

TEST(TaggedCalls, WhatIsNoCallIsContent) {
  const std::pair<const char*, std::string> cases[] = {
      {"deepseek_v3", "<｜tool▁calls▁begin｜>"},
      {"deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"},
      {"deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f{}"},
      {"deepseek_v3", "<｜tool▁call▁begin｜><｜tool▁sep｜>{}"},
      {"kimi_k2", "<|tool_calls_section_begin|> and <|tool_call_begin|>functions.f:0"},
      {"kimi_k2", "<|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}"},
      {"glm45", "<tool_call>"},
      {"glm45", "<tool_call>f is\nit <b>"},
      {"glm45", "<tool_call>{\"name\": \"f\"}</tool_call>"},
      {"minimax_m2", "<minimax:tool_call>\n<invoke name=\"\">"},
      {"minimax_m2", "<invoke name=\"unknown\"></invoke>"},
      {"minimax_m2", "<minimax:tool_call></minimax:tool_call>"},
      {"gemma4", "<|tool_call>f{}<tool_call|>"},
      {"gemma4", "<|tool_call>call:{}"},
      {"gemma4", "<|tool_call>call:f" + std::string(600, 'x') + "{}"},
      {"lfm2", "<|tool_call_start|>"},
      {"lfm2", "<|tool_call_start|>[]<|tool_call_end|>"},
      {"lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>"},
      {"lfm2", "<|tool_call_start|>[f(a.b(q)=1)]"},
      {"lfm2", "<|tool_call_start|>[f" + std::string(600, 'x') + "()]"},
      {"lfm2", "<|tool_call_start|>[" + std::string(50, ' ') + "(q=1)]"},
      {"lfm2", "[f(q=1)]"},
      {"pythonic", "[h(q=1)]"},
      {"pythonic", "Let me see: [f(q=1)]"},
      {"pythonic", "[1, 2]"},
      {"pythonic", "```python\nprint(f(q=1))\n```"},
      {"pythonic", "So:\n```python\nprint(f(q=1))\n```\n`x`\n```"},
      {"pythonic", R"([{"name": "f", "arguments": {}}])"},
  };
  for (const auto& [name, text] : cases) {
    EXPECT_EQ(parse(options(name), text), (Message{text, "", {}})) << name;
    expect_same_however_cut(options(name), text);
  }
}

TEST(TaggedCalls, BracesBecomeJson) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({a:<|"|>x<|"|>,b:[<|"|>y,}<|"|>,2.5,{c:true,d:null}],e:{}})",
       R"({"a": "x", "b": ["y,}", 2.5, {"c": true, "d": null}], "e": {}})"},
      {R"({ a : <|"|><|"|> , b : [ ] })", R"({"a": "", "b": []})"},
      {R"({a:Bonn am Rhein,b:True,c:"q\"}",<|"|>d e<|"|>:<|x})",
       R"({"a": "Bonn am Rhein", "b": true, "c": "q\"}", "d e": "<|x"})"},
      {R"({a:<|"|><|<|"|>,b:1,})", R"({"a": "<|", "b": 1 })"},
  };
  for (const auto& [braces, json] : cases) {
    const std::string text = "<|tool_call>call:f" + braces + "<tool_call|>";
    EXPECT_EQ(parse(options("gemma4"), text), (Message{"", "", {{"f", json}}})) << text;
    expect_same_however_cut(options("gemma4"), text);
  }
  for (size_t at = 18; at < kGemmaF.size(); ++at) {
    for (const char* behind : {"", "}", "]", "{", " Bye", "<tool_call|>x"}) {
      const Message message = parse(options("gemma4"), kGemmaF.substr(0, at) + behind);
      EXPECT_EQ(message.calls.size(), at < 19 && *behind != '{' ? 0u : 1u) << at << behind;
      expect_same_however_cut(options("gemma4"), kGemmaF.substr(0, at) + behind);
    }
  }
}

TEST(TaggedCalls, PythonBecomesJson) {
  const std::string wide(50, '7');
  const std::pair<std::string, std::string> cases[] = {
      {R"py(a="x", b=['y,)', 2.5, {'c': True, "d": None}], e={}, n=-1_000, h=.5)py",
       R"py({"a": "x", "b": ["y,)", 2.5, {"c": true, "d": null}], "e": {}, "n": -1000, "h": 0.5})py"},
      {R"py( a = '' , b = [ ] , c=(1, 2), d=(3), e={1: False,}, f = "" ,)py",
       R"py({"a": "", "b": [ ], "c": [1, 2], "d": 3, "e": {"1": false}, "f": ""})py"},
      {R"py(a='it\'s "it"\n\\n\d\x41\u00e9\N', b=true, c=null)py",
       R"py({"a": "it's \"it\"\n\\n\\dAé\\N", "b": true, "c": null})py"},
      {"a=\"\\ud83d\\ude00\\U0001F600\\101 \\\nb\", z='\\xZZ'", R"py({"a": "😀😀A b", "z": "\\xZZ"})py"},
      {"a=\"\"\"def f(x):\n  return '\"' + \"\"\n\"\"\", b=''''''",
       R"py({"a": "def f(x):\n  return '\"' + \"\"\n", "b": ""})py"},
      {"code='" + wide + "\\n" + wide + "é\n', n=" + wide,
       "{\"code\": \"" + wide + "\\n" + wide + "é\\n\", \"n\": " + wide + "}"},
      {"a=Bonn am Rhein, b=g(1, 'x'), c=1e999", R"py({"a": "Bonn am Rhein", "b": "g(1, 'x')", "c": 1e999})py"},
      {"a='it's 'so'', b = 'x' , c=''y'", R"py({"a": "it's 'so'", "b": "x", "c": "'y"})py"},
      {"filter[status]='x', xs:n=1", R"py({"filter[status]": "x", "xs:n": 1})py"},
      {"a=1, b=[2}", R"py({"a": 1, "b": [2]})py"},
  };
  for (const auto& [python, json] : cases) {
    const std::string text = "<|tool_call_start|>[f(" + python + ")]<|tool_call_end|>";
    const Message message = parse(options("lfm2"), text);
    ASSERT_EQ(message.calls.size(), 1u) << text;
    EXPECT_EQ(message.calls[0].arguments, json) << text;
    EXPECT_EQ(message.content.empty(), python.find("[2}") == std::string::npos) << message.content;
    expect_same_however_cut(options("lfm2"), text);
  }
}

// A template that shows no calls, or not even tools, still gets a conversation that holds them.
TEST(TaggedCalls, PromptsHoldPythonsCallsAndTools) {
  const std::string turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
                    tools = "{{ tools | tojson if tools }}";
  Conversation chat;
  chat.tools_json = kProbeTools;
  chat.messages = {{"user", "Hi"}, {"assistant", "So."}, {"tool", "1"},
                   {"tool", "2"},  {"user", "And?"},     {"assistant", "No."}};
  chat.messages[1].calls = {
      call_json("a", "f", R"({"q": [1e400, true, {"k": null}], "s": "it's\n"})"),
      R"({"function": {"name": "g", "arguments": {"z": null}}})",
      call_json("c", "h", "{\"a\": " + std::string(50'000, '[') + std::string(50'000, ']') + "}")};
  chat.messages[2].call_id = "a";
  const std::string list = R"([f(q=[1e400, True, {"k": None}], s="it's\n"), g(z=None), h(a=)" +
                           std::string(50'000, '[') + std::string(50'000, ']') + ")]";
  for (const bool calls : {true, false}) {
    const auto rendered = [&](const char* name, const std::string& source) {
      const TemplateEngine engine(source);
      const auto format = format_of(engine, name).answers;
      const auto text = (calls ? format : format->without_calls())->render(engine, chat, nullptr);
      EXPECT_TRUE(text.ok()) << text.error().message;
      return text.ok() ? *text : "";
    };
    const std::string deepseek = rendered(
        "auto",
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}<｜tool▁call▁begin｜>{{ c.function.name }}"
        "<｜tool▁sep｜>{{ c.function.arguments }}{% endfor %}{% endfor %}");
    EXPECT_NE(deepseek.find(R"(<｜tool▁call▁begin｜>name<｜tool▁sep｜>{"parameter": "value"}<｜tool▁call▁end｜>)"),
              std::string::npos)
        << deepseek;
    EXPECT_NE(deepseek.find("volley_place"), std::string::npos);
    EXPECT_EQ(rendered("lfm2", "{% if tools %}T{% endif %}volley_probe" + turns),
              "Tvolley_probe[user]Hi[assistant]So.<|tool_call_start|>" + list +
                  "<|tool_call_end|>[tool]1[tool]2[user]And?[assistant]No.");
    const std::string told = rendered("auto", "{% if false %}<start_of_turn>{% endif %}<start_of_turn>" + turns);
    EXPECT_TRUE(told.starts_with("<start_of_turn>[system]You can call these functions:\n[{\"type\"")) << told;
    EXPECT_TRUE(told.ends_with("name()][user]Hi[assistant]So.\n" + list +
                               "[user]```tool_output\n1\n```\n```tool_output\n2\n```\nAnd?[assistant]No."))
        << told;
  }
}

TEST(TaggedCalls, NoByteBehindABrokenKeyIsLost) {
  for (const auto& [text, content] : {std::pair{"<|tool_call_start|>[f(q=1, all)] Bye.", " all)] Bye."},
                                      {"<|tool_call_start|>[f(q=1, all", " all"}}) {
    EXPECT_EQ(parse(options("lfm2"), text), (Message{content, "", {{"f", R"({"q": 1})"}}})) << text;
  }
}

TEST(TaggedCalls, ThoughtsOfTheirOwnMarks) {
  for (const auto& [text, expected] : {
           std::pair{"<|channel>thought\nHm.\n<channel|>Yes." + kGemmaF, Message{"Yes.", "Hm.", {kF}}},
           {"<|channel>thought\n<channel|>Yes.", Message{"Yes.", "", {}}},
           {std::string("Yes <channel|>."), Message{"Yes <channel|>.", "", {}}},
           {"<|channel>thought\nHm. " + kGemmaF, Message{"", "Hm.", {kF}}},
       }) {
    EXPECT_EQ(parse(options("gemma4", ReasoningStart::kClosed), text), expected) << text;
    expect_same_however_cut(options("gemma4", ReasoningStart::kClosed), text);
  }
  // Models call before they close their thoughts.
  EXPECT_EQ(parse(options("kimi_k2", ReasoningStart::kOpen), "Hm. " + kKimiCalls), (Message{"", "Hm.", {kF, kG}}));
  EXPECT_EQ(parse(options("kimi_k2", ReasoningStart::kOpen), kKimiCalls + " no</think>Yes").calls.size(), 0u);
}

// Marks that are tokens without text are read from their places.
TEST(TaggedCalls, HiddenMarksAreSpelt) {
  class Hiding final : public SilentEngine {
   public:
    Hiding() : SilentEngine({"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"}) {}
    std::string decode(std::span<const TokenId> ids, bool skip_special) const override {
      return skip_special ? "" : SilentEngine::decode(ids, false);
    }
  };
  const OutputFormat format = format_of(Hiding(), "gemma4", "gemma4");
  EXPECT_TRUE(format.think_tokens);
  GenerateRequest request;
  OutputParser::Options options{format.answers, ReasoningStart::kClosed, "call_"};
  format.answers->plan(true, request, options);
  ASSERT_TRUE(request.parts.has_value());
  EXPECT_EQ(request.parts->marks.size(), 5u);
  OutputParser parser(options);
  Message message;
  message.add(
      parser.push("thought\nHm.Yes.call:f{s:a}", std::vector<Event::Mark>{{3, 0}, {4, 11}, {0, 15}, {2, 24}, {2, 25}}));
  message.add(parser.push("", std::vector<Event::Mark>{}));
  message.add(parser.mark(1));
  message.add(parser.finish());
  EXPECT_EQ(message, (Message{"Yes.", "Hm.", {{"f", "{\"s\": \"a\"}"}}}));
  // Without tools the thoughts are still told from content.
  EXPECT_EQ(
      parse({format.answers->without_calls(), ReasoningStart::kClosed}, "<|channel>thought\nHm.<channel|>" + kGemmaF),
      (Message{kGemmaF, "Hm.", {}}));
}

TEST(TaggedCalls, ToolsInTypeScript) {
  EXPECT_EQ(typescript_tools(R"([{"type": "function", "function": {"name": "find", "description": "Finds\n\nthings.",
    "parameters": {"type": "object", "required": ["q"], "additionalProperties": false,
      "$defs": {"Unit": {"enum": ["m", 2, null], "description": "A unit."}},
      "properties": {"q": {"type": "string", "description": "What.", "minLength": 1, "maxLength": 9},
        "n": {"type": "integer", "default": 3, "minimum": 0}, "unit": {"$ref": "#/$defs/Unit"},
        "all": {"type": ["boolean", "null"], "default": true}, "any": {},
        "list": {"type": "array", "maxItems": 2, "items": {"type": "number", "maximum": 1.5}},
        "at": {"type": "object", "properties": {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
               "additionalProperties": {"type": "array"}}}}}},
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "tree", "parameters": {"type": "object",
      "properties": {"left": {"$ref": "#"}, "v": {"type": "string", "default": ["a", 1]}}, "required": ["v"]}}}])"),
            R"(# Tools

## functions
namespace functions {
// A unit.
interface Unit "m" | 2 | None
// Finds

// things.
type find = (_: {
  // What.
  // maxLength: 9, minLength: 1
  q: string,
  // Default: True
  all?: boolean | null,
  any?: any,
  at?: {
    x?: string | null,
    [k: string]: Array<any>
  },
  // maxItems: 2
  list?: Array<
    // maximum: 1.5
    number
  >,
  // minimum: 0
  // Default: 3
  n?: number,
  unit?: Unit,
  [k: string]: never
}) => any;
type now = (_: {}) => any;
interface parameters {
  left?: parameters,
  // Default: ["a", 1]
  v: string
}
type tree = (_: parameters) => any;
}
)");
  EXPECT_EQ(typescript_tools(R"([{"type": "function", "function": {"name": "f",
    "parameters": {"properties": {"x": {"$ref": "#/elsewhere"}}}}}])"),
            std::nullopt);
  EXPECT_EQ(typescript_tools("[]"), std::nullopt);
  std::string kwargs;
  for (const char* value : {"1", "2"}) add_variable(kwargs, "a", value);
  add_variable(kwargs, "b", "3");
  EXPECT_EQ(kwargs, R"({"b": 3, "a": 1})");
}

TEST(TaggedCalls, KimisPromptsCountCallsAndDeclareToolsInTypeScript) {
  const TemplateEngine engine(
      "{{ thinking }} {{ enable_thinking }} {{ tools_ts_str }}{% for m in messages %}"
      "{% for c in m.tool_calls %}{{ c.id }} {% endfor %}{{ m.tool_call_id }};{% endfor %}");
  Conversation chat;
  chat.template_kwargs_json = R"({"enable_thinking": true})";
  chat.tools_json = R"([{"type": "function", "function": {"name": "now"}}])";
  chat.messages = {{"assistant", {}}, {"tool", "x"}, {"assistant", {}}, {"tool", "x"}};
  chat.messages[0].calls = {call_json("a", "f", "{}"), call_json("b", "g", "{}")};
  chat.messages[1].call_id = "b";
  chat.messages[2].calls = {call_json("a", "f", "{}")};
  chat.messages[3].call_id = "a";
  for (const auto& answers : {answers_named("kimi_k2"), answers_named("kimi_k2")->without_calls()}) {
    const auto text = answers->render(engine, chat, nullptr);
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(*text,
              "True True # Tools\n\n## functions\nnamespace functions {\ntype now = (_: {}) => any;\n}\n"
              "functions.f:0 functions.g:1 ;functions.g:1;functions.f:2 ;functions.f:2;");
  }
}

}  // namespace
}  // namespace volley::serve
