// Compiled grammars of call_grammar.h on texts, and on the parser that reads what they allow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/api/tool_choice.h"
#include "serve/formats/call_grammar.h"
#include "serve/formats/format_for_test.h"
#include "text/grammar_testing.h"

namespace volley::serve::tool_grammar_cases {
namespace {

using nlohmann::json;

constexpr const char* kTools = R"("tools": [
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"], "additionalProperties": false, "$defs": {"city": {"enum": ["Bonn", "K\u00f6ln"]}}}}},
  {"type": "function", "function": {"name": "say \"hi\"", "parameters": {
    "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"], "additionalProperties": false,
    "$defs": {"city": {"type": "boolean"}}}}}])";

constexpr const char* kRequired = R"("tool_choice": "required")";
constexpr const char* kRequiredOne = R"("tool_choice": "required", "parallel_tool_calls": false)";
constexpr const char* kNamed = R"("tool_choice": {"type": "function", "function": {"name": "weather"}})";
constexpr const char* kAutoAllowed = R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto",
    "tools": [{"type": "function", "function": {"name": "weather"}}]}})";
constexpr const char* kAutoOne = R"("parallel_tool_calls": false)";

const std::string kCalledWeather =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\", \"days\": 3}}\n</tool_call>";
const std::string kSay = "<tool_call>\n{\"name\": \"say \\\"hi\\\"\", \"arguments\": {\"city\": true}}\n</tool_call>";

OutputFormat hermes() {
  return format_named("hermes");
}
OutputFormat llama() {
  return format_named("llama");
}
OutputFormat coder() {
  return format_named("qwen3_coder");
}
OutputFormat mistral(bool named) {
  return format_of(SilentEngine({}, named ? "[TOOL_CALLS]volley_probe" : ""), "mistral", "none");
}

ToolRequest tool_request(const std::string& fields, const std::string& tools = kTools) {
  const std::string body = "{" + tools + ", " + fields + "}";
  const json parsed = json::parse(body);
  FieldReader in(parsed);
  ToolRequest request;
  read_tools(in, body, request);
  EXPECT_FALSE(in.error()) << in.error()->message;
  return request;
}

GrammarSpec grammar(const OutputFormat& format, const std::string& fields,
                    ReasoningStart reasoning = ReasoningStart::kOff, const std::string& tools = kTools) {
  const ToolRequest request = tool_request(fields, tools);
  const auto made = tool_grammar(request, format, reasoning);
  EXPECT_TRUE(made.ok() && made->has_value()) << fields;
  return made.ok() && *made ? **made : GrammarSpec{};
}

class ToolGrammarTest : public text::GrammarTest {
 protected:
  static void expect_accepted(const GrammarSpec& grammar, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) EXPECT_TRUE(accepts(grammar, text)) << text << "\n\n" << grammar.text;
  }
  static void expect_refused(const GrammarSpec& grammar, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) EXPECT_FALSE(accepts(grammar, text)) << text << "\n\n" << grammar.text;
  }
};

TEST_F(ToolGrammarTest, RequiredHermesCalls) {
  const GrammarSpec required = grammar(hermes(), kRequired);
  expect_accepted(required,
                  {kCalledWeather, kSay, kCalledWeather + "\n" + kSay + "\n" + kCalledWeather,
                   "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>"});
  expect_refused(required,
                 {"", "Hello.", "Hello. " + kCalledWeather, kCalledWeather + kSay, kCalledWeather + "\nBye.",
                  "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
                  "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>",
                  "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": true}}\n</tool_call>",
                  "<tool_call>\n{\"name\": \"say \\\"hi\\\"\", \"arguments\": true}\n</tool_call>",
                  "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":  \"Bonn\"}}\n</tool_call>"});
}

TEST_F(ToolGrammarTest, OneCallAndANamedCall) {
  expect_accepted(grammar(hermes(), kRequiredOne), {kCalledWeather, kSay});
  expect_refused(grammar(hermes(), kRequiredOne), {"", kCalledWeather + "\n" + kSay});
  expect_accepted(grammar(hermes(), kNamed), {kCalledWeather});
  expect_refused(grammar(hermes(), kNamed), {"", kSay, kCalledWeather + "\n" + kCalledWeather});
}

