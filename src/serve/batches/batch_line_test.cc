// Protects the form of a batch line, and its result in OpenAI's format.
#include "serve/batches/batch_line.h"

#include <gtest/gtest.h>

#include <limits>

#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

using Json = nlohmann::json;

constexpr const char* kLine =
    R"({"custom_id": "r1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "seed": 1e2 }})";

LineError error_of(std::string_view line) {
  const auto request = read_batch_request(line);
  const auto* error = std::get_if<LineError>(&request);
  return error ? *error : LineError{};
}

TEST(BatchLine, TheBodyIsTakenByteForByte) {
  EXPECT_EQ(read_custom_id(kLine).value(), "r1");
  const auto request = read_batch_request(kLine);
  ASSERT_TRUE(std::holds_alternative<HttpRequest>(request));
  EXPECT_EQ(std::get<HttpRequest>(request).target, "/v1/completions");
  EXPECT_EQ(std::get<HttpRequest>(request).body, R"({"prompt": "x", "seed": 1e2 })");
}

TEST(BatchLine, ALineWithoutAnIdIsRefused) {
  for (const char* line : {"", "{", "[1]", "{}", R"({"custom_id": 7})", R"({"custom_id": ""})", "\xff"}) {
    EXPECT_FALSE(read_custom_id(line).ok()) << line;
  }
  EXPECT_EQ(read_custom_id("{").error().message.find("The line"), 0u) << read_custom_id("{").error().message;
}

TEST(BatchLine, WhatIsNoRequestSaysWhy) {
  EXPECT_EQ(error_of(R"({"method": "GET", "url": "/v1/completions", "body": {}})").code, "invalid_line");
  EXPECT_EQ(error_of(R"({"method": "POST", "url": "/v1/embeddings", "body": {}})").code, "unsupported_url");
  EXPECT_EQ(error_of(R"({"method": "POST", "url": "/v1/completions"})").code, "invalid_line");
  EXPECT_EQ(error_of(R"({"method": "POST", "url": "/v1/completions", "body": {"stream": true}})").code,
            "unsupported_parameter");
  EXPECT_EQ(error_of(R"({"method": "POST", "url": "/v1/completions", "body": {"stream": false}})").code, "");
}

TEST(BatchLine, ResultsAreOneLineEach) {
  HttpResponse response;
  response.body = "{\n\"text\": \"a\\nb\"}";
  const std::string answered = response_line("b-1", "r\"1", response);
  EXPECT_EQ(answered.find('\n'), std::string::npos);
  const Json json = Json::parse(answered);
  EXPECT_EQ(json["id"], "b-1");
  EXPECT_EQ(json["custom_id"], "r\"1");
  EXPECT_EQ(json["response"]["status_code"], 200);
  EXPECT_EQ(json["response"]["request_id"], "b-1");
  EXPECT_EQ(json["response"]["body"]["text"], "a\nb");
  EXPECT_TRUE(json["error"].is_null());
  EXPECT_FALSE(is_failure(answered));

  response.status = 400;
  EXPECT_TRUE(is_failure(response_line("b-1", "r1", response)));
  const std::string failed = error_line("b-2", "r2", {"invalid_line", "Why."});
  EXPECT_TRUE(is_failure(failed));
  EXPECT_TRUE(Json::parse(failed)["response"].is_null());
  EXPECT_EQ(Json::parse(failed)["error"], (Json{{"code", "invalid_line"}, {"message", "Why."}}));
}

// Holds for any priorities of the lines.
TEST(BatchLine, ComesBehindAllElse) {
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();
  int32_t before = kLeast;
  for (const bool is_batch_line : {false, true}) {
    for (const int32_t stated : {kLeast, -5, 0, 5, kMost}) {
      EXPECT_GE(queue_priority(stated, is_batch_line), before) << stated;
      before = queue_priority(stated, is_batch_line);
    }
  }
  EXPECT_GT(queue_priority(kLeast, true), queue_priority(kMost, false));
  EXPECT_GT(queue_priority(5, true), queue_priority(0, true));
  EXPECT_EQ(queue_priority(-5, false), -5);
}

}  // namespace
}  // namespace volley::serve
