// Templates render as transformers renders them: tests/make/make_template_fixtures.py wrote the expected output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "text/test_model.h"
#include "text/text.h"

namespace volley::text {
namespace {

using stored_json = nlohmann::ordered_json;  // as it is stored: messages print their keys in order
using testing::HasSubstr;

Result<std::string> render(const std::string& source, const ChatMessages& input) {
  const ModelDir dir({{"chat_template.jinja", source}});
  VOLLEY_ASSIGN(const auto chat, ChatTemplate::load(dir.path()));
  return chat->render(input);
}

std::string text_of(const Result<std::string>& text) {
  return text.ok() ? *text : "error: " + text.error().message;
}

stored_json read_fixture(const std::string& name) {
  return stored_json::parse(std::ifstream("tests/data/templates/" + name));
}

TEST(PythonTemplates, SnippetsRenderAsInTransformers) {
  const stored_json fixture = read_fixture("snippets.json");
  const std::string messages = fixture.at("messages").dump(), variables = fixture.at("variables").get<std::string>();
  ASSERT_GT(fixture.at("snippets").size(), 900u);
  for (const stored_json& snippet : fixture.at("snippets")) {
    const auto source = snippet.at(0).get<std::string>();
    const auto text = render(source, {.messages_json = messages, .template_kwargs_json = variables});
    if (snippet.at(1).is_null()) {
      EXPECT_FALSE(text.ok()) << source << " rendered " << *text;
    } else {
      EXPECT_EQ(text_of(text), snippet.at(1).get<std::string>()) << source;
    }
  }
}

bool has_neighbours(const stored_json& messages_text) {
  const stored_json messages = stored_json::parse(messages_text.get<std::string>());
  for (size_t i = 1; i < messages.size(); ++i) {
    const stored_json role = messages[i].value("role", stored_json());
    if ((role == "user" || role == "assistant") && messages[i - 1].value("role", stored_json()) == role) return true;
  }
  return false;
}

TEST(PythonTemplates, ConversationsRenderAsInTransformers) {
  const stored_json fixture = read_fixture("conversations.json");
  std::vector<std::shared_ptr<const ChatTemplate>> templates;
  for (const stored_json& source : fixture.at("templates")) {
    const ModelDir dir({{"chat_template.jinja", source.get<std::string>()}});
    auto chat = ChatTemplate::load(dir.path());
    ASSERT_TRUE(chat.ok()) << source << chat.error().message;
    templates.push_back(std::move(*chat));
  }
  ASSERT_GE(fixture.at("pairs").size(), 2'350u);
  for (const stored_json& pair : fixture.at("pairs")) {
    const stored_json& conversation = fixture.at("conversations").at(pair.at(1).get<size_t>());
    const auto messages = conversation.at("messages").get<std::string>();
    const auto tools = conversation.at("tools").get<std::string>();
    const auto variables = conversation.at("variables").get<std::string>();
    const auto text = templates.at(pair.at(0).get<size_t>())
                          ->render({.messages_json = messages, .tools_json = tools, .template_kwargs_json = variables});
    const bool refused = pair.at(2).is_null();
    // Templates that refuse two messages of a side in a row get one of them.
    const bool joins = refused && text.ok() && has_neighbours(conversation.at("messages"));
    EXPECT_EQ(text.ok(), !refused || joins) << pair << text_of(text);
    if (text.ok() && !refused) {
      EXPECT_EQ(*text, pair.at(2).get<std::string>()) << pair;
    }
  }
}

// The condition with which current templates ask for tools.
TEST(PythonTemplates, NoneIsNotIterable) {
  const std::string source =
      "{% if tools is iterable and tools | length > 0 %}{{ tools | length }} tools{% else %}no tools{% endif %}";
  EXPECT_EQ(text_of(render(source, {.messages_json = "[]"})), "no tools");
  EXPECT_EQ(text_of(render(source, {.messages_json = "[]", .tools_json = "[]"})), "no tools");
  EXPECT_EQ(text_of(render(source, {.messages_json = "[]", .tools_json = "[{}, {}]"})), "2 tools");
  for (const char* none : {"none", "documents", "{'a': none}.a", "{}.get('a')"}) {
    EXPECT_EQ(text_of(render(std::string("{{ ") + none + " is iterable }}", {.messages_json = "[]"})), "False") << none;
    EXPECT_THAT(text_of(render(std::string("{% for x in ") + none + " %}{% endfor %}", {.messages_json = "[]"})),
                HasSubstr("'NoneType' object is not iterable"));
  }
}

TEST(PythonTemplates, WholeNumbersKeepTheirDigits) {
  const std::string wide = "1000000000000000000000", widest(60, '7');
  const auto print = [](const std::string& source, const std::string& variables) {
    return text_of(render(source, {.messages_json = "[]", .template_kwargs_json = variables}));
  };
  for (const std::string& number : {wide, "-" + wide, widest, "-" + widest, std::string("18446744073709551616"),
                                    std::string("-9223372036854775809"), std::string("18446744073709551615")}) {
    const std::string variables = R"({"n": )" + number + R"(, "l": [)" + number + R"(], "s": ")" + number + R"("})";
    EXPECT_EQ(print("{{ n }} {{ n|tojson }} {{ l }} {{ l|tojson }} {{ n is integer }} {{ s is string }}", variables),
              number + " " + number + " [" + number + "] [" + number + "] True True");
  }
  EXPECT_EQ(print("{{ n + 1 }} {{ n > 5 }}", R"({"n": )" + wide + "}"), "1000000000000000000001 True");
  EXPECT_EQ(print("{{ n }} {{ m }}", R"({"n": 1e21, "m": 1000000000000000000000.5})"), "1e+21 1e+21");
  EXPECT_THAT(print("{{ n + 1 }}", R"({"n": )" + widest + "}"), HasSubstr("more than 38 digits"));

  const std::string calls = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls":
    [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"n\": )" +
                            wide + R"(}"}}]}])";
  EXPECT_EQ(text_of(render("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments|tojson }}"
                           "{% endfor %}{% endfor %}{{ tools|tojson }}",
                           {.messages_json = calls, .tools_json = R"([{"maximum": )" + wide + "}]"})),
            R"({"n": )" + wide + R"(}[{"maximum": )" + wide + "}]");
}

