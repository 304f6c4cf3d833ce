// Protects agents on Anthropic's Messages API: instructions in mid-conversation, and tools that come and go.
#include <gmock/gmock.h>

#include "serve/api/api_for_test.h"
#include "serve/api/sealed_text.h"

namespace volley::serve {
namespace {

using testing::HasSubstr;

constexpr const char* kMessages = "/v1/messages";

class MessagesBlocksTest : public ApiTest {
 protected:
  // The chat template's input: messages, tools.
  std::pair<json, json> prompt_of(const json& messages, const json& tools = nullptr,
                                  const json& more = json::object()) {
    FakeEngine engine;
    Api api(engine, make_options());
    json body = {{"max_tokens", 5}, {"messages", messages}};
    if (!tools.is_null()) body["tools"] = tools;
    body.update(more);
    const Answer got = answer(api, post(kMessages, body.dump()));
    EXPECT_EQ(got.response->status, 200) << got.response->body;
    if (engine.submitted().empty()) return {};
    const std::string text = engine.decode(engine.submitted().back().prompt, false);
    const size_t end = text.find("|{\"enable_thinking\""), behind = text.find("|[", end);
    return {json::parse(text.substr(0, end)),
            behind == std::string::npos ? json() : json::parse(text.substr(behind + 1))};
  }

  std::string refusal(const json& messages, const json& tools = nullptr) {
    FakeEngine engine;
    Api api(engine, make_options());
    json body = {{"max_tokens", 5}, {"messages", messages}};
    if (!tools.is_null()) body["tools"] = tools;
    const Answer got = answer(api, post(kMessages, body.dump()));
    EXPECT_EQ(got.response->status, 400) << messages;
    return got.body().at("error").value("message", "");
  }

