// Chat templates as this program takes them: its messages, limits and errors. chat_template_python_test.cc holds the
// language.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <textkit.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "text/test_model.h"
#include "text/text.h"

namespace volley::text {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

using Input = ChatMessages;

std::shared_ptr<const ChatTemplate> load(const std::map<std::string, std::string>& files) {
  const ModelDir dir(files);
  auto chat = ChatTemplate::load(dir.path());
  EXPECT_TRUE(chat.ok()) << chat.error().message;
  return chat.ok() ? *chat : nullptr;
}

std::shared_ptr<const ChatTemplate> from_source(const std::string& source) {
  return load({{"chat_template.jinja", source}});
}

std::string render(const std::shared_ptr<const ChatTemplate>& chat, const Input& input) {
  const auto text = chat->render(input);
  EXPECT_TRUE(text.ok()) << text.error().message;
  return text.ok() ? *text : "";
}

// The output of a template that does not use the messages.
std::string print(const std::string& source, std::string_view kwargs = "") {
  return render(from_source(source), {.messages_json = "[]", .template_kwargs_json = std::string(kwargs)});
}

std::string error_of(const std::shared_ptr<const ChatTemplate>& chat, const Input& input,
                     ErrorCode code = ErrorCode::kInvalidArgument) {
  const auto text = chat->render(input);
  EXPECT_FALSE(text.ok()) << *text;
  if (text.ok()) return "";
  EXPECT_EQ(error_code_name(text.error().code), std::string(error_code_name(code))) << text.error().message;
  return text.error().message;
}

constexpr const char* kHi = R"([{"role": "user", "content": "Hi"}])";

// Clients send a turn that is tool calls only with null, or nothing, as its content. A template that tests for null
// gets null; one that would fail or print "None" gets empty text.
TEST(ChatTemplate, TurnsOfToolCallsWithoutContent) {
  const std::string calls = R"("tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}])";
  for (const std::string content : {R"("content": null, )", ""}) {
    const std::string messages =
        R"([{"role": "user", "content": "a"}, {"role": "assistant", )" + content + calls + "}]";
    const Input input{.messages_json = messages};
    EXPECT_EQ(render(from_source("{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}"), input), "[a][]");
    EXPECT_EQ(render(from_source("{% for m in messages %}[{{ m.content }}]{% endfor %}"), input), "[a][]");
    EXPECT_EQ(render(from_source("{% for m in messages %}[{{ 'call' if m.content is none or m.content is undefined "
                                 "else m.content }}]{% endfor %}"),
                     input),
              "[a][call]");
  }
}

// Clients send a call's arguments as text. Most templates expect the object, some add the text to other text.
TEST(ChatTemplate, ArgumentsOfCallsAsTheTemplateTakesThem) {
  const std::string messages = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": null,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":94.95886283158103}"}}]}])";
  const Input input{.messages_json = messages};
  const auto calls = [](const std::string& print) {
    return from_source("{% for m in messages %}{% for c in m.tool_calls or [] %}" + print + "{% endfor %}{% endfor %}");
  };
  EXPECT_EQ(render(calls("{{ c.function.arguments | tojson }}"), input), R"({"x": 94.95886283158103})");
  EXPECT_EQ(render(calls("{{ c.function.name + ' ' + c.function.arguments }}"), input), R"(f {"x":94.95886283158103})");
}

TEST(ChatTemplate, CallsWithoutArgumentsHaveNoMembers) {
  const auto calls = [](const std::string& print) {
    return from_source("{% for m in messages %}{% for c in m.tool_calls or [] %}" + print + "{% endfor %}{% endfor %}");
  };
  for (const char* arguments : {R"(, "arguments": "")", R"(, "arguments": " \n")", R"(, "arguments": null)",
                                R"(, "arguments": "null")", R"(, "arguments": "{}")", R"(, "arguments": {})", ""}) {
    const std::string messages = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": null,
      "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f")" +
                                 std::string(arguments) + "}}]}]";
    const Input input{.messages_json = messages};
    EXPECT_EQ(render(calls("{{ c.function.arguments | tojson }}"), input), "{}") << arguments;
    EXPECT_EQ(render(calls("{% for k, v in c.function.arguments | items %}{{ k }}{% endfor %}."), input), ".")
        << arguments;
    EXPECT_EQ(render(calls("{{ c.function.name + ' ' + c.function.arguments }}"), input), "f {}") << arguments;
  }
  // Arguments that are no object are passed to the template unchanged.
  const std::string other = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": null,
      "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "[1"}}]}])";
  EXPECT_EQ(render(calls("{{ c.function.arguments }}"), {.messages_json = other}), "[1");
}