// Text is free, but a marker must begin an allowed call.
TEST_F(ToolGrammarTest, AutoHoldsCallsToTheirForm) {
  const GrammarSpec allowed = grammar(hermes(), kAutoAllowed);
  expect_accepted(allowed, {"", "Hello <b>, <tool_cal", kCalledWeather, "Let me see.\n" + kCalledWeather,
                            kCalledWeather + kCalledWeather, kCalledWeather + "\nand\n" + kCalledWeather + "\nBye."});
  expect_refused(allowed, {kSay, "Hm: " + kSay, "<tool_call>", "a <tool_call> b", kCalledWeather + "<tool_call>\nx"});
  const GrammarSpec one = grammar(hermes(), kAutoOne);
  expect_accepted(one, {"", "Hello.", kSay, "Hm: " + kCalledWeather});
  expect_refused(one, {kCalledWeather + kCalledWeather, kCalledWeather + "\nBye."});
}

TEST_F(ToolGrammarTest, ReasoningComesFirst) {
  const GrammarSpec closed = grammar(hermes(), kNamed, ReasoningStart::kClosed);
  expect_accepted(
      closed, {kCalledWeather, "<think>\nHm </b>.\n</think>\n\n" + kCalledWeather, "<think></think>" + kCalledWeather});
  expect_refused(closed,
                 {"Hm." + kCalledWeather, "<think>\n" + kCalledWeather, "<think>Hm.</think>Hm." + kCalledWeather});
  const GrammarSpec open = grammar(hermes(), kNamed, ReasoningStart::kOpen);
  expect_accepted(open, {"Hm.\n</think>\n\n" + kCalledWeather, "</think>" + kCalledWeather});
  expect_refused(open, {kCalledWeather, "Hm.", "Hm.</think>"});
}

TEST_F(ToolGrammarTest, Llama) {
  const std::string weather = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bonn\"}}";
  const std::string say = "{\"name\": \"say \\\"hi\\\"\", \"parameters\": {\"city\": false}}";
  expect_accepted(grammar(llama(), kRequired), {weather, say, weather + "; " + say});
  expect_refused(grammar(llama(), kRequired), {"", "Hello.", kCalledWeather, weather + say, weather + ";", "{}"});
  expect_accepted(grammar(llama(), kNamed), {weather});
  expect_refused(grammar(llama(), kNamed), {say, weather + "; " + weather});
  expect_accepted(grammar(llama(), kAutoAllowed), {"", "Hello {}.", "\n a", weather, weather + "; " + weather});
  expect_refused(grammar(llama(), kAutoAllowed), {"{", " {}", say, weather + " Bye."});
  expect_accepted(grammar(llama(), kNamed, ReasoningStart::kOpen), {"Hm.</think>\n" + weather});
  OutputFormat one = llama();
  one.several_calls = false;
  for (const char* choice : {kRequired, kAutoAllowed}) {
    expect_accepted(grammar(one, choice), {weather});
    expect_refused(grammar(one, choice), {weather + "; " + weather});
  }
}

std::string coder_call(const std::string& name, const std::string& parameters) {
  return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
}
std::string parameter(const std::string& key, const std::string& value) {
  return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
}

TEST_F(ToolGrammarTest, QwenCoder) {
  const std::string bonn = parameter("city", "Bonn");
  const std::string weather = coder_call("weather", bonn + parameter("days", "3"));
  const std::string say = coder_call("say \"hi\"", parameter("city", "true"));
  const GrammarSpec required = grammar(coder(), kRequired);
  expect_accepted(required, {weather, say, coder_call("weather", parameter("city", "Köln")), weather + "\n" + say});
  expect_refused(
      required,
      {"", "Hello.", kCalledWeather, weather + say, coder_call("weather", ""), coder_call("other", ""),
       coder_call("weather", parameter("city", "Berlin")), coder_call("weather", bonn + parameter("days", "10")),
       coder_call("weather", bonn + parameter("days", "\"3\"")), coder_call("weather", bonn + parameter("hours", "3")),
       coder_call("say \"hi\"", parameter("city", "True"))});
  expect_accepted(grammar(coder(), kNamed), {weather});
  expect_refused(grammar(coder(), kNamed), {say, weather + "\n" + weather});
  expect_accepted(grammar(coder(), kAutoAllowed), {"", "Hello <b>.", "Hm: " + weather + "\nand\n" + weather});
  expect_refused(grammar(coder(), kAutoAllowed), {say, "<tool_call>\n", weather + "<tool_call>x"});
  expect_accepted(grammar(coder(), kNamed, ReasoningStart::kOpen), {"Hm.</think>\n" + weather});
}