  static std::vector<std::string> names(const json& tools) {
    std::vector<std::string> names;
    for (const json& tool : tools) names.push_back(tool.at("function").at("name"));
    return names;
  }
};

json said(const char* role, const json& content) {
  return {{"role", role}, {"content", content}};
}

json text_block(const char* text) {
  return {{"type", "text"}, {"text", text}, {"cache_control", {{"type", "ephemeral"}}}};
}

TEST_F(MessagesBlocksTest, InstructionsKeepTheirPlace) {
  const json user = said("user", "A"), assistant = said("assistant", "B");
  const json late = said("system", "S");
  const std::pair<json, json> cases[] = {
      {{user, late}, {user, late}},
      {{user, said("system", json::array({text_block("S"), text_block("T")}))}, {user, said("system", "S\nT")}},
      {{user, late, assistant, late, user, late}, {user, late, assistant, late, user, late}},
      {{user, late, late, user}, {user, late, late, user}},
      // At the start they become one message.
      {{late, user}, {late, user}},
      {{late, said("system", json::array({text_block("T")})), user}, {said("system", "S\n\nT"), user}},
      {{user, said("system", ""), assistant, said("system", json::array()), user}, {user, assistant, user}},
  };
  for (const auto& [messages, expected] : cases) EXPECT_EQ(prompt_of(messages).first, expected) << messages;
  const json more = {{"system", json::array({text_block("0")})}};
  EXPECT_EQ(prompt_of({late, user, late}, nullptr, more).first, json({said("system", "0\n\nS"), user, late}));

  EXPECT_THAT(refusal({user, said("root", "S")}), HasSubstr(R"("user", "assistant" or "system")"));
  EXPECT_THAT(refusal({user, said("system", json::array({{{"type", "image"}}}))}),
              HasSubstr("messages[1].content[0] is of type \"image\""));
}

json tool(const char* name, bool deferred = false) {
  json tool = {{"name", name}, {"input_schema", {{"type", "object"}}}, {"eager_input_streaming", true}};
  if (deferred) tool["defer_loading"] = true;
  return tool;
}

json found(const std::vector<const char*>& names) {
  json content = json::array();
  for (const char* name : names) content.push_back({{"type", "tool_reference"}, {"tool_name", name}});
  return json::array({{{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", content}}});
}

json change(const char* type, const json& tool) {
  return said("system", json::array({{{"type", type}, {"tool", tool}}}));
}

json reference(const char* name) {
  return {{"type", "tool_reference"}, {"name", name}};
}

TEST_F(MessagesBlocksTest, DeferredToolsComeWithTheConversation) {
  using Names = std::vector<std::string>;
  const json user = said("user", "A");
  const json tools = {tool("find"), tool("web", true), tool("disk", true)};
  const json defined = {{"type", "tool_definition"}, {"definition", tool("new")}};
  const json redefined = {{"type", "tool_definition"}, {"definition", tool("web")}};
  const std::pair<json, Names> cases[] = {
      {json::array({user}), {"find"}},
      {{user, said("user", found({"web"}))}, {"find", "web"}},
      {{user, said("user", found({"disk", "web"}))}, {"find", "web", "disk"}},
      {{user, said("user", found({})), user}, {"find"}},
      {{user, said("user", found({"gone"}))}, {"find"}},
      {{user, change("tool_addition", reference("disk"))}, {"find", "disk"}},
      {{user, change("tool_addition", defined)}, {"find", "new"}},
      {{user, change("tool_addition", redefined)}, {"find", "web"}},
      {{user, said("user", found({"web"})), change("tool_removal", reference("web"))}, {"find"}},
      {{user, change("tool_removal", reference("find")), change("tool_addition", reference("find"))}, {"find"}},
      {{user, change("tool_removal", reference("gone"))}, {"find"}},
  };
  for (const auto& [messages, expected] : cases) {
    EXPECT_EQ(names(prompt_of(messages, tools).second), expected) << messages;
  }
  // A definition alone makes a list of tools.
  EXPECT_EQ(names(prompt_of({user, change("tool_addition", defined)}).second), Names{"new"});
  EXPECT_TRUE(prompt_of(json::array({user}), json::array({tool("web", true)})).second.empty()) << "none is shown";
}

TEST_F(MessagesBlocksTest, AReferenceIsToldInWords) {
  const json tools = {tool("find"), tool("web", true)};
  json result = found({"web", "gone"});
  result[0]["content"].push_back(text_block("That is all."));
  const json messages = prompt_of({said("user", "A"), said("user", result)}, tools).first;
  EXPECT_EQ(messages.back().at("content"),
            "The tool \"web\" can be called now.\nThe tool \"gone\" is not available.\nThat is all.");
}

TEST_F(MessagesBlocksTest, ChangesOfToolsAreRefusedByPlace) {
  const json user = said("user", "A"), tools = json::array({tool("find")});
  EXPECT_THAT(refusal({user, change("tool_addition", reference("gone"))}, tools),
              HasSubstr("messages[1].content[0].tool.name must be that of one of the \"tools\""));
  EXPECT_THAT(refusal({user, change("tool_addition", {{"type", "tool_definition"}, {"definition", {{"name", "f"}}}})}),
              HasSubstr("messages[1].content[0].tool.definition.input_schema"));
  EXPECT_THAT(refusal({user, change("tool_removal", {{"type", "tool_definition"}, {"definition", tool("find")}})}),
              HasSubstr("messages[1].content[0].tool must be"));
  EXPECT_THAT(refusal({user, change("tool_addition", "find")}, tools),
              HasSubstr("messages[1].content[0].tool must be"));
  EXPECT_THAT(refusal({user, said("user", json::array({{{"type", "tool_addition"}}}))}, tools),
              HasSubstr("is of type \"tool_addition\""));
  json strange = tool("find");
  strange["defer_loading"] = "yes";
  EXPECT_THAT(refusal(json::array({user}), json::array({strange})),
              HasSubstr("tools[0].defer_loading must be true or false"));
}

TEST_F(MessagesBlocksTest, HostedToolsAreLeftOutAndNamed) {
  const auto hosted = [](const char* type) { return json{{"type", type}, {"name", "x"}}; };
  const std::tuple<json, std::vector<std::string>, const char*> cases[] = {
      {json::array({tool("f"), hosted("web_search_20250305")}), {"f"}, "web_search_20250305"},
      {json::array({hosted("code_execution_20270131"), tool("f"), hosted("bash_20250124"), hosted("bash_20250124")}),
       {"f"},
       "bash_20250124, code_execution_20270131"},
      {json::array({hosted("new_kind_20991231"), hosted("mcp_toolset")}), {}, "mcp_toolset, new_kind_20991231"},
      // Its search cannot load tools, so all are there from the start.
      {json::array({hosted("tool_search_tool_regex_20251119"), tool("f", true), tool("g")}),
       {"f", "g"},
       "tool_search_tool_regex_20251119"},
      {json::array({tool("f")}), {"f"}, ""},
  };
  for (const auto& [tools, shown, named] : cases) {
    FakeEngine engine;
    Api api(engine, make_options());
    const json body = {{"max_tokens", 5}, {"messages", json::array({said("user", "A")})}, {"tools", tools}};
    const Answer got = answer(api, post(kMessages, body.dump()));
    ASSERT_EQ(got.response->status, 200) << got.response->body;
    EXPECT_EQ(header(got.response->headers, "X-Volley-Ignored-Tools"), named);
    EXPECT_EQ(names(prompt_of(json::array({said("user", "A")}), tools).second), shown);
  }

  FakeEngine engine;
  Api api(engine, with(&ServerOptions::refuse_hosted_tools, true));
  const json body = {{"max_tokens", 5},
                     {"messages", json::array({said("user", "A")})},
                     {"tools", json::array({tool("f"), hosted("web_search_20250305")})}};
  const Answer got = answer(api, post(kMessages, body.dump()));
  EXPECT_EQ(got.response->status, 400);
  EXPECT_THAT(got.response->body, HasSubstr("tools[1] is of type \\\"web_search_20250305\\\""));

  // Neither tool exists.
  const json user = said("user", "A");
  for (const char* type : {"web_search", "x_2025030", "x_2025030a", "_20250305", "f-g_20250305", "function"}) {
    EXPECT_THAT(refusal(json::array({user}), json::array({hosted(type)})), HasSubstr("tools[0] is of type")) << type;
  }
}

// A client that hides thoughts still sends them back.
TEST_F(MessagesBlocksTest, OmittedThoughtsComeBackByTheirSignature) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = {"<think>h", "m é</think>So."}}; });
  Api api(engine, with(&ServerOptions::reasoning_parser, "think"));
  json body = {{"max_tokens", 50},
               {"messages", json::array({said("user", "A")})},
               {"thinking", {{"type", "adaptive"}, {"display", "omitted"}}}};
  const json content = answer(api, post(kMessages, body.dump())).body().at("content");
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0].at("thinking"), "");
  EXPECT_EQ(content[1].at("text"), "So.");

  body["stream"] = true;
  std::string signature;
  for (const std::string& data : stream_events(answer(api, post(kMessages, body.dump())).events)) {
    const json delta = json::parse(data).value("delta", json::object());
    EXPECT_FALSE(delta.contains("thinking"));
    signature += delta.value("signature", "");
  }
  EXPECT_EQ(signature, content[0].at("signature"));

  const auto thought = [&](const json& block) {
    const json messages =
        prompt_of({said("user", "A"), said("assistant", json::array({block, text_block("So.")})), said("user", "B")})
            .first;
    return messages[1].value("reasoning_content", "");
  };
  EXPECT_EQ(unseal_text(signature), "hm é");
  const json sealed = {{"type", "thinking"}, {"thinking", ""}, {"signature", seal_text("hm")}};
  EXPECT_EQ(thought(sealed), "hm");
  EXPECT_EQ(thought({{"type", "thinking"}, {"thinking", "mm"}, {"signature", content[0].at("signature")}}), "mm");
  EXPECT_EQ(thought({{"type", "thinking"}, {"thinking", ""}, {"signature", "another service's"}}), "");
  EXPECT_EQ(thought({{"type", "thinking"}, {"thinking", ""}}), "");
}

}  // namespace
}  // namespace volley::serve