TEST(ChatTemplate, TimeIsTheCallers) {
  const std::string source =
      "{{ strftime_now('%Y %B') }}{% macro m() %}{{ strftime_now('%y') }}{% endmacro %}{{ m() }}";
  textkit_template_files files{};
  files.jinja = {source.data(), source.size()};
  textkit_template* chat = nullptr;
  textkit_bytes text{nullptr, 0}, error{nullptr, 0};
  ASSERT_EQ(textkit_template_new(&files, &chat, &error), TEXTKIT_OK);
  textkit_template_input input{};
  input.messages = {"[]", 2};
  input.now = 1'000'000'000;  // the 8th or 9th of September 2001, by time zone
  ASSERT_EQ(textkit_template_render(chat, &input, &text, &error), TEXTKIT_OK);
  EXPECT_EQ(std::string(text.data, text.size), "2001 September01");
  textkit_bytes_free(text);
  textkit_template_free(chat);
  EXPECT_THAT(print("{{ strftime_now('%d %b %Y') }}"), testing::ContainsRegex("^[0-9][0-9] [A-Z][a-z]+ 20"));
}

TEST(ChatTemplate, UndefinedPrintsNothingAndIsFalse) {
  EXPECT_EQ(print("[{{ nothing }}{{ {}.a }}{% for x in nothing %}x{% endfor %}{% if nothing %}x{% endif %}{% if 'a' in "
                  "nothing %}x{% endif %}]"),
            "[]");
  EXPECT_THAT(error_of(from_source("{{ nothing.a }}"), {.messages_json = "[]"}), HasSubstr("chat_template:1"));
  EXPECT_THAT(error_of(from_source("{{ 'a' + nothing }}"), {.messages_json = "[]"}), HasSubstr("cannot render"));
}

TEST(ChatTemplate, ExceptionsOfTheTemplateReachTheUser) {
  const auto chat = from_source(
      "{% macro check(m) %}{% if m.role != 'user' %}{{ raise_exception('Only user messages, not ' + m.role) }}{% endif "
      "%}{% endmacro %}"
      "{% for m in messages %}{{ check(m) }}{{ m.content }}{% endfor %}");
  EXPECT_EQ(render(chat, {.messages_json = kHi}), "Hi");
  EXPECT_THAT(error_of(chat, {.messages_json = R"([{"role": "tool", "content": ""}])"}),
              HasSubstr("refuses these messages: Only user messages, not tool"));
}

TEST(ChatTemplate, SpecialTokensOfBothFiles) {
  const std::string source =
      "{{ bos_token }}|{{ eos_token }}|{{ unk_token is defined }}|{{ pad_token is defined }}|{{ "
      "additional_special_tokens[1] }}";
  const json config = {{"chat_template", source},
                       {"bos_token", "<s>"},
                       {"unk_token", nullptr},
                       {"add_bos_token", true},
                       {"additional_special_tokens", {"<x>", {{"content", "<y>"}}}}};
  const auto chat =
      load({{"tokenizer_config.json", config.dump()},
            {"special_tokens_map.json", R"({"bos_token": "<other>", "eos_token": {"content": "</s>"}})"}});
  EXPECT_EQ(render(chat, {.messages_json = "[]"}), "<s>|</s>|False|False|<y>");
  EXPECT_EQ(render(chat, {.messages_json = "[]", .template_kwargs_json = R"({"eos_token": "!"})"}),
            "<s>|!|False|False|<y>");
}

TEST(ChatTemplate, WithoutATemplateLoadsAndSaysWhatToDo) {
  for (const auto& chat : {load({}), load({{"tokenizer_config.json", R"({"chat_template": null})"}})}) {
    EXPECT_THAT(error_of(chat, {.messages_json = kHi}, ErrorCode::kFailedPrecondition),
                HasSubstr("chat_template.jinja"));
  }
}