TEST_F(ToolGrammarTest, QwenCoderTextAndToolsWithoutParameters) {
  const std::string tools = R"("tools": [
    {"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {
      "text": {"type": "string"}, "mode": {"type": ["integer", "null"]}, "any": {}, "list": {"type": "array"}},
      "required": ["text"]}}},
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "free", "parameters": {"type": "object"}}}])";
  const GrammarSpec required = grammar(coder(), kRequired, ReasoningStart::kOff, tools);
  const std::string text = parameter("text", "\n  if (a < \"b\") {\n\n  </p>");
  expect_accepted(required,
                  {coder_call("write", text), coder_call("write", parameter("text", "")),
                   coder_call("write", text + parameter("mode", "null") + parameter("any", "x{") +
                                           parameter("list", "[1, {\"a\": []}]")),
                   coder_call("now", ""), coder_call("free", ""), coder_call("free", text + parameter("b", "1"))});
  expect_refused(required, {coder_call("write", ""), coder_call("write", text + parameter("mode", "\"x\"")),
                            coder_call("write", text + parameter("list", "1")), coder_call("now", text),
                            coder_call("write", parameter("text", "a</parameter>b"))});
}

// Texts of the two tools' calls in the forms of a table; `between` two of them.
struct Marked {
  std::string name, before, weather, say, between, after;

  std::string of(const std::string& call) const { return before + call + after; }
  std::string both() const {
    return between.empty() && before.empty() ? weather + say : before + weather + between + say + after;
  }
  std::string with(std::string_view old, std::string_view now) const {
    std::string call = weather;
    return of(call.replace(call.find(old), old.size(), now));
  }
};

const std::vector<Marked>& marked_forms() {
  static const auto json_call = [](const std::string& head, const std::string& tail, bool first) {
    return head + (first ? "weather" : "say \"hi\"") + tail +
           (first ? R"({"city": "Bonn", "days": 3})" : R"({"city": true})");
  };
  static const std::vector<Marked> kForms = {
      {"deepseek_v3", "<｜tool▁calls▁begin｜>",
       json_call("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", true) + "<｜tool▁call▁end｜>",
       json_call("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", false) + "<｜tool▁call▁end｜>", "", "<｜tool▁calls▁end｜>"},
      {"kimi_k2", "<|tool_calls_section_begin|>",
       json_call("<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", true) + "<|tool_call_end|>",
       json_call("<|tool_call_begin|>functions.", ":12<|tool_call_argument_begin|>", false) + "<|tool_call_end|>", "",
       "<|tool_calls_section_end|>"},
      {"glm45", "",
       "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n<arg_key>days</arg_key>\n"
       "<arg_value>3</arg_value>\n</tool_call>",
       "<tool_call>say \"hi\"\n<arg_key>city</arg_key>\n<arg_value>true</arg_value>\n</tool_call>", "\n", ""},
      {"minimax_m2", "<minimax:tool_call>\n",
       "<invoke name=\"weather\">\n<parameter name=\"city\">Bonn</parameter>\n<parameter name=\"days\">3</parameter>\n"
       "</invoke>",
       "<invoke name=\"say \"hi\"\">\n<parameter name=\"city\">true</parameter>\n</invoke>", "\n",
       "\n</minimax:tool_call>"},
      {"gemma4", "", "<|tool_call>call:weather{city:<|\"|>Bonn<|\"|>,days:3}<tool_call|>",
       "<|tool_call>call:say \"hi\"{city:true}<tool_call|>", "", ""},
      {"lfm2", "<|tool_call_start|>[", "weather(city=\"Bonn\", days=3)", "say \"hi\"(city=True)", ", ",
       "]<|tool_call_end|>"},
      {"pythonic", "[", "weather(city=\"Bonn\", days=3)", "say \"hi\"(city=True)", ", ", "]"},
  };
  return kForms;
}

