// Protects agents that change servers. They send their whole history, with another service's calls and with pictures in
// tool results, which templates of text models do not know.
#include <gmock/gmock.h>

#include "serve/api/api_for_test.h"
#include "serve/api/hosted_tools.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ForeignHistoryTest : public ApiTest {
 protected:
  struct Read {
    json messages;  // as the chat template gets them
    std::string notes;
  };

  Read read(const std::string& path, const json& body) {
    FakeEngine engine;
    Api api(engine, make_options());
    const Answer got = answer(api, post(path, body.dump()));
    EXPECT_EQ(got.response.value().status, 200) << body << got.response->body;
    if (got.response->status != 200) return {};
    const std::string text = prompt(engine);
    return {json::parse(text.substr(0, text.find("]|") + 1)), header(got.response->headers, "X-Volley-Notes")};
  }
  Read read_items(json items) {
    const json user = {{"role", "user"}, {"content", "A"}};
    items.insert(items.begin(), user);
    return read("/v1/responses", {{"input", items}, {"store", false}});
  }
  Read read_blocks(const char* role, const json& blocks) {
    return read("/v1/messages", {{"max_tokens", 5},
                                 {"messages",
                                  {{{"role", "user"}, {"content", "A"}},
                                   {{"role", role}, {"content", blocks}},
                                   {{"role", "user"}, {"content", "B"}}}}});
  }
};

TEST_F(ForeignHistoryTest, ItemsOfHostedToolsAreShortTexts) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"({"type": "web_search_call", "id": "ws_1", "status": "completed",
           "action": {"type": "search", "query": "the weather"}})",
       "assistant", R"([web_search_call of another service: {"action":{"query":"the weather"}}])"},
      {R"({"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["a"],
           "results": [{"file_id": "f", "text": "found"}]})",
       "assistant", R"([file_search_call of another service: {"queries":["a"],"results":[{"text":"found"}]}])"},
      {R"({"type": "code_interpreter_call", "id": "ci_1", "container_id": "c", "code": "1 + 1", "outputs": null})",
       "assistant", R"([code_interpreter_call of another service: {"code":"1 + 1"}])"},
      {R"({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "%"})", "assistant",
       "[image_generation_call of another service]"},
      {R"({"type": "mcp_call", "id": "m", "server_label": "s", "name": "n", "arguments": "{}", "output": "o"})",
       "assistant", R"([mcp_call of another service: {"arguments":"{}","name":"n","output":"o","server_label":"s"}])"},
      {R"({"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": []})", "assistant",
       R"([mcp_list_tools of another service: {"server_label":"s"}])"},
      {R"({"type": "computer_call", "id": "c", "call_id": "d", "action": {"type": "wait"}, "pending_safety_checks": []})",
       "assistant", "[computer_call of another service]"},
      {R"({"type": "computer_call_output", "call_id": "d", "output": {"type": "computer_screenshot", "image_url": "%"}})",
       "user", "[computer_call_output of another service]"},
      {R"({"type": "local_shell_call", "id": "l", "call_id": "d", "action": {"type": "exec", "command": ["ls"]}})",
       "assistant", R"([local_shell_call of another service: {"action":{"command":["ls"]}}])"},
      {R"({"type": "local_shell_call_output", "id": "d", "output": "a.txt"})", "user",
       R"([local_shell_call_output of another service: {"output":"a.txt"}])"},
      {R"({"type": "tool_search_call", "execution": "server", "call_id": null, "arguments": {"paths": ["crm"]}})",
       "assistant", R"([tool_search_call of another service: {"arguments":{"paths":["crm"]},"execution":"server"}])"},
      {R"({"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"})", "assistant",
       "[compaction of another service]"},
  };
  for (const auto& [text, role, expected] : cases) {
    json item = json::parse(text);
    const std::string picture(5000, 'Q');
    if (item.contains("result")) item["result"] = picture;
    if (item.contains("output") && item["output"].is_object()) item["output"]["image_url"] = picture;
    const Read got = read_items(json::array({item}));
    EXPECT_EQ(got.messages[1], json({{"role", role}, {"content", expected}}));
    EXPECT_THAT(got.notes, HasSubstr(item.at("type").get<std::string>()));
  }
  // A long text is cut, but never within a character.
  for (size_t shift = 0; shift < 4; ++shift) {
    std::string output(shift, 'x');
    for (int i = 0; i < 4000; ++i) output += "é ";
    const std::string text = foreign_text({{"type", "mcp_call"}, {"output", output}});
    EXPECT_LT(text.size(), 4200u);
    EXPECT_FALSE(find_invalid_utf8(text));
    EXPECT_TRUE(text.ends_with("…]"));
  }
}

