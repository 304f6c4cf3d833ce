// Protects what surrounds a generation: readiness, keys, origins, request ids, tokens, the page.
#include "serve/api/api_for_test.h"

#include <unistd.h>

#include <filesystem>

namespace volley::serve {
namespace {

class ApiEndpointsTest : public ApiTest {};

TEST_F(ApiEndpointsTest, IsNeitherHealthyNorReadyUntilTheEngineIsThere) {
  Api api(make_options());
  EXPECT_EQ(answer(api, get("/version")).response->status, 200);
  for (const HttpRequest& request :
       {get("/health"), get("/ready"), get("/metrics"), get("/load"), get("/v1/models"), post(kTextPath, "{}")}) {
    const Answer early = answer(api, request);
    EXPECT_EQ(early.response->status, 503) << request.target;
    EXPECT_EQ(early.body().at("error").at("code"), "loading");
    EXPECT_EQ(early.response->headers.at(0).first, "Retry-After");
  }
  FakeEngine engine;
  ASSERT_TRUE(api.attach(engine).ok());
  EXPECT_EQ(answer(api, get("/health")).body(), json::parse(R"({"status": "ok"})")) << "healthy is who can be asked";
  EXPECT_EQ(answer(api, get("/ready")).body(), json::parse(R"({"status": "ready"})"));
  EXPECT_EQ(answer(api, post(kTextPath, R"({"prompt": "x"})")).response->status, 200);
}

// Routers read these answers of vLLM and SGLang.
TEST_F(ApiEndpointsTest, RoutersLearnTheLoad) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{{"abcd"}, /*endless=*/true}; }, 1ms);
  Api api(engine, make_options());
  const auto load = [&] { return answer(api, get("/load")).body().at("server_load").get<int>(); };
  const auto entry = [&](const char* name) { return answer(api, get("/get_load")).body().at(0).at(name).get<int>(); };
  EXPECT_EQ(load(), 0);
  EXPECT_EQ(entry("num_tokens"), 0);
  auto reply = api.handle(post(kTextPath, R"({"prompt": ["xyz", "uvw"], "n": 2})"), [] {});
  const auto generation = std::get<std::shared_ptr<Generation>>(std::move(reply));
  EXPECT_EQ(load(), 1) << "one request of a client";
  EXPECT_EQ(entry("num_reqs"), 4) << "each choice is one of the engine's";
  EXPECT_GE(entry("num_tokens"), 12) << "their prompts";
  EXPECT_TRUE(eventually([&] { return entry("num_tokens") >= 12 + 4 * 8; })) << "and what they have produced";
  generation->abandon();
  EXPECT_TRUE(eventually([&] { return load() == 0; }));
  EXPECT_EQ(entry("num_tokens"), 0);

  engine.refuse_submits(resource_exhausted("The queue is full."), 1);
  EXPECT_EQ(answer(api, post(kTextPath, R"({"prompt": ["xyz", "uvw"]})")).response->status, 429);
  EXPECT_TRUE(eventually([&] { return load() == 0; })) << "what was accepted is cancelled, the rest never open";
}

TEST_F(ApiEndpointsTest, RoutersLearnWhatIsServed) {
  FakeEngine engine;
  Api api(engine, with(&ServerOptions::version, "1.2"));
  const json server = answer(api, get("/server_info")).body();
  EXPECT_EQ(server.at("served_model_name"), "pocket");
  EXPECT_EQ(server.at("version"), "1.2");
  EXPECT_EQ(server.at("max_model_len"), engine.info().max_model_len);
  EXPECT_EQ(server.at("max_total_tokens"), engine.info().kv_pages * engine.info().page_size);
  const json model = answer(api, get("/model_info")).body();
  EXPECT_EQ(model.at("is_generation"), true);
  EXPECT_EQ(model.at("architectures"), json({engine.info().architecture}));
}