TEST_F(ToolGrammarTest, FormsOfATable) {
  for (const Marked& form : marked_forms()) {
    const OutputFormat format = format_named(form.name);
    const GrammarSpec required = grammar(format, kRequired), named = grammar(format, kNamed);
    expect_accepted(required, {form.of(form.weather), form.of(form.say), form.both(), form.with("Bonn", "Köln")});
    expect_refused(required,
                   {"", "Hello.", kCalledWeather, form.of(form.weather) + " Bye.", form.with("Bonn", "Berlin"),
                    form.with("3", "10"), form.with("weather", "other"), form.with("days", "hours")});
    expect_accepted(named, {form.of(form.weather)});
    expect_refused(named, {form.of(form.say), form.both()});
    expect_refused(grammar(format, kRequiredOne), {form.both()});
    const GrammarSpec allowed = grammar(format, kAutoAllowed);
    expect_accepted(allowed, {"", "Hello <b>.", "Hm: " + form.of(form.weather)});
    expect_refused(allowed, {form.of(form.say), form.before.empty() ? form.weather.substr(0, 12) + "x" : form.of("x")});
    if (form.name != "gemma4") {
      expect_accepted(grammar(format, kNamed, ReasoningStart::kOpen), {"Hm.</think>\n" + form.of(form.weather)});
    }
  }
  const GrammarSpec open = grammar(format_named("gemma4"), kNamed, ReasoningStart::kClosed);
  const std::string weather = marked_forms()[4].weather;
  expect_accepted(open, {weather, "<|channel>thought\nHm.\n<channel|>" + weather});
  expect_refused(open, {"Hm." + weather, "<|channel>" + weather});
}

// Values that are no JSON have a grammar of their own, which follows the schema.
constexpr const char* kValueTools = R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "required": ["b"], "$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}}},
    "properties": {"a": {"type": ["string", "null"]}, "b": {"type": "array", "items": {"enum": ["x", "y"]}},
      "c": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
      "d": {}, "e": {"$ref": "#/$defs/t"}, "g": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}}},
    {"type": "function", "function": {"name": "free"}},
    {"type": "function", "function": {"name": "any", "parameters": {"type": "object"}}}])";

TEST_F(ToolGrammarTest, GemmaValues) {
  const GrammarSpec required = grammar(format_named("gemma4"), kRequired, ReasoningStart::kOff, kValueTools);
  const auto call = [](const std::string& text) { return "<|tool_call>call:" + text + "<tool_call|>"; };
  expect_accepted(required, {call("f{b:[]}"), call(R"(f{a:null,b:[<|"|>x<|"|>,<|"|>y<|"|>]})"),
                             call(R"(f{a:<|"|>{"q": [1]},b:<|"|>,b:[],c:{n:4,s:<|"|><|"|>},d:[{k:true},1.5]})"),
                             call("f{b:[],e:{t:{t:{}}}}"), call("free{}"), call(R"(any{k:{l:[1]},m:<|"|>n<|"|>})")});
  expect_refused(required, {call("f{}"), call("f{a:null}"), call("f{b:[],a:null}"), call(R"(f{b:[<|"|>z<|"|>]})"),
                            call("f{b:[],c:{}}"), call("f{b:[],c:{n:1.5}}"), call("f{b:[],}"), call("f{,b:[]}"),
                            call("free{a:1}"), call("f{b:[],e:{t:1}}")});
}

