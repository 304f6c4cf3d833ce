// Protects the bytes of an answer and its log record: headers on every answer, no body for HEAD, when a connection
// lives on.
#include "serve/exchange.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <nlohmann/json.hpp>
#include <sstream>

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

}  // namespace
}  // namespace volley::serve