// A call and its result stay neighbours, and thoughts stay with what follows them.
TEST_F(ForeignHistoryTest, ItemsTearNoTurnApart) {
  const json search = {{"type", "web_search_call"}, {"action", {{"query", "q"}}}};
  const json call = {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}};
  const json output = {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "o"}};
  const json thought = {{"type", "reasoning"}, {"summary", {{{"type", "summary_text"}, {"text", "hm"}}}}};
  const json said = {{"role", "assistant"}, {"content", "Done."}};
  const Read got = read_items({thought, search, thought, call, search, output, said, search});
  ASSERT_EQ(got.messages.size(), 4u) << got.messages;
  const std::string note = R"([web_search_call of another service: {"action":{"query":"q"}}])";
  EXPECT_EQ(got.messages[1].at("content"), note + "\n" + note);
  EXPECT_EQ(got.messages[1].at("reasoning_content"), "hm\nhm");
  EXPECT_EQ(got.messages[1].at("tool_calls").size(), 1u);
  EXPECT_EQ(got.messages[2].at("role"), "tool");
  EXPECT_EQ(got.messages[3].at("content"), "Done.\n" + note);
}

TEST_F(ForeignHistoryTest, ItemsAreKeptAsTheyWere) {
  const json search = {
      {"id", "ws_1"}, {"type", "web_search_call"}, {"status", "completed"}, {"action", {{"query", "q"}}}};
  json nameless = search;
  nameless.erase("id");
  const json first = ask(api_, "/v1/responses", {{"input", {{{"role", "user"}, {"content", "A"}}, search, nameless}}});
  const std::string path = "/v1/responses/" + first.at("id").get<std::string>() + "/input_items?order=asc";
  const json items = answer(get(path)).body().at("data");
  EXPECT_EQ(items[1], search);
  EXPECT_TRUE(items[2].at("id").get<std::string>().starts_with("item_"));
  ask(api_, "/v1/responses", {{"input", "B"}, {"previous_response_id", first.at("id")}});
  EXPECT_THAT(prompt(engine_), HasSubstr("[web_search_call of another service"));
}

