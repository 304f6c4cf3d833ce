// Protects an answer's bytes and its log record: common headers, no body for HEAD, and when a connection lives on.
#include "serve/http/exchange.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "serve/json/json_text.h"
#include "serve/testing/server_helpers.h"

namespace volley::serve {
namespace {

using nlohmann::json;

class ExchangeTest : public ::testing::Test {
 protected:
  ExchangeTest() {
    ServerOptions options = make_options();
    options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_));
    options.log->set_pattern("%v");
    options.log_format = LogFormat::kJson;
    api_ = std::make_unique<Api>(options);
  }
  static HttpRequest request(std::string method, std::string id = "") {
    HttpRequest result{std::move(method), "/v1/completions", "", "body"};
    result.request_id = std::move(id);
    return result;
  }

  std::ostringstream log_;
  std::unique_ptr<Api> api_;
};

TEST_F(ExchangeTest, EveryAnswerCarriesTheRequestsId) {
  Exchange named(*api_, request("POST", "mine-1"), false, true);
  EXPECT_NE(named.whole({}, false).find("X-Request-Id: mine-1\r\n"), std::string::npos);
  Exchange odd(*api_, request("POST", "two words"), false, true);
  EXPECT_NE(odd.whole({}, false).find("X-Request-Id: req-"), std::string::npos);
  Exchange unreadable(*api_);
  EXPECT_NE(unreadable.whole({}, false).find("X-Request-Id: req-"), std::string::npos);
  EXPECT_FALSE(unreadable.reusable());
}

