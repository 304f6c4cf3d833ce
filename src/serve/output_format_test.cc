#include "serve/output_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/test_model.h"
#include "text/text.h"

namespace volley::serve {
namespace {

using testing::HasSubstr;

// A chat template with an engine around it. A marker that it lists is one token.
class TemplateEngine final : public Engine {
 public:
  explicit TemplateEngine(const std::string& source, std::vector<std::string> tokens = {})
      : tokens_(std::move(tokens)) {
    const text::ModelDir dir({{"chat_template.jinja", source}});
    auto loaded = text::ChatTemplate::load(dir.path());
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    if (loaded.ok()) template_ = *loaded;
  }

  Result<std::string> render_chat(const ChatMessages& chat) const override {
    return template_->render({.messages_json = chat.messages_json,
                              .tools_json = chat.tools_json,
                              .kwargs_json = chat.template_kwargs_json,
                              .add_generation_prompt = chat.add_generation_prompt,
                              .continue_final_message = chat.continue_final_message});
  }
  Result<std::vector<TokenId>> encode_within(std::string_view text, bool, const EncodeLimits&) const override {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i] == text) return std::vector<TokenId>{static_cast<TokenId>(i)};
    }
    return std::vector<TokenId>(text.size(), 0);
  }
  std::string decode(std::span<const TokenId> ids, bool) const override {
    return tokens_.at(static_cast<size_t>(ids.front()));
  }

  Result<RequestId> submit(GenerateRequest, EventSink) override { return internal_error("not asked for"); }
  bool compiles(const GrammarSpec&) const override { return false; }
  void cancel(RequestId) noexcept override {}
  Status set_verify(const VerifyPolicy&) override { return {}; }
  void set_target_step_ms(int) override {}
  void drop_prefix_cache() override {}
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override { return {}; }

 private:
  std::vector<std::string> tokens_;
  std::shared_ptr<const text::ChatTemplate> template_;
  EngineInfo info_;
};

OutputFormat find(const TemplateEngine& engine, const char* tools = "auto", const char* reasoning = "auto") {
  const auto format = find_output_format(engine, tools, reasoning);
  EXPECT_TRUE(format.ok()) << format.error().message;
  return format.ok() ? *format : OutputFormat{};
}

constexpr const char* kPlain =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% "
    "endif %}";

// In the manner of Qwen 3: tools in the system turn, calls between markers, thoughts of earlier turns dropped.
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

// In the manner of models that write calls as tags that are not known.
constexpr const char* kTags = R"({%- for tool in tools %}{{ tool | tojson }}{% endfor %}
Use <tool_call><invoke name></invoke></tool_call>.
{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls %}<tool_call>
<invoke {{ call.function.name }}></invoke>
</tool_call>{% endfor %}{% endfor %})";

// In the manner of Qwen3-Coder.
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

// In the manner of Mistral's models: a list of calls, with ids of nine characters.
constexpr const char* kList = R"([AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- for m in messages %}
{%- if m.tool_calls %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception("an id has nine characters") }}{% endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{%- endfor %}]
{%- else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %})";

// And the newer ones.
constexpr const char* kNamed = R"([AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- for m in messages %}
{%- for call in m.tool_calls %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor %}
{%- if not m.tool_calls %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %})";

// In the manner of Llama 3.1: tools printed over several lines, one call a turn, "parameters".
constexpr const char* kLlama = R"({%- for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}
{%- for m in messages %}[{{ m.role }}]
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception("one call a turn") }}{% endif %}
{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}
{%- else %}{{ m.content | trim }}{% endif %}
{%- endfor %})";

TEST(OutputFormat, OfHermesAndQwen) {
  const OutputFormat format = find(TemplateEngine(kQwen, {"<tool_call>", "</tool_call>", "<think>", "</think>"}));
  EXPECT_EQ(format.tools, ToolFormat::kHermes);
  EXPECT_TRUE(format.several_calls);
  EXPECT_TRUE(format.reasoning);
  EXPECT_TRUE(format.tool_call_tokens);
  EXPECT_TRUE(format.think_tokens);
  EXPECT_EQ(format.tool_warning, "");
}

TEST(OutputFormat, OfLlama) {
  const OutputFormat format = find(TemplateEngine(kLlama));
  EXPECT_EQ(format.tools, ToolFormat::kLlama);
  EXPECT_FALSE(format.several_calls);
  EXPECT_FALSE(format.reasoning);
  EXPECT_FALSE(format.tool_call_tokens);
  EXPECT_EQ(format.tool_warning, "");
}