TEST_F(ApiEndpointsTest, AnUnknownParserIsAnErrorAtTheStart) {
  FakeEngine engine;
  ServerOptions options = make_options();
  options.tool_call_parser = "xml";
  EXPECT_EQ(Api(options).attach(engine).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(ApiEndpointsTest, WantsAKeyForWhatCosts) {
  FakeEngine engine;
  Api api(engine, with(&ServerOptions::api_keys, {"sesame", "other-key"}));
  HttpRequest request = post(kTextPath, R"({"prompt": "x"})");
  const auto status_with = [&](const std::string& authorization) {
    request.authorization = authorization;
    return answer(api, request).response->status;
  };
  for (const char* wrong : {"", "sesame", "Bearer", "Bearer ", "Bearer sesam", "Bearer sesame2", "Bearer Sesame",
                            "Basic sesame", "Bearer sesamesesame"}) {
    EXPECT_EQ(status_with(wrong), 401) << wrong;
  }
  EXPECT_EQ(status_with("Bearer sesame"), 200);
  EXPECT_EQ(status_with("bearer other-key"), 200);
  const Answer refused = answer(api, get("/v1/models"));
  EXPECT_EQ(refused.body().at("error").at("code"), "invalid_api_key");
  for (const char* open : {"/health", "/ready", "/version", "/metrics", "/load", "/get_load", "/openapi.json", "/"}) {
    EXPECT_EQ(answer(api, get(open)).response->status, 200) << open;
  }
  for (const char* closed : {"/server_info", "/model_info"}) {
    EXPECT_EQ(answer(api, get(closed)).response->status, 401) << closed;
  }
}

// A single key may fill the folder of files; one of several may not.
TEST_F(ApiEndpointsTest, SeveralKeysLeaveRoomForFilesOfOthers) {
  const std::string folder = ::testing::TempDir() + "/volley_shared_files_" + std::to_string(getpid());
  for (const size_t keys : {size_t{1}, size_t{2}}) {
    ServerOptions options = make_options();
    options.api_keys = {"sesame", "other-key"};
    options.api_keys.resize(keys);
    options.file_store = *FileStore::open(folder, {.max_total_bytes = 1000});
    const Api api(options);
    EXPECT_EQ(options.file_store->reserve(options.file_store->owner_of("sesame"), 501),
              keys == 1 ? FileStore::Room::kThere : FileStore::Room::kLeftToOthers);
  }
  std::filesystem::remove_all(folder);
}

// Any client may read a file whose name it knows, so a server without keys lists names only to their makers.
TEST_F(ApiEndpointsTest, WithoutKeysListsShowClientsTheirOwn) {
  const std::string folder = ::testing::TempDir() + "/volley_listed_files_" + std::to_string(getpid());
  for (const std::vector<std::string>& keys : {std::vector<std::string>{}, {"sesame"}}) {
    FakeEngine engine;
    ServerOptions options = make_options();
    options.api_keys = keys;
    options.file_store = *FileStore::open(folder, {});
    Api api(engine, options);
    const auto call = [&](const char* method, const std::string& path, const std::string& client,
                          const std::string& body = "") {
      HttpRequest request{method, path, "application/json", body};
      request.client = client;
      request.authorization = "Bearer sesame";
      if (path == "/v1/files" && !body.empty()) request.content_type = "multipart/form-data; boundary=b";
      return *answer(api, request).response;
    };
    const std::string form =
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: "
        "form-data; "
        "name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": "
        "\"/v1/completions\", \"body\": {\"prompt\": \"x\"}}\r\n--b--\r\n";
    const std::string file = json::parse(call("POST", "/v1/files", "192.0.2.7", form).body).at("id");
    const std::string batch = json::parse(call("POST", "/v1/batches", "192.0.2.7",
                                               R"({"input_file_id": ")" + file + R"(", "endpoint": "/v1/completions",
                                                   "completion_window": "24h"})")
                                              .body)
                                  .at("id");
    for (const std::string& id : {file.substr(5), batch.substr(6)}) {
      EXPECT_EQ(id.size(), 32u) << id;
      EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    }
    const auto count = [&](const std::string& path, const std::string& client) {
      return json::parse(call("GET", path, client).body).at("data").size();
    };
    EXPECT_TRUE(eventually([&] { return count("/v1/files", "192.0.2.7") == 2; })) << "the batch's results too";
    EXPECT_EQ(count("/v1/batches", "192.0.2.7"), 1u);
    const bool all = !keys.empty();  // a key owns its files from any address
    EXPECT_EQ(count("/v1/files", "192.0.2.8"), all ? 2u : 0u);
    EXPECT_EQ(count("/v1/batches", "192.0.2.8"), all ? 1u : 0u);
    EXPECT_EQ(call("GET", "/v1/files/" + file, "192.0.2.8").status, 200) << "a name is enough";
    EXPECT_EQ(call("GET", "/v1/batches/" + batch, "192.0.2.8").status, 200);
    api.stop_batches();
    EXPECT_TRUE(api.wait_for_batches(30s));
    std::filesystem::remove_all(folder);
  }
}

// A key is a tenant, and the choices of one HTTP request are a group. No key is passed on.
TEST_F(ApiEndpointsTest, KeysAndRequestsTakeShares) {
  FakeEngine engine;
  Api api(engine, with(&ServerOptions::api_keys, {"sesame", "other-key"}));
  HttpRequest request = post(kTextPath, R"({"prompt": ["x", "y"], "n": 2, "priority": -3})");
  for (const char* key : {"Bearer sesame", "Bearer other-key", "Bearer sesame"}) {
    request.authorization = key;
    ASSERT_EQ(answer(api, request).response->status, 200);
  }
  const auto submitted = engine.submitted();
  ASSERT_EQ(submitted.size(), 12u);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(submitted[i].group, submitted[i / 4 * 4].group);
    EXPECT_NE(submitted[i].group, 0u);
    EXPECT_EQ(submitted[i].priority, -3);
    EXPECT_EQ(submitted[i].tenant.find("sesame"), std::string::npos);
  }
  EXPECT_NE(submitted[0].group, submitted[8].group) << "another request";
  EXPECT_EQ(submitted[0].tenant, submitted[8].tenant) << "of the same key";
  EXPECT_NE(submitted[0].tenant, submitted[4].tenant);
}

