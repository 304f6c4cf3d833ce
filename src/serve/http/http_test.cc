// Protects what clients and proxies parse: response heads, the routing table and the error table.
#include "serve/http/http.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/json/errors.h"
#include "serve/router/router.h"

namespace volley::serve {
namespace {

TEST(ResponseHead, StatesLengthAndConnection) {
  HttpResponse response;
  response.status = 404;
  response.body = "{}";
  response.headers = {{"Retry-After", "1"}};
  Framing framing;
  framing.now = 784111777;
  EXPECT_EQ(response_head(response, framing),
            "HTTP/1.1 404 Not Found\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nServer: volley\r\n"
            "Content-Type: application/json\r\nRetry-After: 1\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n");
}

TEST(ResponseHead, ChunksOnlyForHttp11) {
  Framing framing;
  framing.chunked = true;
  EXPECT_NE(response_head({}, framing).find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_EQ(response_head({}, framing).find("Content-Length"), std::string::npos);
  EXPECT_EQ(body_piece("hello, chunked world", framing), "14\r\nhello, chunked world\r\n");
  EXPECT_EQ(body_end(framing), "0\r\n\r\n");

  framing.http_1_0 = true;
  framing.keep_alive = false;
  EXPECT_EQ(response_head({}, framing).find("chunked"), std::string::npos);
  EXPECT_NE(response_head({}, framing).find("Connection: close"), std::string::npos);
  EXPECT_EQ(body_piece("abc", framing), "abc");
  EXPECT_EQ(body_end(framing), "");
}

TEST(PercentDecode, Table) {
  EXPECT_EQ(percent_decode("plain"), "plain");
  EXPECT_EQ(percent_decode("a%2Fb%2f"), "a/b/");
  EXPECT_EQ(percent_decode("%"), std::nullopt);
  EXPECT_EQ(percent_decode("%2"), std::nullopt);
  EXPECT_EQ(percent_decode("%zz"), std::nullopt);
}

HttpRequest make_request(std::string method, std::string target) {
  return {std::move(method), std::move(target), "", ""};
}

TEST(Router, FindsEndpoints) {
  const std::tuple<const char*, const char*, Endpoint> cases[] = {
      {"POST", "/v1/chat/completions", Endpoint::kChatCompletions},
      {"POST", "/v1/completions?x=1", Endpoint::kCompletions},
      {"GET", "/v1/models", Endpoint::kModels},
      {"POST", "/v1/responses", Endpoint::kResponses},
      {"GET", "/v1/responses/resp_1", Endpoint::kGetResponse},
      {"HEAD", "/v1/responses/resp_1", Endpoint::kGetResponse},
      {"POST", "/v1/files", Endpoint::kUploadFile},
      {"GET", "/v1/files/file-1/content", Endpoint::kFileContent},
      {"POST", "/v1/batches/batch_1/cancel", Endpoint::kCancelBatch},
      {"DELETE", "/v1/responses/resp_1", Endpoint::kDeleteResponse},
      {"GET", "/v1/responses/resp_1/input_items?limit=2", Endpoint::kResponseInput},
      {"POST", "/v1/responses/resp_1/cancel", Endpoint::kCancelResponse},
      {"POST", "/v1/messages", Endpoint::kMessages},
      {"POST", "/v1/messages/count_tokens", Endpoint::kCountMessageTokens},
      {"GET", "/health", Endpoint::kHealth},
      {"HEAD", "/health", Endpoint::kHealth},
      {"GET", "/metrics", Endpoint::kMetrics},
      {"POST", "/tokenize", Endpoint::kTokenize},
      {"GET", "/ready", Endpoint::kReady},
      {"GET", "/", Endpoint::kPage},
      {"GET", "/web/app.js?v=1", Endpoint::kPage},
  };
  for (const auto& [method, target, endpoint] : cases) {
    const auto found = route(make_request(method, target));
    ASSERT_TRUE(std::holds_alternative<Route>(found)) << target;
    EXPECT_EQ(std::get<Route>(found).row->endpoint, endpoint) << target;
  }
  const auto model = route(make_request("GET", "/v1/models/org/name%20x"));
  ASSERT_TRUE(std::holds_alternative<Route>(model));
  EXPECT_EQ(std::get<Route>(model).rest, "org/name x");
  EXPECT_EQ(std::get<Route>(route(make_request("GET", "/v1/responses/resp_1/input_items"))).rest, "resp_1");
}

TEST(Router, RefusesWhatIsNotThere) {
  const std::tuple<const char*, const char*, int> cases[] = {
      {"GET", "/web/", 404},          {"GET", "/v1/chat", 404},          {"POST", "/v1/chat/completions/", 404},
      {"GET", "/v1/models/", 404},    {"GET", "/v1/models/%", 400},      {"GET", "*", 404},
      {"GET", "/v1/responses/", 404}, {"GET", "/v1/responses/a/b", 404}, {"GET", "/v1/responses//input_items", 404},
  };
  for (const auto& [method, target, status] : cases) {
    const auto found = route(make_request(method, target));
    ASSERT_TRUE(std::holds_alternative<HttpResponse>(found)) << target;
    EXPECT_EQ(std::get<HttpResponse>(found).status, status) << target;
  }
}

TEST(Router, WrongMethodNamesTheRightOne) {
  const auto chat = route(make_request("GET", "/v1/chat/completions"));
  ASSERT_TRUE(std::holds_alternative<HttpResponse>(chat));
  EXPECT_EQ(std::get<HttpResponse>(chat).status, 405);
  EXPECT_EQ(std::get<HttpResponse>(chat).headers.back(), (std::pair<std::string, std::string>{"Allow", "POST"}));
  const auto health = route(make_request("DELETE", "/health"));
  EXPECT_EQ(std::get<HttpResponse>(health).headers.back(), (std::pair<std::string, std::string>{"Allow", "GET, HEAD"}));
  const auto response = route(make_request("PUT", "/v1/responses/resp_1"));
  EXPECT_EQ(std::get<HttpResponse>(response).headers.back(),
            (std::pair<std::string, std::string>{"Allow", "GET, HEAD, DELETE"}));
}

// A key protects the model's work and facts; probes' and browsers' first requests are open.
TEST(Router, KnowsWhatNeedsAKey) {
  for (const EndpointRow& row : endpoint_rows()) {
    const bool model_work =
        row.path.starts_with("/v1/") || row.path.ends_with("tokenize") || row.path.ends_with("_info");
    EXPECT_EQ(row.needs_key, model_work) << row.path;
    EXPECT_TRUE(row.needs_engine || !row.needs_key) << row.path;
  }
}

// Probes and scrapes matter most on a busy server, so they must not wait behind prompts and grammars.
TEST(Router, WhatIsOnlyAskedForDoesNotQueueBehindWork) {
  for (const EndpointRow& row : endpoint_rows()) {
    // Waits for the disk, or for a batch's state on its way there, must hold neither I/O threads nor workers.
    const bool files = row.path.starts_with("/v1/files") || row.path.starts_with("/v1/batches");
    const bool disk = files && row.endpoint != Endpoint::kGetFile;
    // A stored response and its input may be as large as a body.
    const bool work = row.method == "POST" || row.path.starts_with("/v1/responses/");
    EXPECT_EQ(row.wait, disk ? Wait::kDisk : work ? Wait::kWork : Wait::kNothing) << row.path;
  }
}

TEST(Router, LabelsAreBounded) {
  EXPECT_EQ(path_label(make_request("GET", "/health?a=b")), "/health");
  EXPECT_EQ(path_label(make_request("GET", "/v1/models/abc")), "/v1/models/");
  EXPECT_EQ(path_label(make_request("DELETE", "/v1/responses/resp_1")), "/v1/responses/*");
  EXPECT_EQ(path_label(make_request("GET", "/../../etc/passwd")), "other");
}

// Clients retry only 429 and 5xx: a lasting failure must not be one of those, a passing one must.
TEST(Errors, EveryCodeHasItsStatus) {
  const std::pair<ErrorCode, int> cases[] = {
      {ErrorCode::kInvalidArgument, 400},   {ErrorCode::kNotFound, 404},      {ErrorCode::kFailedPrecondition, 400},
      {ErrorCode::kResourceExhausted, 429}, {ErrorCode::kUnimplemented, 400}, {ErrorCode::kDataLoss, 500},
      {ErrorCode::kCancelled, 503},         {ErrorCode::kUnavailable, 503},   {ErrorCode::kInternal, 500},
  };
  for (const auto& [code, status] : cases) {
    const HttpResponse response = error_response(api_error({code, "what happened"}));
    EXPECT_EQ(response.status, status) << error_code_name(code);
    const bool retry = status == 429 || status == 503;
    EXPECT_EQ(response.headers.size(), retry ? 1u : 0u) << error_code_name(code);
    EXPECT_EQ(nlohmann::json::parse(response.body).at("error").at("message"), "what happened");
  }
}

TEST(Errors, ObjectHasOpenAisFourFields) {
  const auto json = nlohmann::json::parse(error_json(invalid_field("top_p", "too high")));
  EXPECT_EQ(json, nlohmann::json::parse(R"({"error": {"message": "too high", "type": "invalid_request_error",
                                            "param": "top_p", "code": "invalid_value"}})"));
  const auto bare = nlohmann::json::parse(error_json(invalid_body("broken")));
  EXPECT_TRUE(bare.at("error").at("param").is_null());
  EXPECT_TRUE(bare.at("error").at("code").is_null());
}

TEST(Errors, BrokenUtf8InAMessageDoesNotThrow) {
  EXPECT_NO_THROW(error_json(invalid_body("cut \xE2\x82")));
}

}  // namespace
}  // namespace volley::serve