TEST_F(ToolGrammarTest, PythonValues) {
  for (const auto& [name, begin, end] :
       {std::tuple{"pythonic", "[", "]"}, {"lfm2", "<|tool_call_start|>[", "]<|tool_call_end|>"}}) {
    const GrammarSpec required = grammar(format_named(name), kRequired, ReasoningStart::kOff, kValueTools);
    for (const char* call : {"f(b=[])", R"(f(a=None, b=["x", "y"]))",
                             R"(f(a="{\"q\": '1'}", b=[], c={"n": 4, "s": ""}, d=[{"k": True}, 1.5]))",
                             R"(f(b=[], e={"t": {"t": {}}}), free())", "f(b=[], g=4)", "f(b=[], g=None)",
                             R"(any(k={"l": [1, None]}, m="n"))", "free(), any()"}) {
      expect_accepted(required, {begin + std::string(call) + end});
    }
    for (const char* call :
         {"f()", "f(a=None)", "f(b=[], a=None)", R"(f(b=["z"]))", "f(b=[], c={})", R"(f(b=[], c={"n": 1.5}))",
          "f(b=[],)", "f(b=[], e={\"t\": 1})", "free(a=1)", "f(b=[], g=1.5)", "f(a=null, b=[])", "f(b = [])",
          "any(k='x')", "any(1)", "f(b=[]);free()", ""}) {
      expect_refused(required, {begin + std::string(call) + end});
    }
  }
}

// The reader takes a list at a line's beginning for calls, so free text has none.
TEST_F(ToolGrammarTest, PythonsCallsBeginNoLaterLine) {
  const GrammarSpec allowed = grammar(format_named("pythonic"), kAutoAllowed);
  expect_accepted(allowed, {"Hm.\n\n[1]", "See\n[weather](x)"});
  expect_refused(allowed, {"Hm.\n[weather(days=\"x\")]", "```tool_code\n [ weather (days=\"x\")]\n```"});
}

TEST_F(ToolGrammarTest, MistralLists) {
  const std::string weather = R"({"name": "weather", "arguments": {"city": "Bonn"}})";
  const std::string say = R"({"name": "say \"hi\"", "arguments": {"city": false}})";
  const GrammarSpec required = grammar(mistral(false), kRequired);
  expect_accepted(required, {"[TOOL_CALLS] [" + weather + "]", "[TOOL_CALLS][" + say + ", " + weather + "]"});
  expect_refused(required, {"", "Hello.", "[" + weather + "]", "[TOOL_CALLS] []", "[TOOL_CALLS] [" + weather + "] x",
                            "[TOOL_CALLS] " + weather, "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {}}]"});
  const std::string two = "[TOOL_CALLS] [" + weather + ", " + weather + "]";
  expect_refused(grammar(mistral(false), kNamed), {two, "[TOOL_CALLS] [" + say + "]"});
  expect_accepted(grammar(mistral(false), kAutoAllowed), {"", "Hello [1].", two, "Hm: " + two});
  expect_refused(grammar(mistral(false), kAutoAllowed), {"[TOOL_CALLS]", "[TOOL_CALLS] [" + say + "]", two + " Bye."});
}

TEST_F(ToolGrammarTest, MistralNamedCalls) {
  const std::string weather = R"([TOOL_CALLS]weather[ARGS]{"city": "Bonn"})";
  const std::string say = R"([TOOL_CALLS]say "hi"[ARGS]{"city": false})";
  const GrammarSpec required = grammar(mistral(true), kRequired);
  expect_accepted(required, {weather, say, weather + say + weather});
  expect_refused(required, {"", "Hello.", "weather{}", weather + " ", "[TOOL_CALLS]weather[ARGS]{}",
                            "[TOOL_CALLS]other[ARGS]{}", R"([TOOL_CALLS]weather{"city": "Bonn"})"});
  expect_accepted(grammar(mistral(true), kNamed), {weather});
  expect_refused(grammar(mistral(true), kNamed), {say, weather + weather});
  expect_accepted(grammar(mistral(true), kAutoAllowed), {"", "Hello [1].", weather, "Hm: " + weather + weather});
  expect_refused(grammar(mistral(true), kAutoAllowed), {"[TOOL_CALLS]", say, weather + say, weather + " Bye."});
  expect_accepted(grammar(mistral(true), kNamed, ReasoningStart::kOpen), {"Hm.</think>\n" + weather});
}

