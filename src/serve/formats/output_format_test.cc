#include "serve/formats/output_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "serve/formats/call_grammar.h"
#include "serve/formats/template_engine_for_test.h"
#include "serve/formats/tool_parameters.h"

namespace volley::serve {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The grammar of a call to the tool f.
std::string call_of(const OutputFormat& format) {
  ToolRequest request;
  request.tools = {{.name = "f", .parameters_json = "{}"}};
  request.choice = ToolRequest::Choice::kRequired;
  request.constrained_by = "tool_choice";
  const auto grammar = tool_grammar(request, format, ReasoningStart::kOff);
  return grammar.ok() && *grammar ? (**grammar).text : "";
}

const auto kIsHermes =
    AllOf(testing::AnyOf(HasSubstr("<tool_call>"), HasSubstr("<[0]>")), HasSubstr("\\\"arguments\\\""));
const auto kIsLlama = AllOf(Not(HasSubstr("<tool_call>")), HasSubstr("\\\"parameters\\\""));
const auto kIsCoder = HasSubstr("<function=f>");
const auto kIsList = HasSubstr(R"("[" object)");
const auto kIsNamed = HasSubstr(R"("f" "[ARGS]" arguments_0)");

constexpr const char* kPlain =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% "
    "endif %}";

// Like Qwen 3: tools in the system turn, calls between markers, earlier thoughts dropped.
constexpr const char* kQwen = R"({%- if tools %}[system]
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}
Answer with <tool_call> and </tool_call>.{% endif %}
{%- for m in messages %}
[{{ m.role }}]
{%- if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
[assistant]
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %})";

// Like models with unknown tags for calls.
constexpr const char* kTags = R"({%- for tool in tools %}{{ tool | tojson }}{% endfor %}
Use <tool_call><invoke name></invoke></tool_call>.
{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls %}<tool_call>
<invoke {{ call.function.name }}></invoke>
</tool_call>{% endfor %}{% endfor %})";

// Like Qwen3-Coder.
constexpr const char* kCoder = R"({%- for tool in tools %}<function><name>{{ tool.function.name }}</name></function>
{%- endfor %}
Answer with <tool_call>
<function=example_function_name>
</function>
</tool_call>
{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls %}
<tool_call>
<function={{ call.function.name }}>
{%- for key, value in call.function.arguments | items %}
<parameter={{ key }}>
{{ value }}
</parameter>
{%- endfor %}
</function>
</tool_call>{% endfor %}{% endfor %})";

// Like Mistral's older models: a list of calls, with ids of nine characters.
constexpr const char* kList = R"([AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- for m in messages %}
{%- if m.tool_calls %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception("an id has nine characters") }}{% endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{%- endfor %}]
{%- else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %})";

// Like Mistral's newer models.
constexpr const char* kNamed = R"([AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- for m in messages %}
{%- for call in m.tool_calls %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor %}
{%- if not m.tool_calls %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %})";

// Like Llama 3.1: tools printed over several lines, one call a turn, "parameters".
constexpr const char* kLlama = R"({%- for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}
{%- for m in messages %}[{{ m.role }}]
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception("one call a turn") }}{% endif %}
{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}
{%- else %}{{ m.content | trim }}{% endif %}
{%- endfor %})";

TEST(OutputFormat, OfHermesAndQwen) {
  const OutputFormat format = format_of(TemplateEngine(kQwen, {"<tool_call>", "</tool_call>", "<think>", "</think>"}));
  EXPECT_THAT(call_of(format), kIsHermes);
  EXPECT_TRUE(format.several_calls);
  EXPECT_TRUE(format.reasoning);
  EXPECT_THAT(call_of(format), HasSubstr("call: <[0]>")) << "a token";
  EXPECT_TRUE(format.think_tokens);
  EXPECT_EQ(format.tool_warning, "");
}

