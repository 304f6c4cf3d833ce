// Protects agents on the Responses API: the model's view of their tools, and calls that come back in the client's form,
// streamed and whole.
#include <set>

#include "serve/responses/responses_for_test.h"

namespace volley::serve {
namespace {

const std::string kPatch = "*** Begin Patch\n+\"é😀\\\t\n*** End Patch\n";

std::string call_text(const std::string& name, const std::string& arguments) {
  return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}\n</tool_call>";
}

class ApiResponseToolsTest : public ApiResponsesTest {
 protected:
  // The whole output for a model's text; checks that streams in pieces of any size agree.
  json output(const std::string& text, json body) {
    json whole;
    for (const size_t size : {1, 3, 1000}) {
      FakeEngine engine([&](const GenerateRequest&) { return FakeScript{.pieces = cut(text, size)}; });
      Api api(engine, make_options());
      body["stream"] = false;
      const json response = ask(api, body);
      whole = response.at("output");
      body["stream"] = true;
      const std::string events = answer(api, post(kResponsesPath, body.dump())).events;
      events_of(events);  // they are well formed
      EXPECT_EQ(without_ids(built_response(events)), without_ids(whole)) << size;
      prompt_ = prompt(engine);
    }
    return whole;
  }

  static json without_ids(json items) {
    for (json& item : items) {
      for (const char* name : {"id", "call_id"}) item.erase(name);
    }
    return items;
  }

  // The tools in the chat template's input.
  json rendered_tools() const { return json::parse(prompt_.substr(prompt_.rfind('|') + 1)); }
  json rendered_messages() const { return json::parse(prompt_.substr(0, prompt_.find("||"))); }
  // Sends the request, for the model's input.
  void read(const json& body) { output("ok", body); }