// A named tenant must leave a part of the queue free; a single key has no name. Without keys addresses are tenants, so
// that one client's many requests do not take all slots.
TEST_F(ApiEndpointsTest, WithoutKeysAddressesTakeShares) {
  for (const std::vector<std::string>& keys : {std::vector<std::string>{}, {"sesame"}}) {
    FakeEngine engine;
    Api api(engine, with(&ServerOptions::api_keys, keys));
    HttpRequest request = post(kTextPath, R"({"prompt": "x"})");
    request.authorization = "Bearer sesame";
    request.client = "192.0.2.7";
    ASSERT_EQ(answer(api, request).response->status, 200);
    EXPECT_EQ(engine.submitted().at(0).tenant, keys.empty() ? "192.0.2.7" : "");
  }
}

TEST_F(ApiEndpointsTest, PagesOfNamedOriginsMayRead) {
  FakeEngine engine;
  Api api(engine, with(&ServerOptions::cors_origins, {"https://good.example"}));
  HttpRequest asked{"OPTIONS", kChatPath, "", ""};
  asked.origin = "https://good.example";
  asked.requested_headers = "authorization, x-stainless-lang";
  const HttpResponse preflight = answer(api, asked).response.value();
  EXPECT_EQ(preflight.status, 204);
  const auto headers = api.common_headers(asked);
  EXPECT_EQ(headers.at(0).second, "https://good.example");
  EXPECT_NE(std::find(preflight.headers.begin(), preflight.headers.end(),
                      std::pair<std::string, std::string>{"Access-Control-Allow-Headers", asked.requested_headers}),
            preflight.headers.end());
  asked.origin = "https://bad.example";
  EXPECT_EQ(answer(api, asked).response->status, 405);
  EXPECT_TRUE(api.common_headers(asked).empty());
}