// With tools that may be called, a text's form allows calls or that form alone.
TEST_F(ToolGrammarTest, CallsOrJson) {
  const std::string list = R"([TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bonn"}}])";
  const std::string named = R"([TOOL_CALLS]weather[ARGS]{"city": "Bonn"})";
  const std::string bare = R"({"name": "weather", "parameters": {"city": "Bonn"}})";
  const std::string tagged = coder_call("weather", parameter("city", "Bonn"));
  const std::tuple<OutputFormat, std::string, std::string> formats[] = {
      {hermes(), kCalledWeather, kCalledWeather + "\n" + kSay},
      {coder(), tagged, tagged + "\n" + tagged},
      {llama(), bare, bare + "; " + bare},
      {mistral(false), list, list},
      {format_named("kimi_k2"), marked_forms()[1].of(marked_forms()[1].weather), marked_forms()[1].both()},
      {format_named("glm45"), marked_forms()[2].weather, marked_forms()[2].both()},
      {format_named("gemma4"), marked_forms()[4].weather, marked_forms()[4].both()},
      {format_named("lfm2"), marked_forms()[5].of(marked_forms()[5].weather), marked_forms()[5].both()},
      {format_named("pythonic"), marked_forms()[6].of(marked_forms()[6].weather), marked_forms()[6].both()},
      {mistral(true), named, named + named}};
  const GrammarSpec trip =
      schema(nlohmann::ordered_json::parse(R"({"type": "object", "properties": {"name": {"type": "string"},
      "parameters": {"type": "integer"}, "n": {"type": "number"}}, "additionalProperties": false})"));
  for (const auto& [format, call, calls] : formats) {
    for (const ReasoningStart start : {ReasoningStart::kOff, ReasoningStart::kOpen}) {
      const std::string lead =
          start == ReasoningStart::kOpen ? "Hm." + std::string(format.answers->think_tags().end) + "\n" : "";
      const ToolRequest request = tool_request(R"("tool_choice": "auto")");
      ASSERT_TRUE(may_call_instead(request, format, start));
      const GrammarSpec either = calls_or(trip, request, format, start);
      expect_accepted(either, {lead + call, lead + calls, lead + "{}", lead + R"({"n": 1})",
                               lead + R"({"name": "weather", "parameters": 5})", lead + R"({"name": "we", "n": 2.5})",
                               lead + R"({"name": "Bonn"})"});
      const bool is_llama = call == bare;
      EXPECT_NE(accepts(either, lead + R"({ "n":1 })"), is_llama) << "white space is that of calls there";
      const GrammarSpec any = calls_or({GrammarSpec::Kind::kJsonObject, "", {}}, request, format, start);
      expect_accepted(any, {lead + call, lead + calls, lead + R"({"a": [1, {"name": "weather"}]})"});
      expect_refused(any, {lead + "[]", lead + "Hello."});
      expect_refused(either, {lead, lead + "Hello.", lead + call + "{}", lead + "{}" + call, lead + R"({"m": 1})",
                              lead + R"({"n": 1} )" + call});
      const GrammarSpec of_choice = calls_or(choice({"yes", "no"}), request, format, start);
      expect_accepted(of_choice, {lead + call, lead + "yes", lead + "no"});
      expect_refused(of_choice, {lead + "maybe", lead + "yes" + call});
    }
    const GrammarSpec one = calls_or(trip, tool_request(kAutoOne), format, ReasoningStart::kOff);
    expect_accepted(one, {call, "{}"});
    if (calls != call) expect_refused(one, {calls});
    EXPECT_FALSE(may_call_instead(tool_request(kRequired), format, ReasoningStart::kOff));
  }
  EXPECT_FALSE(may_call_instead(tool_request(kAutoOne), {}, ReasoningStart::kOff)) << "calls would not be read";
}