TEST_F(ExchangeTest, StreamsHaveOneHead) {
  Exchange exchange(*api_, request("POST"), false, true);
  EXPECT_EQ(exchange.piece({}, false), "") << "no news, no bytes";
  const std::string first = exchange.piece({std::nullopt, "data: a\n\n", false}, false);
  EXPECT_TRUE(first.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(first.ends_with("\r\n\r\n9\r\ndata: a\n\n\r\n"));
  EXPECT_EQ(exchange.piece({std::nullopt, "", true}, false), "0\r\n\r\n");
  EXPECT_TRUE(exchange.reusable());
}

TEST_F(ExchangeTest, SaysWhetherTheConnectionLivesOn) {
  const auto reusable = [&](bool http_1_0, bool keep_alive, bool stream, bool draining) {
    Exchange exchange(*api_, request("POST"), http_1_0, keep_alive);
    if (stream) {
      exchange.piece({std::nullopt, "x", true}, draining);
    } else {
      exchange.whole({}, draining);
    }
    return exchange.reusable();
  };
  EXPECT_TRUE(reusable(false, true, false, false));
  EXPECT_TRUE(reusable(true, true, false, false));
  EXPECT_FALSE(reusable(true, true, true, false)) << "HTTP/1.0 ends a stream by closing";
  EXPECT_FALSE(reusable(false, false, false, false));
  EXPECT_FALSE(reusable(false, true, true, true)) << "a draining server takes no further request";
}

TEST_F(ExchangeTest, HeadHasNoBody) {
  Exchange exchange(*api_, request("HEAD"), false, true);
  HttpResponse response;
  response.body = "12345";
  const std::string bytes = exchange.whole(response, false);
  EXPECT_NE(bytes.find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_TRUE(bytes.ends_with("\r\n\r\n"));
}

TEST_F(ExchangeTest, LogsWhatBecameOfIt) {
  Exchange exchange(*api_, request("POST", "id-1"), false, true);
  HttpResponse response;
  response.status = 429;
  exchange.whole(response, false);
  exchange.end(false, nullptr);
  const json record = json::parse(log_.str());
  EXPECT_EQ(record.at("event"), "request");
  EXPECT_EQ(record.at("level"), "info");
  EXPECT_EQ(record.at("request_id"), "id-1");
  EXPECT_EQ(record.at("method"), "POST");
  EXPECT_EQ(record.at("path"), "/v1/completions");
  EXPECT_EQ(record.at("status"), 429);
  EXPECT_EQ(record.at("delivered"), false);
  EXPECT_GE(record.at("seconds").get<double>(), 0);
}

// The log says why a request failed, in a line of bounded length and without a prompt.
TEST_F(ExchangeTest, LogsWhyARequestFailed) {
  const auto record_of = [&](const ApiError& error, const std::string& method = "POST") {
    log_.str("");
    Exchange exchange(*api_, request(method), false, true);
    exchange.whole(error_response(error), false);
    exchange.end(true, nullptr);
    return json::parse(log_.str());
  };
  const json missing = record_of(model_not_found("gpt-9"));
  EXPECT_EQ(missing.at("error"), "model_not_found");
  EXPECT_TRUE(missing.at("reason").get<std::string>().starts_with("The model \"gpt-9\" is not served here."));
  EXPECT_EQ(record_of(invalid_body("broken")).at("error"), "invalid_request_error");
  const json long_one = record_of(invalid_body(std::string(10'000, 'x') + "\x1b[2J"), std::string(10'000, 'M'));
  EXPECT_LT(long_one.at("reason").get<std::string>().size(), 400u);
  EXPECT_LT(long_one.at("method").get<std::string>().size(), 50u);
  EXPECT_EQ(record_of(invalid_body("a\r\n\x1b[2Jb")).at("reason"), "a\\x0D\\x0A\\x1B[2Jb");
  const ApiError quoting[] = {std::get<ApiError>(parse_json("{\"prompt\": \"the secret")),
                              invalid_field("messages", "\"messages\" must be a list, not \"the secret\"."),
                              invalid_field("prompt", "\"prompt\" holds \"the secret\", but token ids are numbers.")};
  for (const ApiError& error : quoting) {
    const std::string reason = record_of(error).at("reason");
    EXPECT_EQ(reason.find("secret"), std::string::npos) << reason;
    EXPECT_GT(reason.size(), 9u);
  }
  Exchange good(*api_, request("POST"), false, true);
  log_.str("");
  good.whole({}, false);
  good.end(true, nullptr);
  EXPECT_FALSE(json::parse(log_.str()).contains("reason"));
}

// This includes that API's paths which this server lacks, because its clients read no other errors.
TEST_F(ExchangeTest, ErrorsHaveTheFormOfTheirApi) {
  const auto body_of = [&](const std::string& target) {
    HttpRequest asked = request("POST", "id-1");
    asked.target = target;
    Exchange exchange(*api_, std::move(asked), false, true);
    const std::string bytes = exchange.whole(error_response(http_error(404, "There is no such path.")), false);
    EXPECT_EQ(bytes.find("\r\nRequest-Id: id-1\r\n") != std::string::npos, target.starts_with("/v1/messages"))
        << target;
    return json::parse(bytes.substr(bytes.find("\r\n\r\n")));
  };
  for (const char* target : {"/v1/messages", "/v1/messages?beta=true", "/v1/messages/batches",
                             "/v1/messages/batches/b/results", "/v1/messages/batches?limit=1"}) {
    const json body = body_of(target);
    EXPECT_EQ(body.at("type"), "error") << target;
    EXPECT_EQ(body.at("error").at("type"), "not_found_error") << target;
    EXPECT_EQ(body.at("request_id"), "id-1") << target;
  }
  for (const char* target : {"/v1/chat/completions", "/v1/message", "/x?/v1/messages/"}) {
    EXPECT_FALSE(body_of(target).contains("type")) << target;
  }
}

TEST_F(ExchangeTest, TextLinesHoldNothingThatSteersATerminal) {
  ServerOptions options = make_options();
  options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_));
  options.log->set_pattern("%v");
  Api api(options);
  Exchange exchange(api, request(std::string(10'000, 'M'), "id-1"), false, true);
  exchange.whole(error_response(invalid_body("a\nb\x1b[2J")), false);
  exchange.end(true, nullptr);
  api.log().warn(std::string(100'000, 'x') + "\n");
  Exchange hidden(api, request("P\u202eST", "id-2"), false, true);
  hidden.whole(error_response(model_not_found("\x7f\u009b31m\u2066\u2028\u200b")), false);
  hidden.end(true, nullptr);
  const std::string text = log_.str();
  for (const char* part : {"\u202e", "\x7f", "\u009b", "\u2066", "\u2028", "\u200b"}) {
    EXPECT_EQ(text.find(part), std::string::npos) << text;
  }
  EXPECT_NE(text.find("P\\xE2\\x80\\xAEST"), std::string::npos) << text;
  EXPECT_NE(text.find(" 400 "), std::string::npos);
  EXPECT_NE(text.find(" error=invalid_request_error reason=\"a\\x0Ab\\x1B[2J\"\n"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_LT(text.size(), 5000u);
}

}  // namespace
}  // namespace volley::serve