TEST_F(ApiEndpointsTest, RequestIdsAreTheClientsOrNew) {
  Api api(make_options());
  EXPECT_EQ(api.request_id("trace-1.2:3_4"), "trace-1.2:3_4");
  const std::string odd[] = {"", "a b", "a\nb", "\xff", std::string(129, 'x'), "a,b"};
  for (const std::string& id : odd) EXPECT_TRUE(api.request_id(id).starts_with("req-")) << id;
  EXPECT_NE(api.request_id(""), api.request_id(""));
}

TEST_F(ApiEndpointsTest, TokenizesAndBack) {
  EXPECT_EQ(
      answer(post("/tokenize", R"({"model": "pocket", "prompt": "ab", "return_token_strs": true})")).body(),
      json::parse(R"({"count": 3, "max_model_len": 4096, "tokens": [256, 97, 98], "token_strs": ["<s>", "a", "b"]})"));
  EXPECT_EQ(answer(post("/tokenize", R"({"prompt": "ab", "add_special_tokens": false})")).body().at("tokens"),
            json::parse("[97, 98]"));
  const Answer chat = answer(
      api_, post("/tokenize", R"({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": false})"));
  const std::vector<TokenId> ids = chat.body().at("tokens");
  EXPECT_EQ(engine_.decode(ids, false), R"([{"role":"user","content":"hi"}]||0|0)");
  EXPECT_EQ(answer(post("/detokenize", R"({"tokens": [97, 98]})")).body(), json::parse(R"({"prompt": "ab"})"));
  for (const char* wrong : {"{}", R"({"prompt": "a", "messages": []})", R"({"prompt": 5})", "[]", "{"}) {
    EXPECT_EQ(answer(post("/tokenize", wrong)).response->status, 400) << wrong;
  }
  for (const char* wrong : {"{}", R"({"tokens": [300]})", R"({"tokens": "a"})"}) {
    EXPECT_EQ(answer(post("/detokenize", wrong)).response->status, 400) << wrong;
  }
}

TEST_F(ApiEndpointsTest, ServesThePage) {
  const HttpResponse page = answer(get("/")).response.value();
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  const auto etag = std::find_if(page.headers.begin(), page.headers.end(), [](auto& h) { return h.first == "ETag"; });
  ASSERT_NE(etag, page.headers.end());
  HttpRequest again = get("/");
  again.if_none_match = etag->second;
  EXPECT_EQ(answer(again).response->status, 304);
  EXPECT_EQ(answer(get("/web/no-such-file.js")).response->status, 404);
}

TEST_F(ApiEndpointsTest, ServesThePageCompressedToThoseWhoReadThat) {
  const auto ask = [&](const char* path, const char* encodings) {
    HttpRequest request = get(path);
    request.accept_encoding = encodings;
    return answer(request).response.value();
  };
  const auto header = [](const HttpResponse& response, const std::string& name) {
    for (const auto& [key, value] : response.headers) {
      if (key == name) return value;
    }
    return std::string();
  };
  const HttpResponse plain = ask("/", ""), packed = ask("/", "gzip, deflate, br");
  EXPECT_EQ(header(plain, "Content-Encoding"), "");
  EXPECT_EQ(header(packed, "Content-Encoding"), "gzip");
  EXPECT_EQ(header(packed, "Vary"), "Accept-Encoding");
  EXPECT_LT(packed.body.size(), plain.body.size());
  EXPECT_NE(header(packed, "ETag"), header(plain, "ETag"));
  EXPECT_EQ(ask("/web/vendor/katex.js", "gzip").status, 200);
  EXPECT_EQ(ask("/web/vendor/katex.js", "").status, 406);
  const HttpResponse font = ask("/web/vendor/KaTeX_Main-Regular.woff2", "gzip");
  EXPECT_EQ(font.content_type, "font/woff2");
  EXPECT_EQ(header(font, "Content-Encoding"), "");
}

}  // namespace
}  // namespace volley::serve