// In any text that the masks allow, the parser finds calls whose arguments follow their schemas.
TEST_F(ToolGrammarTest, RandomTextsParse) {
  std::mt19937 random(3);
  std::vector<OutputFormat> formats = {hermes(), llama(), coder(), mistral(false), mistral(true)};
  for (const Marked& form : marked_forms()) formats.push_back(format_named(form.name));
  for (const OutputFormat& format : formats) {
    const auto types = tool_types(tool_request(kRequired), format);
    const GrammarSpec required = grammar(format, kRequired);
    int calls = 0;
    for (int round = 0; round < 40; ++round) {
      const auto walker = matcher(required);
      ASSERT_NE(walker, nullptr);
      const std::string text = random_text(*walker, random, 4000);
      OutputParser parser({format.answers, ReasoningStart::kOff, "call_", types});
      std::vector<std::pair<std::string, std::string>> found;
      for (const OutputDelta& delta : {parser.push(text), parser.finish()}) {
        ASSERT_EQ(delta.content(), "") << text;
        for (auto& call : delta.tool_calls()) found.emplace_back(call.name, call.arguments);
      }
      ASSERT_FALSE(found.empty()) << text;
      for (const auto& [name, arguments] : found) {
        const json city = json::parse(arguments).at("city");
        if (name == "weather") {
          ASSERT_TRUE(city == "Bonn" || city == "Köln") << text;
        } else {
          ASSERT_EQ(name, "say \"hi\"");
          ASSERT_TRUE(city.is_boolean()) << text;
        }
        ++calls;
      }
    }
    EXPECT_GT(calls, 40);
  }
}

// Qwen's vocabularies have the markers as tokens, which the model was trained to write instead of letters.
class MarkerTokensTest : public testing::Test {
 protected:
  class MarkerEngine final : public SilentEngine {
   public:
    MarkerEngine(const text::Tokenizer& tokenizer, const char* call) : SilentEngine({}, call), tokenizer_(tokenizer) {}
    Result<std::vector<TokenId>> encode_within(std::string_view text, bool, const EncodeLimits&) const override {
      return tokenizer_.encode(text, false);
    }
    std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
      return tokenizer_.decode(ids, skip_special_tokens);
    }