TEST(ChatTemplate, LoadErrorsNameFolderAndPlace) {
  const std::vector<std::pair<std::map<std::string, std::string>, std::string>> cases = {
      {{{"tokenizer_config.json", "{"}}, "tokenizer_config.json is not JSON"},
      {{{"tokenizer_config.json", "[]"}}, "tokenizer_config.json must hold a JSON object"},
      {{{"special_tokens_map.json", "\xff"}}, "special_tokens_map.json must be valid UTF-8"},
      {{{"chat_template.jinja", "a\n{% if %}"}}, "chat_template:2"}};
  for (const auto& [files, message] : cases) {
    const ModelDir dir(files);
    const auto chat = ChatTemplate::load(dir.path());
    ASSERT_FALSE(chat.ok()) << message;
    EXPECT_EQ(chat.error().code, ErrorCode::kDataLoss);
    EXPECT_THAT(chat.error().message, HasSubstr(message));
    EXPECT_THAT(chat.error().message, HasSubstr(dir.path()));
  }
}

TEST(ChatTemplate, MalformedRequests) {
  const auto chat = from_source("x");
  EXPECT_THAT(error_of(chat, {.messages_json = ""}), HasSubstr("messages must be JSON"));
  EXPECT_THAT(error_of(chat, {.messages_json = "{}"}), HasSubstr("messages must be a JSON array"));
  EXPECT_THAT(error_of(chat, {.messages_json = "[{}, 1]"}), HasSubstr("messages[1] must be an object"));
  EXPECT_THAT(error_of(chat, {.messages_json = "[\"\xff\"]"}), HasSubstr("offset 2"));
  EXPECT_THAT(error_of(chat, {.messages_json = "[]", .tools_json = "{}"}), HasSubstr("tools must be a JSON array"));
  EXPECT_THAT(error_of(chat, {.messages_json = "[]", .template_kwargs_json = "[]"}),
              HasSubstr("must be a JSON object"));
  EXPECT_THAT(error_of(chat, {.messages_json = "[]", .template_kwargs_json = R"({"messages": []})"}),
              HasSubstr("may not set messages"));
  EXPECT_THAT(error_of(chat, {.messages_json = std::string(1000, '[')}), HasSubstr("messages must be JSON"));
}

// Templates for strings get arrays of text parts joined, templates for arrays get strings wrapped, others are left
// alone.
TEST(ChatTemplate, ContentInEitherForm) {
  const std::string text = R"([{"role": "user", "content": "one"}])";
  const std::string parts =
      R"([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}])";
  const std::string image =
      R"([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image_url"}]}])";

  for (const char* source : {"{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}",
                             "{% for m in messages %}<{{ m.content }}>{% endfor %}",
                             "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"}) {
    const auto strings = from_source(source);
    EXPECT_EQ(render(strings, {.messages_json = text}), "<one>") << source;
    EXPECT_EQ(render(strings, {.messages_json = parts}), "<one\ntwo>") << source;
    EXPECT_THAT(error_of(strings, {.messages_json = image}), HasSubstr("messages[0].content[1] is not a text part"));
  }

  const auto arrays = from_source(
      "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}<{{ p.text }}>{% else %}<image>{% endif "
      "%}{% endfor %}{% endfor %}");
  EXPECT_EQ(render(arrays, {.messages_json = text}), "<one>");
  EXPECT_EQ(render(arrays, {.messages_json = image}), "<one><image>");

  const auto both = from_source(
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text "
      "or '<image>' }}{% endfor %}{% endif %}{% endfor %}");
  EXPECT_EQ(render(both, {.messages_json = text}), "one");
  EXPECT_EQ(render(both, {.messages_json = parts}), "onetwo");
  EXPECT_EQ(render(both, {.messages_json = image}), "one<image>");
}