TEST(OutputFormat, OfQwenCoder) {
  const OutputFormat format = find(TemplateEngine(kCoder, {"<tool_call>", "</tool_call>"}));
  EXPECT_EQ(format.tools, ToolFormat::kQwenCoder);
  EXPECT_TRUE(format.tool_call_tokens);
  EXPECT_EQ(format.tool_warning, "");
}

// A grammar asks for the tokens where the vocabulary has them, and for the form that the template prints.
TEST(OutputFormat, OfMistral) {
  const OutputFormat list = find(TemplateEngine(kList, {"[INST]", "[TOOL_CALLS]"}));
  EXPECT_EQ(list.tools, ToolFormat::kMistral);
  EXPECT_FALSE(list.named_calls);
  EXPECT_EQ(list.calls_marker.token, 1);
  EXPECT_EQ(list.arguments_marker.token, std::nullopt);
  EXPECT_EQ(list.tool_warning, "");

  const OutputFormat named = find(TemplateEngine(kNamed));
  EXPECT_EQ(named.tools, ToolFormat::kMistral);
  EXPECT_TRUE(named.named_calls);
  EXPECT_EQ(named.calls_marker.token, std::nullopt);
  EXPECT_TRUE(find(TemplateEngine(kNamed), "mistral").named_calls);
  EXPECT_FALSE(find(TemplateEngine(kPlain), "mistral").named_calls);
}

TEST(OutputFormat, WarnsOfTemplatesWithoutToolsAndOfUnknownForms) {
  const OutputFormat plain = find(TemplateEngine(kPlain));
  EXPECT_EQ(plain.tools, ToolFormat::kHermes);
  EXPECT_FALSE(plain.reasoning);
  EXPECT_THAT(plain.tool_warning, HasSubstr("does not print tools"));

  const OutputFormat tags = find(TemplateEngine(kTags));
  EXPECT_EQ(tags.tools, ToolFormat::kHermes);
  EXPECT_THAT(tags.tool_warning, HasSubstr("no form of tool calls"));
}

TEST(OutputFormat, ReasoningThatTheTemplateOpens) {
  EXPECT_TRUE(
      find(TemplateEngine(std::string(kPlain) + "{% if add_generation_prompt %}<think>\n{% endif %}")).reasoning);
}

// What a client may offer as a switch: only variables that change what the model reads.
TEST(OutputFormat, VariablesThatSteerThinking) {
  EXPECT_EQ(find(TemplateEngine(kQwen)).thinks_by_default, std::optional(true));
  EXPECT_FALSE(find(TemplateEngine(kQwen)).reads_reasoning_effort);
  EXPECT_EQ(find(TemplateEngine(kPlain)).thinks_by_default, std::nullopt);
  const std::string plain = kPlain;
  EXPECT_EQ(find(TemplateEngine(plain + "{% if enable_thinking %}<think>{% endif %}")).thinks_by_default,
            std::optional(false));
  EXPECT_TRUE(find(TemplateEngine(plain + "Effort: {{ reasoning_effort }}")).reads_reasoning_effort);
}

TEST(OutputFormat, ATemplateThatRefusesToolTurnsIsNoError) {
  const std::string source =
      "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}" +
      std::string("{{ m.content }}{% endfor %}");
  EXPECT_THAT(find(TemplateEngine(source)).tool_warning, HasSubstr("does not print tools"));
}

TEST(OutputFormat, Names) {
  const TemplateEngine engine(kQwen);
  EXPECT_EQ(find(engine, "none", "none").tools, ToolFormat::kNone);
  EXPECT_FALSE(find(engine, "none", "none").reasoning);
  EXPECT_EQ(find(engine, "llama3_json", "auto").tools, ToolFormat::kLlama);
  EXPECT_EQ(find(TemplateEngine(kPlain), "hermes", "deepseek_r1").tool_warning, "");
  EXPECT_TRUE(find(TemplateEngine(kPlain), "hermes", "deepseek_r1").reasoning);
  EXPECT_EQ(find(engine, "qwen3_coder").tools, ToolFormat::kQwenCoder);
  EXPECT_EQ(find(engine, "qwen3_xml").tools, ToolFormat::kQwenCoder);
  EXPECT_EQ(find(engine, "mistral").tools, ToolFormat::kMistral);
  const auto tools = find_output_format(engine, "pigeon", "auto");
  ASSERT_FALSE(tools.ok());
  EXPECT_THAT(tools.error().message, HasSubstr("\"pigeon\""));
  const auto reasoning = find_output_format(engine, "auto", "loud");
  ASSERT_FALSE(reasoning.ok());
  EXPECT_THAT(reasoning.error().message, HasSubstr("\"loud\""));
}

}  // namespace
}  // namespace volley::serve