  std::string prompt_;
};

// Agents send them with every request.
TEST_F(ApiResponseToolsTest, HostedToolsAreLeftOutAndNamed) {
  FakeEngine engine;
  ServerOptions options = make_options();
  Api api(engine, options);
  options.refuse_hosted_tools = true;
  Api strict(engine, options);
  constexpr const char* kFunction = R"({"type": "function", "name": "f"})";
  const auto ignored = [](const HttpHeaders& headers) { return header(headers, "X-Volley-Ignored-Tools"); };
  for (const std::string type : {"web_search", "web_search_preview_2025_03_11", "file_search", "code_interpreter",
                                 "image_generation", "mcp", "computer_use_preview", "local_shell"}) {
    for (const bool stream : {false, true}) {
      const std::string body = R"({"input": "a", "stream": )" + std::string(stream ? "true" : "false") +
                               R"(, "tools": [{"type": ")" + type + R"("}, )" + kFunction + "]}";
      const Answer got = answer(api, post(kResponsesPath, body));
      EXPECT_EQ(ignored(stream ? got.headers : got.response.value().headers), type);
      EXPECT_EQ(prompt(engine).find(type), std::string::npos) << prompt(engine);
      EXPECT_NE(prompt(engine).find("\"name\":\"f\""), std::string::npos) << prompt(engine);
      const json refused = error(strict, body);
      EXPECT_EQ(refused.at("param"), "tools");
      EXPECT_NE(refused.at("message").get<std::string>().find("tools[0] is of type \"" + type), std::string::npos);
    }
  }
  const Answer two =
      answer(api, post(kResponsesPath, R"({"input": "a", "tools": [{"type": "web_search"}, {"type": "mcp"}]})"));
  EXPECT_EQ(ignored(two.response.value().headers), "mcp, web_search");
  const Answer none =
      answer(strict, post(kResponsesPath, R"({"input": "a", "tools": [)" + std::string(kFunction) + "]}"));
  EXPECT_EQ(ignored(none.response.value().headers), "");
  // An unknown name may be a mistake, and no client may write headers.
  for (const char* type : {"functoin", "web_searches", "mcp_\\r\\nX-A: b", ""}) {
    EXPECT_EQ(error(api, R"({"input": "a", "tools": [{"type": ")" + std::string(type) + R"("}]})").at("param"),
              "tools");
  }
}

TEST_F(ApiResponseToolsTest, CustomToolsTakeAndGiveTexts) {
  const json body = json::parse(R"({"input": "x", "store": false, "tools": [
    {"type": "custom", "name": "apply_patch", "description": "Patches.",
     "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}},
    {"type": "custom", "name": "run", "format": {"type": "text"}}, {"type": "custom", "name": "bare"}]})");
  const std::tuple<std::string, std::string> cases[] = {
      {R"({"input": "a b"})", "a b"},
      {R"({"input": ")" + json(kPatch).dump().substr(1) + "}", kPatch},
      {R"( { "input" : "\ud83d\ude00\u00e9\/\\" } )", "😀é/\\"},
      {R"({"input": ""})", ""},
      {R"({})", ""},
      {R"({"patch": "a"})", "a"},
      {R"({"why": "b", "input": "a"})", "a"},
      {R"({"input": 5})", R"({"input": 5})"},
  };
  for (const auto& [arguments, input] : cases) {
    const json items = output(call_text("apply_patch", arguments), body);
    ASSERT_EQ(items.size(), 1u) << items;
    EXPECT_EQ(items[0].at("type"), "custom_tool_call");
    EXPECT_TRUE(items[0].at("id").get<std::string>().starts_with("ctc_"));
    EXPECT_EQ(items[0].at("name"), "apply_patch");
    EXPECT_EQ(items[0].at("input"), input) << arguments;
    EXPECT_FALSE(items[0].contains("arguments"));
    EXPECT_FALSE(items[0].contains("namespace"));
  }
  const json tools = rendered_tools();
  ASSERT_EQ(tools.size(), 3u);
  const json& function = tools[0].at("function");
  EXPECT_EQ(function.at("parameters"), json::parse(R"({"type": "object", "properties": {"input": {"type": "string"}},
                                                       "required": ["input"], "additionalProperties": false})"));
  EXPECT_EQ(function.at("description"), "Patches.\n\n\"input\" follows this Lark grammar:\nstart: /a+/");
  EXPECT_FALSE(tools[2].at("function").contains("description"));
}

TEST_F(ApiResponseToolsTest, CustomCallsGoRound) {
  read(json::parse(R"({"store": false, "tools": [{"type": "custom", "name": "run"}], "input": [
    {"role": "user", "content": "go"},
    {"type": "custom_tool_call", "id": "ctc_1", "status": "completed", "call_id": "c1", "name": "run", "input": "a\n\"b\""},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "one"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "run", "namespace": "box", "input": ""},
    {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]}]})"));
  EXPECT_EQ(rendered_messages(), json::parse(R"([
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function",
      "function": {"name": "run", "arguments": "{\"input\":\"a\\n\\\"b\\\"\"}"}}]},
    {"role": "tool", "content": "one", "tool_call_id": "c1"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c2", "type": "function",
      "function": {"name": "box__run", "arguments": "{\"input\":\"\"}"}}]},
    {"role": "tool", "content": "two", "tool_call_id": "c2"}])"));
}