// As json.loads reads them, and json.dumps writes them back.
TEST(PythonTemplates, NumbersBeyondDoubleAreInfinite) {
  const auto print = [](const std::string& source, const std::string& arguments, bool as_text) {
    std::string messages = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls":
      [{"id": "1", "type": "function", "function": {"name": "f", "arguments": )" +
                           (as_text ? stored_json(arguments).dump() : arguments) + "}}]}]";
    return text_of(
        render("{% for m in messages %}{% for c in m.tool_calls or [] %}" + source + "{% endfor %}{% endfor %}",
               {.messages_json = messages}));
  };
  const std::string long_one(400, '7');
  for (const auto& [number, read] :
       std::vector<std::pair<std::string, std::string>>{{"1195858088e1678", "Infinity"},
                                                        {"-1E+999", "-Infinity"},
                                                        {"0.5e999", "Infinity"},
                                                        {"-0." + long_one + "e999", "-Infinity"},
                                                        {long_one + ".5", "Infinity"},
                                                        {"Infinity", "Infinity"},
                                                        {"-Infinity", "-Infinity"},
                                                        {"NaN", "NaN"},
                                                        {"1e-999", "0.0"},
                                                        {long_one, long_one},
                                                        {"0." + long_one, "0.7777777777777778"}}) {
    const std::string arguments = R"({"n":)" + number + R"(,"l":[)" + number + R"(],"s":"1e999 NaN"})";
    for (const bool as_text : {true, false}) {
      EXPECT_EQ(print("{{ c.function.arguments | tojson }}", arguments, as_text),
                R"({"n": )" + read + R"(, "l": [)" + read + R"(], "s": "1e999 NaN"})");
    }
    EXPECT_EQ(print("{{ c.function.name + ' ' + c.function.arguments }}", arguments, true), "f " + arguments);
    if (number != "1e-999" && !number.starts_with("0.7")) {
      EXPECT_EQ(print("{{ c.function.name + ' ' + c.function.arguments }}", arguments, false), "f " + arguments);
    }
  }
  EXPECT_EQ(print("{{ c.function.arguments.n }}", R"({"n": -1e999})", true), "-inf");
  EXPECT_EQ(print("{{ c.function.arguments }}", R"({"n": 01e999})", true), R"({"n": 01e999})") << "no JSON";
}

TEST(PythonTemplates, WhatIsNotSupportedIsSaidAtTheStart) {
  for (const auto& [source, message] : std::vector<std::pair<std::string, std::string>>{
           {"{% if false %}{{ messages|pprint }}{% endif %}", "uses the filter pprint, which is not supported"},
           {"{{ 'a'|wordwrap(5) }}", "uses the filter wordwrap"},
           {"{% macro m(a) %}{{ varargs }}{% endmacro %}", "uses varargs of a macro"},
           {"{% macro m(a, b=a) %}{{ b }}{% endmacro %}", "a default that names its argument a"},
           {"{{ messages.__class__ }}", "uses the attribute __class__"}}) {
    EXPECT_THAT(text_of(render(source, {.messages_json = "[]"})), HasSubstr(message));
  }
}

}  // namespace
}  // namespace volley::text