TEST(OutputFormat, OfLlama) {
  const OutputFormat format = format_of(TemplateEngine(kLlama));
  EXPECT_THAT(call_of(format), kIsLlama);
  EXPECT_FALSE(format.several_calls);
  EXPECT_FALSE(format.reasoning);
  EXPECT_EQ(format.tool_warning, "");
}

TEST(OutputFormat, OfQwenCoder) {
  const OutputFormat format = format_of(TemplateEngine(kCoder, {"<tool_call>", "</tool_call>"}));
  EXPECT_THAT(call_of(format), kIsCoder);
  EXPECT_THAT(call_of(format), HasSubstr("call: <[0]>")) << "a token";
  EXPECT_EQ(format.tool_warning, "");
}

// Forms whose marks a table holds: what each template prints of a call, and what its grammar writes then.
TEST(OutputFormat, OfFormsInATable) {
  struct Form {
    const char* name;
    std::string call;                  // behind {% for call in … %}, where f is the function
    std::vector<std::string> grammar;  // parts of a call's
    bool reasoning = false;
  };
  const std::string keys = "{% for k, v in f.arguments | items %}";
  const Form forms[] = {
      {"GLM 4.5",
       "<think></think>\n<tool_call>{{ f.name }}\n" + keys +
           "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
       {R"(call: "<tool_call>" object)", R"("f\n")", R"("</arg_key>\n<arg_value>")"},
       true},
      {"GLM 4.7",
       "<tool_call>{{ f.name }}" + keys +
           "<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>",
       {R"(call: "<tool_call>" object)", R"("</arg_key><arg_value>")"}},
      {"MiniMax",
       "<minimax:tool_call>\n<invoke name=\"{{ f.name }}\">\n" + keys +
           "<parameter name=\"{{ k }}\">{{ v }}</parameter>\n{% endfor %}</invoke>\n</minimax:tool_call>",
       {R"(call: "<minimax:tool_call>\n" object ("\n" object)* "\n" "</minimax:tool_call>")",
        R"(<invoke name=\"f\">)"}},
      {"DeepSeek V3.1",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {R"(call: "<｜tool▁calls▁begin｜>" object (object)* "<｜tool▁calls▁end｜>")",
        R"(f<｜tool▁sep｜>" arguments_0)"}},
      {"DeepSeek V3",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ call.type }}<｜tool▁sep｜>{{ f.name }}\n```json\n"
       "{{ f.arguments | tojson }}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {R"(object ("\n" object)*)", R"(function<｜tool▁sep｜>f\n```json\n" arguments_0 "\n```<｜tool▁call▁end｜>")"}},
      {"Kimi",
       "<|tool_calls_section_begin|><|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>"
       "{{ f.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>",
       {R"("<|tool_call_begin|>functions.f:" /[0-9]+/ "<|tool_call_argument_begin|>" arguments_0)"}},
      {"Gemma 4",
       "<|tool_call>call:{{ f.name }}{{ '{' }}" + keys + "{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor %}{{ '}' }}<tool_call|>",
       {R"(call: "<|tool_call>" object "<tool_call|>")", R"("call:f" arguments_0)"},
       true},
      {"LFM2",
       "<|tool_call_start|>[{{ f.name }}(" + keys + "{{ k }}={{ v | tojson }}{% endfor %})]<|tool_call_end|>",
       {R"(call: "<|tool_call_start|>[" object (", " object)* "]" "<|tool_call_end|>")", R"("f" arguments_0)"}},
  };
  for (const Form& form : forms) {
    const OutputFormat format = format_of(TemplateEngine(
        "{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
        "{% for call in m.tool_calls %}{% set f = call.function %}" +
        form.call + "{% endfor %}{% endfor %}"));
    for (const std::string& part : form.grammar) EXPECT_THAT(call_of(format), HasSubstr(part)) << form.name;
    EXPECT_EQ(format.reasoning, form.reasoning) << form.name;
    EXPECT_EQ(format.tool_warning, "") << form.name;
  }
}

// 50 histories in the templates of tests/data/templates: the calls that a template prints are read from its text.
TEST(OutputFormat, ReadsTheCallsThatTemplatesPrint) {
  const std::map<std::string, std::pair<unsigned, std::vector<nlohmann::json>>> values = {
      {"city", {kJsonString, {"Bonn", "it's", "a \"b\"", "x\ny", "é 😀", "back\\slash", "[f(x=1), g()]"}}},
      {"n", {kJsonNumber, {1, -3, 1000000000000000, 2.5, 0.1}}},
      {"flag", {kJsonBoolean, {true, false}}},
      {"tags",
       {kJsonArray, {nlohmann::json::parse(R"([["a", "it's"], [], [1, [true, null]]])")[0], nlohmann::json::array()}}},
      {"o", {kJsonObject, {{{"k", 1}, {"z", nullptr}}, {{"a", {true}}}, nlohmann::json::object()}}}};
  for (const char* family : {"deepseek", "gemma", "gemma3", "glm", "kimi", "lfm", "minimax"}) {
    std::ifstream file(std::string("tests/data/templates/families/") + family + ".jinja");
    const TemplateEngine engine({std::istreambuf_iterator<char>(file), {}});
    const OutputFormat format = format_of(engine, "auto", family == std::string("gemma") ? "auto" : "none");
    EXPECT_EQ(format.tool_warning, "") << family;
    std::mt19937 random(6);
    for (int i = 0; i < 50; ++i) {
      Conversation chat;
      auto types = std::make_shared<ToolTypes>();
      nlohmann::json tools = nlohmann::json::array(), wanted = nlohmann::json::array();
      ChatMessage said{"assistant", ""};
      for (size_t call = 0; call < (format.several_calls ? 1 + random() % 2 : 1); ++call) {
        const std::string name = call == 0 ? "get_weather" : "run";
        nlohmann::json arguments = nlohmann::json::object(), properties = nlohmann::json::object();
        for (const auto& [key, value] : values) {
          if (random() % 2 == 0) continue;
          arguments[key] = value.second[random() % value.second.size()];
          properties[key] = {{"type", "string"}, {"description", "x"}};
          (*types)[name][key] = value.first;
        }
        (*types)[name];
        tools.push_back({{"type", "function"},
                         {"function",
                          {{"name", name},
                           {"description", "d"},
                           {"parameters", {{"type", "object"}, {"properties", properties}}}}}});
        said.calls.push_back(call_json("call0000" + std::to_string(call), name, arguments.dump()));
        wanted.push_back({name, arguments});
      }
      chat.tools_json = tools.dump();
      chat.messages = {{"user", "Hi"}};
      const auto asked = format.answers->render(engine, chat, nullptr);
      chat.messages.push_back(said);
      chat.add_generation_prompt = false;
      const auto answered = format.answers->render(engine, chat, nullptr);
      ASSERT_TRUE(asked.ok() && answered.ok()) << family;
      auto begin = std::ranges::mismatch(*asked, *answered).in2;
      while (begin[-1] == '<' || begin[-1] == '|') --begin;  // another mark begins likewise
      OutputParser parser({format.answers, ReasoningStart::kOff, "call_", types});
      OutputDelta read = parser.push(std::string(begin, answered->cend()));
      read.add(parser.finish());
      nlohmann::json calls = nlohmann::json::array();
      for (const auto& call : read.tool_calls()) calls.push_back({call.name, nlohmann::json::parse(call.arguments)});
      ASSERT_EQ(calls, wanted) << family << ": " << *answered;
    }
  }
}

// A grammar asks for tokens if the vocabulary has them, and for the template's form.
TEST(OutputFormat, OfMistral) {
  const OutputFormat list = format_of(TemplateEngine(kList, {"[INST]", "[TOOL_CALLS]"}));
  EXPECT_THAT(call_of(list), AllOf(kIsList, HasSubstr("call: <[1]> calls")));
  EXPECT_EQ(list.tool_warning, "");

  const OutputFormat named = format_of(TemplateEngine(kNamed));
  EXPECT_THAT(call_of(named), AllOf(kIsNamed, HasSubstr(R"(call: "[TOOL_CALLS]" calls)")));
  EXPECT_THAT(call_of(format_of(TemplateEngine(kNamed), "mistral")), kIsNamed);
  EXPECT_THAT(call_of(format_of(TemplateEngine(kPlain), "mistral")), kIsList);
}

TEST(OutputFormat, WarnsOfTemplatesWithoutToolsAndOfUnknownForms) {
  const OutputFormat plain = format_of(TemplateEngine(kPlain));
  EXPECT_THAT(call_of(plain), kIsHermes);
  EXPECT_FALSE(plain.reasoning);
  EXPECT_THAT(plain.tool_warning, HasSubstr("does not print tools"));

  const OutputFormat tags = format_of(TemplateEngine(kTags));
  EXPECT_THAT(call_of(tags), kIsHermes);
  EXPECT_EQ(format_of(TemplateEngine(std::string("<start_of_turn>") + kPlain)).tool_warning, "") << "prompts tell them";
  EXPECT_THAT(tags.tool_warning, HasSubstr("no form of tool calls"));
}

TEST(OutputFormat, ReasoningThatTheTemplateOpens) {
  EXPECT_TRUE(
      format_of(TemplateEngine(std::string(kPlain) + "{% if add_generation_prompt %}<think>\n{% endif %}")).reasoning);
}

// A client may offer only variables that change the model's input.
TEST(OutputFormat, VariablesThatSteerThinking) {
  EXPECT_EQ(format_of(TemplateEngine(kQwen)).thinks_by_default, std::optional(true));
  EXPECT_FALSE(format_of(TemplateEngine(kQwen)).reads_reasoning_effort);
  EXPECT_EQ(format_of(TemplateEngine(kPlain)).thinks_by_default, std::nullopt);
  const std::string plain = kPlain;
  EXPECT_EQ(format_of(TemplateEngine(plain + "{% if enable_thinking %}<think>{% endif %}")).thinks_by_default,
            std::optional(false));
  EXPECT_TRUE(format_of(TemplateEngine(plain + "Effort: {{ reasoning_effort }}")).reads_reasoning_effort);
}

TEST(OutputFormat, ATemplateThatRefusesToolTurnsIsNoError) {
  const std::string source =
      "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}" +
      std::string("{{ m.content }}{% endfor %}");
  EXPECT_THAT(format_of(TemplateEngine(source)).tool_warning, HasSubstr("does not print tools"));
}

TEST(OutputFormat, Names) {
  const TemplateEngine engine(kQwen);
  EXPECT_EQ(format_of(engine, "none", "none").answers, plain_answers());
  EXPECT_FALSE(format_of(engine, "none", "none").reasoning);
  EXPECT_THAT(call_of(format_of(engine, "llama3_json", "auto")), kIsLlama);
  EXPECT_EQ(format_of(TemplateEngine(kPlain), "hermes", "deepseek_r1").tool_warning, "");
  EXPECT_TRUE(format_of(TemplateEngine(kPlain), "hermes", "deepseek_r1").reasoning);
  EXPECT_THAT(call_of(format_of(engine, "qwen3_coder")), kIsCoder);
  EXPECT_THAT(call_of(format_of(engine, "qwen3_xml")), kIsCoder);
  EXPECT_THAT(call_of(format_of(engine, "mistral")), kIsList);
  const auto tools = find_output_format(engine, "pigeon", "auto");
  ASSERT_FALSE(tools.ok());
  EXPECT_EQ(tools.error().message,
            "There is no tool call parser \"pigeon\": use auto, none, hermes, llama, qwen3_coder, glm45, minimax_m2, "
            "deepseek_v3, kimi_k2, gemma4, lfm2, pythonic, mistral or harmony.");
  const auto reasoning = find_output_format(engine, "auto", "loud");
  ASSERT_FALSE(reasoning.ok());
  EXPECT_EQ(reasoning.error().message,
            "There is no reasoning parser \"loud\": use auto, none, think, gemma4 or harmony.");
}

}  // namespace
}  // namespace volley::serve