TEST_F(ApiResponseToolsTest, NamespacesAreFlattenedAndComeBackByTheirNames) {
  const json body = json::parse(R"({"input": "x", "store": false, "tools": [
    {"type": "function", "name": "find", "parameters": {"type": "object"}},
    {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [
      {"type": "function", "name": "find", "description": "Finds one.", "parameters": {"type": "object"}},
      {"type": "function", "name": "drop", "strict": true, "defer_loading": true},
      {"type": "custom", "name": "query"}]},
    {"type": "namespace", "name": "mcp__box__", "description": "", "tools": [{"type": "function", "name": "open"}]},
    {"type": "namespace", "name": "functions", "description": "", "tools": [{"type": "function", "name": "exec"}]}]})");
  // Both names as the model was shown them, and as models write them anyway.
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"find", "find", nullptr},
      {"crm__find", "find", "crm"},
      {"crm.find", "find", "crm"},
      {"drop", "drop", "crm"},
      {"mcp__box__open", "open", "mcp__box__"},
      {"open", "open", "mcp__box__"},
      {"exec", "exec", "functions"},
      {"functions.exec", "exec", "functions"},
      {"unknown", "unknown", nullptr},
  };
  for (const auto& [written, name, space] : cases) {
    const json items = output(call_text(written, R"({"a": 1})"), body);
    ASSERT_EQ(items.size(), 1u) << items;
    EXPECT_EQ(items[0].at("type"), "function_call");
    EXPECT_EQ(items[0].at("name"), name) << written;
    EXPECT_EQ(items[0].value("namespace", json()), space ? json(space) : json()) << written;
    EXPECT_EQ(items[0].at("arguments"), R"({"a": 1})");
  }
  const json custom = output(call_text("crm__query", R"({"input": "q"})"), body)[0];
  EXPECT_EQ(custom.at("type"), "custom_tool_call");
  EXPECT_EQ(custom.at("namespace"), "crm");
  EXPECT_EQ(custom.at("input"), "q");
  std::vector<std::string> names;
  for (const json& tool : rendered_tools()) names.push_back(tool.at("function").at("name"));
  EXPECT_EQ(names,
            (std::vector<std::string>{"find", "crm__find", "crm__drop", "crm__query", "mcp__box__open", "exec"}));
  EXPECT_EQ(rendered_tools()[1].at("function").at("description"), "Customers.\n\nFinds one.");
  EXPECT_FALSE(rendered_tools()[2].at("function").contains("defer_loading"));
  read(json::parse(R"({"store": false, "input": [{"role": "user", "content": "go"},
    {"type": "function_call", "call_id": "c1", "name": "find", "namespace": "crm", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "one"}]})"));
  EXPECT_EQ(rendered_messages()[1].at("tool_calls")[0].at("function").at("name"), "crm__find");
}

TEST_F(ApiResponseToolsTest, ASearchOfTheClientsBringsTools) {
  json body = json::parse(R"({"store": false, "input": [{"role": "user", "content": "go"}], "tools": [
    {"type": "tool_search", "execution": "client", "description": "Finds tools.",
     "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}]})");
  for (const auto& [arguments, expected] : {std::pair(R"({"query": "mail"})", R"({"query": "mail"})"), {"{}", "{}"}}) {
    const json items = output(call_text("tool_search", arguments), body);
    ASSERT_EQ(items.size(), 1u) << items;
    EXPECT_EQ(items[0].at("type"), "tool_search_call");
    EXPECT_EQ(items[0].at("execution"), "client");
    EXPECT_EQ(items[0].at("arguments"), json::parse(expected));
    EXPECT_FALSE(items[0].at("call_id").get<std::string>().empty());
  }
  body["input"].push_back(json::parse(R"({"type": "tool_search_call", "call_id": "c1", "execution": "client",
    "status": "completed", "arguments": {"query": "mail"}})"));
  body["input"].push_back(json::parse(R"({"type": "tool_search_output", "call_id": "c1", "execution": "client",
    "status": "completed", "tools": [{"type": "function", "name": "now", "parameters": {"type": "object"}},
      {"type": "namespace", "name": "mail", "description": "Mail.", "tools": [{"type": "function", "name": "send"}]}]})"));
  body["input"].push_back(json::parse(R"({"type": "additional_tools", "role": "developer", "tools": [
    {"type": "custom", "name": "exec"}, {"type": "web_search"}, {"type": "function", "name": "now"}]})"));
  const json items = output(call_text("mail__send", "{}"), body);
  EXPECT_EQ(items[0].at("namespace"), "mail");
  EXPECT_EQ(rendered_messages()[1].at("tool_calls")[0].at("function"),
            json::parse(R"({"name": "tool_search", "arguments": "{\"query\":\"mail\"}"})"));
  EXPECT_EQ(rendered_messages()[2].at("content"), "These tools can be called now: now, mail__send");
  std::vector<std::string> names;
  for (const json& tool : rendered_tools()) names.push_back(tool.at("function").at("name"));
  EXPECT_EQ(names, (std::vector<std::string>{"tool_search", "now", "mail__send", "exec"}));
  EXPECT_FALSE(rendered_tools()[1].at("function").contains("parameters")) << "the later one counts";
}

// Such tools belong to the conversation, so they stay with it.
TEST_F(ApiResponseToolsTest, ToolsOfAKeptConversationAreStillThere) {
  FakeEngine engine;
  Api api(engine, make_options());
  const json first = ask(api, json::parse(R"({"input": [{"role": "user", "content": "a"},
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "exec"}]}]})"));
  ask(api, {{"input", "b"}, {"previous_response_id", first.at("id")}});
  EXPECT_NE(prompt(engine).find("\"name\":\"exec\""), std::string::npos) << prompt(engine);
  const std::string path =
      std::string(kResponsesPath) + "/" + first.at("id").get<std::string>() + "/input_items?order=asc";
  const json items = answer(api, get(path)).body().at("data");
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1].at("type"), "additional_tools");
  EXPECT_EQ(items[1].at("tools"), json::parse(R"([{"type": "custom", "name": "exec"}])"));
}