// Two messages of one side in a row are joined only if the template insists on turns.
TEST(ChatTemplate, Neighbours) {
  const auto said = [](const char* role, const char* text) { return json{{"role", role}, {"content", text}}; };
  const char* prints = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ m.reasoning_content }} {% endfor %}";
  const std::string check =
      "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% for m in rest %}"
      "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}{% endfor %}";
  const std::string insists = check + prints;
  const std::string parts = check +
                            "{% for m in messages %}{{ m.role[0] }}:{% for p in m.content %}{{ p.text }}"
                            "{{ '|' if not loop.last }}{% endfor %} {% endfor %}";
  struct Case {
    json messages;
    const char *alone, *joined, *parts;
  };
  const std::vector<Case> cases = {
      {{said("user", "A"), said("user", "B")}, "u:A u:B ", "u:A\n\nB ", "u:A|B "},
      {{said("system", "S"), said("user", "A"), said("user", "B"), said("user", "C")},
       "s:S u:A u:B u:C ",
       "s:S u:A\n\nB\n\nC ",
       "s:S u:A|B|C "},
      {{said("user", "A"), said("assistant", "B"), said("assistant", "C"), said("user", "D"), said("user", "")},
       "u:A a:B a:C u:D u: ",
       "u:A a:B\n\nC u:D ",
       "u:A a:B|C u:D| "},
      {{said("user", "A"), said("assistant", "B"), said("user", "C")}, "u:A a:B u:C ", "u:A a:B u:C ", "u:A a:B u:C "},
  };
  for (const Case& one : cases) {
    const std::string messages = one.messages.dump();
    EXPECT_EQ(render(from_source(prints), {.messages_json = messages}), one.alone);
    EXPECT_EQ(render(from_source(insists), {.messages_json = messages}), one.joined);
    EXPECT_EQ(render(from_source(parts), {.messages_json = messages}), one.parts);
  }
  // A thought or a call belongs to its own message, so the template's refusal stands.
  const std::string thought =
      R"([{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"},
          {"role": "assistant", "content": "C", "reasoning_content": "hm"}])";
  EXPECT_THAT(error_of(from_source(insists), {.messages_json = thought}), HasSubstr("turns"));
}

// Instructions after other messages stay in place if the template prints them there, else they join those at the start.
TEST(ChatTemplate, LateInstructions) {
  const auto said = [](const char* role, const char* text) { return json{{"role", role}, {"content", text}}; };
  const auto printed = [](const char* source, const json& messages) {
    return render(from_source(source), {.messages_json = messages.dump()});
  };
  const json late = {said("user", "A"), said("system", "B")};
  const json turns = {said("system", "0"), said("user", "A"),      said("system", "B"), said("user", "C"),
                      said("system", "D"), said("assistant", "E"), said("system", ""),  said("user", "F")};

  const char* anywhere = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}";
  EXPECT_EQ(printed(anywhere, late), "u:A s:B ");
  EXPECT_EQ(printed(anywhere, turns), "s:0 u:A s:B u:C s:D a:E s: u:F ");

  const char* refuses =
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
      "{{ m.role[0] }}:{{ m.content }} {% endfor %}";
  const char* leaves_out =
      "{% if messages[0].role == 'system' %}s:{{ messages[0].content }} {% endif %}"
      "{% for m in messages %}{% if m.role != 'system' %}{{ m.role[0] }}:{{ m.content }} {% endif %}{% endfor %}";
  const char* wants_turns =
      "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
      "{% if messages[0].role == 'system' %}s:{{ messages[0].content }} {% endif %}{% for m in rest %}"
      "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
      "{{ m.role[0] }}:{{ m.content }} {% endfor %}";
  // Prints late instructions, but all of them at the end.
  const char* moves =
      "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.role[0] }}:{{ m.content }} {% endif %}"
      "{% endfor %}{% for m in messages[1:] %}{% if m.role == 'system' %}late:{{ m.content }}{% endif %}{% endfor %}";
  const char* parts =
      "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.role[0] }}:"
      "{% for p in m.content %}{{ p.text }}{{ '|' if not loop.last }}{% endfor %} {% endif %}{% endfor %}";
  for (const char* source : {refuses, leaves_out, wants_turns, moves}) {
    EXPECT_EQ(printed(source, late), "s:B u:A ") << source;
    const char* users = source == wants_turns ? "u:A\n\nC " : "u:A u:C ";
    EXPECT_EQ(printed(source, turns), "s:0\n\nB\n\nD " + std::string(users) + "a:E u:F ") << source;
    EXPECT_EQ(printed(source, {said("system", "A"), said("system", "B"), said("user", "C")}), "s:A\n\nB u:C ")
        << source;
    EXPECT_EQ(printed(source, {said("system", "A"), said("user", "B")}), "s:A u:B ") << source;
  }
  EXPECT_EQ(printed(parts, late), "s:B u:A ");
  EXPECT_EQ(printed(parts, turns), "s:0|B|D| u:A u:C a:E u:F ");

  const auto going_on = from_source(refuses);
  const json unfinished = {said("user", "A"), said("system", "B"), said("assistant", "C")};
  EXPECT_EQ(
      render(going_on,
             {.messages_json = unfinished.dump(), .add_generation_prompt = false, .continue_final_message = true}),
      "s:B u:A a:C");
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  const auto continued = [](const std::shared_ptr<const ChatTemplate>& chat, const std::string& content) {
    const json messages = {{{"role", "user"}, {"content", "say Sure. Sure"}},
                           {{"role", "assistant"}, {"content", content}}};
    return render(chat,
                  {.messages_json = messages.dump(), .add_generation_prompt = false, .continue_final_message = true});
  };
  const auto keeps = from_source("{% for m in messages %}{{ m.role }}:{{ m.content }}<end>\n{% endfor %}");
  EXPECT_EQ(continued(keeps, "Sure"), "user:say Sure. Sure<end>\nassistant:Sure");
  EXPECT_EQ(continued(keeps, "Sure \n"), "user:say Sure. Sure<end>\nassistant:Sure \n");
  EXPECT_EQ(continued(keeps, ""), "user:say Sure. Sure<end>\nassistant:");
  EXPECT_EQ(continued(keeps, "FinalMessageEndsHere0 x"), "user:say Sure. Sure<end>\nassistant:FinalMessageEndsHere0 x");
  const auto trims = from_source("{% for m in messages %}{{ m.role }}:{{ m.content | trim }}<end>\n{% endfor %}");
  EXPECT_EQ(continued(trims, " Sure \n"), "user:say Sure. Sure<end>\nassistant:Sure");

  const auto parts =
      from_source("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}<end>{% endfor %}");
  EXPECT_EQ(
      render(
          parts,
          {.messages_json =
               R"([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]}])",
           .add_generation_prompt = false,
           .continue_final_message = true}),
      "ab ");
}