   private:
    const text::Tokenizer& tokenizer_;
  };

  void SetUp() override {
    auto spec = json::parse(std::ifstream("models/pocket/tokenizer.json"));
    int id = kFirst;
    for (const std::string marker : {"<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]",
                                     "<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"}) {
      spec["added_tokens"].push_back({{"id", id++},
                                      {"content", marker},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", marker[0] == '[' || marker.find('|') != std::string::npos}});
    }
    tokenizer_ = text::load_tokenizer(spec);
    ASSERT_NE(tokenizer_, nullptr);
  }

  bool accepts(const GrammarSpec& grammar, const std::string& text) const {
    const auto ids = tokenizer_->encode(text, false);
    EXPECT_TRUE(ids.ok());
    return accepts(grammar, *ids);
  }
  bool accepts(const GrammarSpec& grammar, const std::vector<TokenId>& ids) const {
    const auto matcher = tokenizer_->grammars()->compile(grammar);
    EXPECT_TRUE(matcher.ok()) << matcher.error().message << "\n" << grammar.text;
    if (!matcher.ok()) return false;
    constexpr int kWords = (kFirst + 11 + 31) / 32;
    std::vector<uint32_t> words((ids.size() + 1) * kWords);
    std::vector<text::TextEnd> ends(ids.size() + 1);
    const auto filled = (*matcher)->masks_along(ids, words.data(), kWords, ends.data());
    EXPECT_TRUE(filled.status.ok());
    return filled.rows == static_cast<int32_t>(ids.size()) + 1 && ends.back() != text::TextEnd::kNo;
  }

  static constexpr int kFirst = 2048;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
};

TEST_F(MarkerTokensTest, CallsUseTheTokens) {
  const GrammarSpec required = grammar(format_of(MarkerEngine(*tokenizer_, ""), "hermes", "none"), kRequired);
  EXPECT_TRUE(accepts(required, kCalledWeather));
  EXPECT_TRUE(accepts(required, kCalledWeather + "\n" + kSay));
  EXPECT_FALSE(accepts(required, kCalledWeather + "\nBye."));
  std::vector<TokenId> spelt;
  for (const std::string part : {"<tool", "_call>\n{"}) {
    const auto ids = tokenizer_->encode(part, false);
    spelt.insert(spelt.end(), ids->begin(), ids->end());
  }
  EXPECT_FALSE(accepts(required, spelt));
}

TEST_F(MarkerTokensTest, TextAndReasoning) {
  const GrammarSpec allowed = grammar(format_of(MarkerEngine(*tokenizer_, ""), "hermes", "none"), kAutoAllowed);
  EXPECT_TRUE(accepts(allowed, "Hello."));
  EXPECT_TRUE(accepts(allowed, ""));
  EXPECT_TRUE(accepts(allowed, "Hm: " + kCalledWeather + "\n" + kCalledWeather + " Bye."));
  EXPECT_FALSE(accepts(allowed, kSay));
  const GrammarSpec closed =
      grammar(format_of(MarkerEngine(*tokenizer_, ""), "hermes", "none"), kNamed, ReasoningStart::kClosed);
  EXPECT_TRUE(accepts(closed, kCalledWeather));
  EXPECT_TRUE(accepts(closed, "<think>\nHm.\n</think>\n\n" + kCalledWeather));
  EXPECT_TRUE(accepts(closed, "<think></think>" + kCalledWeather));
  EXPECT_FALSE(accepts(closed, "Hm." + kCalledWeather));
  const GrammarSpec open =
      grammar(format_of(MarkerEngine(*tokenizer_, ""), "hermes", "none"), kNamed, ReasoningStart::kOpen);
  EXPECT_TRUE(accepts(open, "Hm.\n</think>\n\n" + kCalledWeather));
  EXPECT_FALSE(accepts(open, kCalledWeather));
}

// Gemma's are special tokens, which text hides and no letters spell.
TEST_F(MarkerTokensTest, GemmaCallsUseTheTokens) {
  const OutputFormat format = format_of(MarkerEngine(*tokenizer_, ""), "gemma4", "gemma4");
  const std::string weather = marked_forms()[4].weather;
  EXPECT_TRUE(accepts(grammar(format, kRequired), weather + marked_forms()[4].say));
  EXPECT_FALSE(accepts(grammar(format, kRequired), "call:weather{city:Bonn}"));
  EXPECT_TRUE(accepts(grammar(format, kAutoAllowed), "Hm: " + weather));
  const GrammarSpec closed = grammar(format, kNamed, ReasoningStart::kClosed);
  EXPECT_TRUE(accepts(closed, "<|channel>thought\nHm.\n<channel|>" + weather));
  EXPECT_FALSE(accepts(closed, "Hm." + weather));
}

// Mistral's markers are special tokens: text hides them, but calls are still found.
TEST_F(MarkerTokensTest, MistralCallsUseTheTokensAndAreReadWithoutThem) {
  const OutputFormat format = format_of(MarkerEngine(*tokenizer_, "[TOOL_CALLS]volley_probe"), "mistral", "none");
  const GrammarSpec named = grammar(format, kRequired);
  const std::string calls = R"([TOOL_CALLS]weather[ARGS]{"city": "Bonn"}[TOOL_CALLS]say "hi"[ARGS]{"city": true})";
  EXPECT_TRUE(accepts(named, calls));
  EXPECT_FALSE(accepts(named, R"(weather{"city": "Bonn"})"));
  EXPECT_TRUE(accepts(grammar(format, kAutoAllowed), R"(Hm: [TOOL_CALLS]weather[ARGS]{"city": "Bonn"})"));
  EXPECT_TRUE(accepts(grammar(format, kAutoAllowed), "Hm."));

  const auto ids = tokenizer_->encode(calls, false);
  ASSERT_TRUE(ids.ok());
  const std::string text = tokenizer_->decode(*ids, /*skip_special_tokens=*/true);
  EXPECT_EQ(text, R"(weather{"city": "Bonn"}say "hi"{"city": true})");
  OutputParser parser({format.answers, ReasoningStart::kOff, "call_", tool_types(tool_request(kRequired), format)});
  const OutputDelta delta = parser.push(text);
  ASSERT_EQ(delta.tool_calls().size(), 2u);
  EXPECT_EQ(delta.tool_calls()[1].name, "say \"hi\"");
  EXPECT_EQ(delta.content(), "");

  const OutputFormat list = format_of(MarkerEngine(*tokenizer_, ""), "mistral", "none");
  EXPECT_TRUE(
      accepts(grammar(list, kRequired), R"([TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bonn"}}])"));
}

}  // namespace
}  // namespace volley::serve::tool_grammar_cases