TEST_F(ApiResponseToolsTest, ThoughtsGoRoundWithoutBeingKept) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = {"<think>hm, so</think>", "so"}}; });
  Api api(engine, with(&ServerOptions::reasoning_parser, "think"));
  json body = {{"input", "a"}, {"store", false}};
  const json plain = ask(api, body).at("output")[0];
  EXPECT_EQ(plain.at("content")[0].at("text"), "hm, so");
  EXPECT_TRUE(plain.at("encrypted_content").is_null());
  body["include"] = {"reasoning.encrypted_content"};
  const json sealed = ask(api, body).at("output")[0];
  ASSERT_TRUE(sealed.at("encrypted_content").is_string());
  body["stream"] = true;
  json streamed;
  for (const json& event : events_of(answer(api, post(kResponsesPath, body.dump())).events)) {
    if (event.at("type") == "response.output_item.done" && streamed.is_null()) streamed = event.at("item");
  }
  EXPECT_EQ(streamed.at("encrypted_content"), sealed.at("encrypted_content"));
  const auto thought_of = [&](json item) {
    item["type"] = "reasoning";
    ask(api, {{"store", false},
              {"input", json::array({{{"role", "user"}, {"content", "a"}},
                                     item,
                                     {{"role", "assistant"}, {"content", "so"}},
                                     {{"role", "user"}, {"content", "b"}}})}});
    return json::parse(prompt(engine).substr(0, prompt(engine).find("||")))[1].value("reasoning_content", "");
  };
  EXPECT_EQ(thought_of(sealed), "hm, so");
  // For clients that keep only this.
  EXPECT_EQ(thought_of({{"summary", json::array()}, {"encrypted_content", sealed.at("encrypted_content")}}), "hm, so");
  EXPECT_EQ(thought_of({{"summary", json::array()}, {"content", nullptr}, {"encrypted_content", "gAAAAA=="}}), "");
  EXPECT_EQ(thought_of({{"encrypted_content", "volley1.%%%%"}}), "");
  EXPECT_EQ(
      thought_of(json::parse(R"({"encrypted_content": null, "summary": [{"type": "summary_text", "text": "s"}]})")),
      "s");
}

