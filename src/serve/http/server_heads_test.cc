// Protects decisions by a request's head, over real sockets: every spelling of a path meets the same checks, and a
// compressed body is refused by name.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "serve/files/file_store.h"
#include "serve/http/server.h"
#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"
#include "serve/testing/server_helpers.h"

namespace volley::serve {
namespace {

using nlohmann::json;

// One connection for each request.
ClientResponse answer(Server& server, const std::string& request) {
  Client client(server.port());
  client.send(request);
  auto response = client.receive();
  EXPECT_TRUE(response) << request;
  return response;
}

std::string get(const std::string& path, const std::string& fields = "Host: localhost\r\n") {
  return "GET " + path + " HTTP/1.1\r\n" + fields + "\r\n";
}

std::string post(const std::string& path, const std::string& fields, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

const std::string kJson = "Content-Type: application/json\r\n";

constexpr const char* kSpellingsOfModels[] = {
    "/v1/models",     "/v1/models/",  "//v1/models",   "/v1//models//", "/v1/%6dodels",
    "/%76%31/models", "/v1%2Fmodels", "/v1%2fmodels/", "/v1/models%2F", "/v1/models/?x=1",
};

TEST(ServerPaths, EverySpellingFindsThePath) {
  FakeEngine engine;
  const auto server =
      start_server(engine, with(&ServerOptions::served_model_names, {"pocket", "org/alias", "/models/a b"}));
  for (const char* path : kSpellingsOfModels) {
    const auto models = answer(*server, get(path));
    EXPECT_EQ(models.status, 200) << path;
    EXPECT_EQ(json::parse(models.body).at("object"), "list") << path;
  }
  EXPECT_EQ(answer(*server, get("http://localhost/v1/%6Dodels/")).status, 200);
  const std::pair<const char*, const char*> names[] = {
      {"/v1/models/org/alias", "org/alias"},       {"/v1/models/org%2Falias", "org/alias"},
      {"/v1/models/org%2falias/", "org/alias"},    {"/v1/models/%70ocket", "pocket"},
      {"/v1/models//models/a%20b", "/models/a b"}, {"/v1/models/%2Fmodels%2Fa%20b", "/models/a b"}};
  for (const auto& [path, name] : names) {
    const auto model = answer(*server, get(path));
    ASSERT_EQ(model.status, 200) << path;
    EXPECT_EQ(json::parse(model.body).at("id"), name) << path;
  }
  for (const char* path : {"/v1/chat/completions/", "/v1//chat/completions", "/v1/ch%61t/completions"}) {
    const auto chat = answer(*server, post(path, kJson, R"({"messages": [{"role": "user", "content": "x"}]})"));
    EXPECT_EQ(chat.status, 200) << path << chat.body;
  }
  const auto message = answer(*server, post("/v1/m%65ssages/", kJson, "{"));
  EXPECT_EQ(json::parse(message.body).at("type"), "error") << "of Anthropic's form: " << message.body;
}

TEST(ServerPaths, WhatNamesNothingLeadsNowhere) {
  FakeEngine engine;
  const auto server = start_server(engine);
  for (const char* path : {"/v1/../v1/models", "/v1/%2e%2e/v1/models", "/v1/./models", "/web/%2e%2e/metrics",
                           "/web/..%2f..%2fetc%2fpasswd", "/v1/models%00", "/v1/models/%00", "/v1%00/models",
                           "/v1/models/pocket%00", "/v1/%256dodels", "/v1/models%3Fx", "/V1/models", "/v1/models;x",
                           "/v1%5Cmodels", "/v1/responses/%2e%2e", "/v1/models/%ff"}) {
    EXPECT_EQ(answer(*server, get(path)).status, 404) << path;
  }
  for (const char* path : {"/v1/models/%zz", "/v1/%6", "/v1/mod%els", "/%", "/v1/models%2", "/nowhere%g1"}) {
    const auto broken = answer(*server, get(path));
    EXPECT_EQ(broken.status, 400) << path;
    EXPECT_NE(broken.body.find("two hex digits"), std::string::npos) << broken.body;
  }
}

TEST(ServerPaths, ChecksHoldForEverySpelling) {
  FakeEngine engine;
  const auto server = start_server(engine, with(&ServerOptions::api_keys, {"sesame"}));
  for (const char* path : kSpellingsOfModels) {
    EXPECT_EQ(answer(*server, get(path)).status, 401) << path;
    EXPECT_EQ(answer(*server, get(path, "Host: localhost\r\nAuthorization: Bearer sesame\r\n")).status, 200) << path;
    EXPECT_EQ(answer(*server, get(path, "Host: evil.example\r\nAuthorization: Bearer sesame\r\n")).status, 421) << path;
  }
  for (const char* path : {"/tokeniz%65", "/tokenize/", "//tokenize", "/v1%2Fcompletions", "/v1/completions//"}) {
    EXPECT_EQ(answer(*server, post(path, kJson, R"({"prompt": "x"})")).status, 401) << path;
  }
  const std::string metrics = answer(*server, get("/m%65trics/")).body;
  EXPECT_NE(metrics.find("{path=\"/v1/models\",status=\"401\"} 10\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("{path=\"/v1/models\",status=\"200\"} 10\n"), std::string::npos) << metrics;
}

TEST(ServerCodings, ACompressedBodyIsRefusedByName) {
  FakeEngine engine;
  const auto server = start_server(engine);
  const std::string body = R"({"prompt": "x"})";
  for (const std::string coding :
       {"gzip", "zstd", "deflate", "br", "GZIP", "x-gzip", "identity, gzip", "aws-chunked"}) {
    const std::string fields = kJson + "Content-Encoding: " + coding + "\r\n";
    for (const std::string& request : {post(kPath, fields, "\x1f\x8b\x08"), post("/tokenize", fields, body),
                                       "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + fields +
                                           "Transfer-Encoding: chunked\r\n\r\n3\r\n\x1f\x8b\x08\r\n0\r\n\r\n",
                                       "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n" +
                                           fields + "Content-Length: 3\r\n\r\n"}) {
      const auto refused = answer(*server, request);
      EXPECT_EQ(refused.status, 415) << request;
      EXPECT_EQ(refused.headers.at("accept-encoding"), "identity");
      EXPECT_NE(refused.body.find("Content-Encoding: " + coding), std::string::npos) << refused.body;
    }
  }
  const auto message = answer(*server, post("/v1/messages", kJson + "Content-Encoding: gzip\r\n", "\x1f\x8b"));
  EXPECT_EQ(message.status, 415);
  EXPECT_EQ(json::parse(message.body).at("type"), "error");
  const auto two = answer(*server, post(kPath, kJson + "Content-Encoding: identity\r\nContent-Encoding: br\r\n", body));
  EXPECT_EQ(two.status, 415) << "one header of two";
  for (const std::string coding : {"identity", "Identity", "identity, identity", ""}) {
    EXPECT_EQ(answer(*server, post(kPath, kJson + "Content-Encoding: " + coding + "\r\n", body)).status, 200) << coding;
  }
  Client client(server->port());
  ASSERT_TRUE(client.send(post(kPath, kJson + "Content-Encoding: gzip\r\n", body)));
  EXPECT_EQ(client.receive().status, 415);
  EXPECT_EQ(client.post(kPath, kWhole).status, 200) << "a short body is read, and the connection goes on";
}

TEST(ServerCodings, ACompressedUploadIsRefusedByName) {
  FakeEngine engine;
  ServerOptions options = make_options();
  const auto folder = std::filesystem::temp_directory_path() / ("volley_codings_" + std::to_string(getpid()));
  options.file_store = *FileStore::open(folder.string(), {});
  {
    const auto server = start_server(engine, options);
    const std::string form =
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
        "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n{}\r\n--b--\r\n";
    const std::string fields = "Content-Type: multipart/form-data; boundary=b\r\n";
    const auto refused = answer(*server, post("/v1/files", fields + "Content-Encoding: gzip\r\n", form));
    EXPECT_EQ(refused.status, 415) << refused.body;
    EXPECT_EQ(refused.headers.at("accept-encoding"), "identity");
    EXPECT_EQ(answer(*server, post("/v1/files", fields + "Content-Encoding: identity\r\n", form)).status, 200);
  }
  options.file_store.reset();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace volley::serve