TEST(ChatTemplate, ContinuingThatCannotBe) {
  const auto chat = from_source("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
  const auto error = [&](const std::string& messages, bool prompt) {
    return error_of(chat, {.messages_json = messages, .add_generation_prompt = prompt, .continue_final_message = true});
  };
  EXPECT_THAT(error(kHi, true), HasSubstr("exclude each other"));
  EXPECT_THAT(error(R"([{"role": "assistant", "content": "a"}])", false),
              HasSubstr("leaves the final message's content out"));
  for (const char* messages : {"[]", R"([{"role": "user"}])", R"([{"role": "user", "content": null}])",
                               R"([{"role": "user", "content": 5}])"}) {
    EXPECT_THAT(error(messages, false), HasSubstr("final message with text content")) << messages;
  }
}

// A template is a program that came with the weights. Start and requests must not depend on its termination.
TEST(ChatTemplate, TemplatesThatDoNotEndAreRefusedAtTheStart) {
  const std::string loop =
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ messages[0].content }}";
  const auto refusal = [](const std::map<std::string, std::string>& files) {
    const ModelDir dir(files);
    const auto chat = ChatTemplate::load(dir.path());
    EXPECT_FALSE(chat.ok());
    return chat.ok() ? "" : chat.error().message;
  };
  EXPECT_THAT(refusal({{"chat_template.jinja", loop}}),
              AllOf(HasSubstr("chat_template.jinja"), HasSubstr("more than 100000 steps")));
  EXPECT_THAT(refusal({{"tokenizer_config.json", json{{"chat_template", loop}}.dump()}}),
              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("more than 100000 steps")));
  EXPECT_THAT(refusal({{"chat_template.jinja", "{% macro f(n) %}" + loop + "{% endmacro %}{{ f(1) }}"}}),
              HasSubstr("more than 100000 steps"));
  const std::string print = "{% for i in range(9999) %}{{ 'abcd' * 1000 }}{% endfor %}";
  EXPECT_THAT(refusal({{"chat_template.jinja", print}}), HasSubstr("prints more than 1048576 bytes"));
  EXPECT_THAT(refusal({{"chat_template.jinja", "{% set x %}" + print + "{% endset %}"}}),
              HasSubstr("prints more than 1048576 bytes"));
  EXPECT_THAT(
      refusal({{"chat_template.jinja", "{% for i in range(9999) %}" + std::string(1000, 'x') + "{% endfor %}"}}),
      HasSubstr("prints more than 1048576 bytes"));
  EXPECT_THAT(refusal({{"chat_template.jinja", std::string(300'000, 'x')}}), HasSubstr("has 300000 bytes"));
}

// The work of a single step is bounded, too: values grow without being printed, and lists contain one another many
// times.
TEST(ChatTemplate, ValuesThatGrowAreRefusedAtTheStart) {
  const auto refusal = [](const std::string& source) {
    const ModelDir dir({{"chat_template.jinja", source}});
    const auto chat = ChatTemplate::load(dir.path());
    EXPECT_FALSE(chat.ok()) << source.substr(0, 200);
    return chat.ok() ? "" : chat.error().message;
  };
  const auto grown = [](const std::string& step, const std::string& after) {
    return "{% set n = namespace(x='ab', l=[1]) %}{% for i in range(60) %}{% set " + step + " %}{% endfor %}" + after;
  };
  EXPECT_THAT(refusal(grown("n.x = n.x ~ n.x", "{{ 1 }}")), HasSubstr("takes more than 64 MiB of memory"));
  EXPECT_THAT(refusal(grown("n.x = n.x.replace('a', n.x)", "{{ 1 }}")), HasSubstr("takes more than 64 MiB of memory"));
  EXPECT_THAT(refusal(grown("n.l = [n.l, n.l]", "{% set y = n.l|tojson %}")),
              HasSubstr("takes more than 64 MiB of memory"));
  EXPECT_THAT(refusal("{% for i in range(9999) %}{% set x = ('ab' ~ i) * 50000 %}{% endfor %}"),
              HasSubstr("makes values of more than 256 MiB in all"));
  EXPECT_THAT(refusal(grown("n.l = [n.l, n.l]", "{{ n.l }}")), HasSubstr("prints more than 1048576 bytes"));
  EXPECT_THAT(refusal("{% set x %}{% for i in range(9999) %}" + std::string(100'000, 'x') + "{% endfor %}{% endset %}"),
              HasSubstr("takes more than 64 MiB of memory"));
  const auto chat = from_source(
      "{% set n = namespace(x='ab') %}{% if messages[0].content == 'grow' %}{% for i in range(60) %}"
      "{% set n.x = n.x + n.x %}{% endfor %}{% endif %}{{ messages[0].content }}");
  EXPECT_THAT(error_of(chat, {.messages_json = R"([{"role": "user", "content": "grow"}])"}),
              HasSubstr("takes more than 512 MiB of memory for these messages"));
  EXPECT_EQ(render(chat, {.messages_json = R"([{"role": "user", "content": "a"}])"}), "a")
      << "the next one is as before";
}

// The engine frees, prints and compares values by recursion, and a stack overflow ends the process.
TEST(ChatTemplate, ValuesThatNestDeeplyAreRefused) {
  const auto nested = [](const std::string& step, const std::string& after) {
    return from_source(
        "{% set n = namespace(x=1, y=1) %}{% if messages[0].content == 'nest' %}"
        "{% for i in range(99) %}{% for j in range(9999) %}{% set " +
        step + " %}{% endfor %}{% endfor %}" + after + "{% endif %}{{ messages[0].content }}");
  };
  const Input nest{.messages_json = R"([{"role": "user", "content": "nest"}])"};
  for (const char* step :
       {"n.x = [n.x]", "n.x = {'a': n.x}", "n.x = (n.x,)", "n.x = namespace(x=n.x)", "n.x = [n.x] * 1"}) {
    const auto chat = nested(step, "");
    EXPECT_THAT(error_of(chat, nest), HasSubstr("holds more than 200000 values at once for these messages")) << step;
    EXPECT_EQ(render(chat, {.messages_json = R"([{"role": "user", "content": "a"}])"}), "a");
  }
}

// Values nested up to the limit can be used.
TEST(ChatTemplate, ValuesBelowTheLimitOfDepthHaveStackEnough) {
  for (const char* use : {"{{ n.x|string|length }}", "{{ n.x|tojson|length }}", "{{ n.x == n.y }}", "{{ n.x < n.y }}",
                          "{{ {n.x: 1}|length }}", "{% set n.x = 1 %}"}) {
    const auto chat = from_source(
        "{% set n = namespace(x=1, y=1) %}{% if messages[0].content == 'nest' %}"
        "{% for i in range(20000) %}{% set n.x = [n.x] %}{% set n.y = [n.y] %}{% endfor %}" +
        std::string(use) + "{% endif %}{{ messages[0].content }}");
    EXPECT_THAT(render(chat, {.messages_json = R"([{"role": "user", "content": "nest"}])"}), EndsWith("nest")) << use;
  }
}

TEST(ChatTemplate, RenderingEndsForEveryRequest) {
  const auto chat = from_source(
      "{% if messages[0].content == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
      "{% endfor %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_THAT(error_of(chat, {.messages_json = R"([{"role": "user", "content": "loop"}])"}),
              HasSubstr("takes more than 20000000 steps for these messages"));
  json messages = json::array();
  for (int i = 0; i < 10'000; ++i) messages.push_back({{"role", "user"}, {"content", "ab"}});
  EXPECT_EQ(render(chat, {.messages_json = messages.dump()}).size(), 20'000u) << "a long conversation is no loop";
}

// Allows the process `bytes` more of address space.
void limit_address_space(rlim_t bytes) {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + bytes;
  setrlimit(RLIMIT_AS, &limit);
}

// A rendering's stack takes 128 MiB of address space. A thread that has one keeps it. If the first cannot be had, the
// error is lack of memory, not too many requests.
void render_where_memory_is_short() {
  const auto chat = *ChatTemplate::load(kPocket);
  limit_address_space(rlim_t{64} << 20);
  std::atomic<int> rendered{0};
  std::vector<std::thread> threads(4);
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (int i = 0; i < 100; ++i) rendered += chat->render({.messages_json = kHi}).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string large = json::array({{{"role", "user"}, {"content", std::string(300'000, 'x')}}}).dump();
  const auto text = chat->render({.messages_json = large});
  std::cerr << rendered << " chats, large: " << (text.ok() ? "ok" : error_code_name(text.error().code));
  std::_Exit(0);
}

TEST(ChatTemplateDeathTest, RenderingGoesOnWhereMemoryIsShort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process, of which this is the first rendering
  EXPECT_EXIT(render_where_memory_is_short(), testing::ExitedWithCode(0), "400 chats, large: UNAVAILABLE");
}

// Renderings that are ended, in which everything unwinds, among others that are not.
TEST(ChatTemplate, RenderingsThatEndAtALimitLeaveTheirThreadsToOthers) {
  const auto chat = from_source(
      "{% set n = namespace(x=1) %}{% if messages[0].content == 'nest' %}{% for i in range(99) %}{% for j in "
      "range(9999) "
      "%}{% set n.x = [n.x] %}{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}");
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&chat, i] {
      const std::string content = i % 2 == 0 ? "nest" : std::to_string(i);
      const std::string messages = json::array({{{"role", "user"}, {"content", content}}}).dump();
      for (int again = 0; again < 5; ++again) {
        const auto text = chat->render({.messages_json = messages});
        EXPECT_EQ(text.ok(), i % 2 != 0);
        EXPECT_EQ(text.ok() ? *text : content, content);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// No call waits for a thread after its client has left.
TEST(ChatTemplate, WhoHasLeftWaitsForNoThread) {
  const auto chat = from_source(
      "{% if messages[0].content == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' }}{% endfor "
      "%}"
      "{% endfor %}{% endif %}{{ messages[0].content }}");
  std::atomic<bool> cancelled{false};
  const Input loop{.messages_json = R"([{"role": "user", "content": "loop"}])", .cancelled = &cancelled};
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] { EXPECT_FALSE(chat->render(loop).ok()); });
  }
  cancelled = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(render(chat, {.messages_json = kHi}), "Hi");
}

TEST(ChatTemplate, LongMessages) {
  const auto chat = *ChatTemplate::load(kPocket);
  const std::string content(10'000'000, 'x');
  const std::string messages = json::array({{{"role", "user"}, {"content", content}}}).dump();
  EXPECT_EQ(render(chat, {.messages_json = messages}),
            "<|im_start|>user\n" + content + "<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace volley::text