TEST_F(ApiResponseToolsTest, ChoicesNameToolsOfEveryKind) {
  FakeEngine engine;
  Api api(engine, make_options());
  json body = json::parse(R"({"input": "x", "tools": [{"type": "function", "name": "f"},
    {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "regex", "definition": "[ab]+"}},
    {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find"}]}, {"type": "web_search"}]})");
  const std::tuple<const char*, const char*> taken[] = {
      {R"({"type": "function", "name": "f"})", "\"f\\\""},
      {R"({"type": "custom", "name": "c"})", "[ab]+"},
      {R"({"type": "function", "name": "find"})", "crm__find"},
      {R"({"type": "function", "name": "find", "namespace": "crm"})", "crm__find"},
      {R"({"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}, {"type": "custom", "name": "c"}]})",
       "[ab]+"},
  };
  for (const auto& [choice, part] : taken) {
    body["tool_choice"] = json::parse(choice);
    ask(api, body);
    ASSERT_TRUE(engine.submitted().back().grammar) << choice;
    EXPECT_NE(engine.submitted().back().grammar->text.find(part), std::string::npos) << choice;
  }
  for (const char* choice :
       {R"({"type": "custom", "name": "f"})", R"({"type": "function", "name": "c"})",
        R"({"type": "function", "name": "no"})", R"({"type": "web_search"})", R"({"type": "tool_search"})",
        R"({"type": "robot"})", R"({"name": "f"})", "5",
        R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": []})"}) {
    body["tool_choice"] = json::parse(choice);
    EXPECT_EQ(error(api, body.dump()).at("param"), "tool_choice") << choice;
  }
}

TEST_F(ApiResponseToolsTest, RefusesByName) {
  FakeEngine engine;
  Api api(engine, make_options());
  const std::tuple<const char*, const char*> tools[] = {
      {R"({"type": "custom"})", "tools[0] must"},
      {R"({"type": "custom", "name": "c", "format": {"type": "xml"}})", "tools[0].format"},
      {R"({"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}})",
       "tools[0].format"},
      {R"({"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark"}})", "tools[0].format"},
      {R"({"type": "namespace", "tools": []})", "tools[0] must"},
      {R"({"type": "namespace", "name": "n"})", "tools[0] must"},
      {R"({"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]})", "tools[0].tools[0] is of type"},
      {R"({"type": "namespace", "name": "n", "tools": [{"type": "function", "name": ""}]})", "tools[0].tools[0] must"},
      {R"({"type": "function", "name": "f"}, {"type": "custom", "name": "f"})", "another tool named \"f\""},
      {R"({"type": "function", "name": "f", "strict": 1})", "tools[0].strict"},
      {R"({"type": "robot", "name": "f"})", "tools[0] is of type \"robot\""},
  };
  for (const auto& [tool, part] : tools) {
    const json got = error(api, R"({"input": "x", "tools": [)" + std::string(tool) + "]}");
    EXPECT_EQ(got.at("param"), "tools") << tool;
    EXPECT_NE(got.at("message").get<std::string>().find(part), std::string::npos) << got;
  }
  const std::tuple<const char*, const char*> items[] = {
      {R"({"type": "custom_tool_call", "call_id": "c", "name": "f"})", "input[0].input"},
      {R"({"type": "custom_tool_call_output", "output": "x"})", "input[0].call_id"},
      {R"({"type": "additional_tools", "tools": {}})", "input[0].tools"},
      {R"({"type": "additional_tools", "tools": [{"type": "robot"}]})", "input[0].tools[0]"},
      {R"({"type": "tool_search_output", "tools": []})", "input[0].call_id"},
      {R"({"type": "tool_search_call", "call_id": "c", "arguments": "x"})", "input[0].arguments"},
      {R"({"type": "reasoning", "summary": [], "encrypted_content": 5})", "input[0].encrypted_content"},
  };
  for (const auto& [item, part] : items) {
    const json got = error(api, R"({"input": [)" + std::string(item) + "]}");
    EXPECT_EQ(got.at("param"), "input") << item;
    EXPECT_NE(got.at("message").get<std::string>().find(part), std::string::npos) << got;
  }
}

}  // namespace
}  // namespace volley::serve