TEST_F(ForeignHistoryTest, BlocksOfHostedToolsAreShortTexts) {
  const json blocks = json::parse(R"([
      {"type": "text", "text": "I look."},
      {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
      {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
        {"type": "web_search_result", "url": "u", "title": "T", "encrypted_content": "EqgfCioIARgB", "page_age": null}]},
      {"type": "text", "text": "Found.", "citations": []},
      {"type": "tool_use", "id": "c", "name": "f", "input": {}},
      {"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "s", "input": {}},
      {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": false, "content": [{"type": "text", "text": "t"}]},
      {"type": "bash_code_execution_tool_result", "tool_use_id": "b", "content": {"type": "x", "stdout": "out"}}])");
  const Read got = read_blocks("assistant", blocks);
  ASSERT_EQ(got.messages.size(), 3u) << got.messages;
  EXPECT_EQ(got.messages[1].at("content"),
            "I look.\n"
            R"([server_tool_use of another service: {"input":{"query":"q"},"name":"web_search"}])"
            "\n"
            R"([web_search_tool_result of another service: {"content":[{"title":"T","url":"u"}]}])"
            "\nFound.\n"
            R"([mcp_tool_use of another service: {"name":"n","server_name":"s"}])"
            "\n"
            R"([mcp_tool_result of another service: {"content":[{"text":"t"}],"is_error":false}])"
            "\n"
            R"([bash_code_execution_tool_result of another service: {"content":{"stdout":"out"}}])");
  EXPECT_EQ(got.messages[1].at("tool_calls").size(), 1u);
  for (const char* type : {"server_tool_use", "web_search_tool_result", "mcp_tool_use", "mcp_tool_result"}) {
    EXPECT_THAT(got.notes, HasSubstr(type));
  }
  const Read user = read_blocks("user", json::parse(R"([{"type": "text", "text": "See"},
      {"type": "web_fetch_tool_result", "tool_use_id": "w", "content": {"url": "u"}}])"));
  EXPECT_THAT(user.messages[1].at("content").get<std::string>(), HasSubstr("See\n[web_fetch_tool_result of another"));
}

TEST_F(ForeignHistoryTest, PicturesInResultsOfToolsAreLeftOut) {
  const std::string note = "[image left out: this model takes text only]";
  const json block = json::parse(R"({"type": "tool_result", "tool_use_id": "c", "content": [
      {"type": "text", "text": "a.png"}, {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
      {"type": "document", "source": {"type": "base64", "data": "AAAA"}}]})");
  const Read messages = read_blocks("user", json::array({block}));
  EXPECT_EQ(messages.messages[1].at("content"), "a.png\n" + note + "\n[document left out: this model takes text only]");
  EXPECT_THAT(messages.notes, AllOf(HasSubstr("images in results of tools"), HasSubstr("documents in results")));

  for (const char* type : {"function_call_output", "custom_tool_call_output"}) {
    const json item = {{"type", type},
                       {"call_id", "c"},
                       {"output",
                        {{{"type", "input_image"}, {"image_url", "data:image/png;base64,AAAA"}},
                         {{"type", "input_text"}, {"text", "a.png"}}}}};
    const Read got = read_items(json::array({item}));
    EXPECT_EQ(got.messages[1].at("content"), note + "\na.png");
    EXPECT_THAT(got.notes, HasSubstr("images in results of tools are left out"));
  }
  const Read chat = read(kChatPath, json::parse(R"({"messages": [{"role": "user", "content": "A"},
      {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a.png"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]})"));
  EXPECT_EQ(chat.messages[1].at("content"), "a.png\n" + note);
  EXPECT_THAT(chat.notes, HasSubstr("images in results of tools are left out"));
  EXPECT_EQ(read(kChatPath, {{"messages", {{{"role", "user"}, {"content", "A"}}}}}).notes, "");
}

// A user's picture is the question itself, and an unknown type may be a mistake.
TEST_F(ForeignHistoryTest, OthersAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"/v1/responses", R"({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]})"},
      {"/v1/responses", R"({"input": [{"type": "web_searches"}]})"},
      {"/v1/responses", R"({"input": [{"type": "mcp_\r\nX-A: b"}]})"},
      {"/v1/responses", R"({"input": [{"type": "tool_search_call", "arguments": {}}]})"},
      {"/v1/messages", R"({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]})"},
      {"/v1/messages", R"({"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "texts"}]}]})"},
      {"/v1/messages",
       R"({"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "\r\n_tool_use"}]}]})"},
      {"/v1/messages",
       R"({"max_tokens": 5, "messages": [{"role": "system", "content": [{"type": "server_tool_use"}]}]})"},
      {kChatPath, R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})"},
  };
  for (const auto& [path, body] : cases) {
    EXPECT_EQ(answer(post(path, body)).response.value().status, 400) << body;
  }
}

}  // namespace
}  // namespace volley::serve
