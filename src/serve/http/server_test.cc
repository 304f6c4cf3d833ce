// Protects the transport over real sockets: streaming, disconnects, slow readers, limits, odd bytes.
#include "serve/http/server.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"
#include "serve/testing/server_helpers.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

TEST(Server, AnswersOnOneConnectionAgainAndAgain) {
  FakeEngine engine;
  const auto server = start_server(engine);
  Client client(server->port());
  for (int i = 0; i < 5; ++i) {
    const auto health = client.get("/health");
    EXPECT_EQ(health.status, 200);
    EXPECT_EQ(health.headers.at("connection"), "keep-alive");
    const auto whole = client.post(kPath, kWhole);
    EXPECT_EQ(json::parse(whole.body).at("choices").at(0).at("text"), "Hello world");
    const auto stream = client.post(kPath, kStream);
    EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream; charset=utf-8");
    EXPECT_EQ(streamed_text(stream.body), "Hello world|done");
  }
  for (const GenerateRequest& asked : engine.submitted()) EXPECT_EQ(asked.tenant, "127.0.0.1") << "who shares";
  const auto metrics = client.get("/metrics");
  EXPECT_NE(metrics.body.find("volley:http_requests_total{path=\"/v1/completions\",status=\"200\"} 10"),
            std::string::npos);
}

TEST(Server, ADisconnectCancelsTheRequest) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(); }, 1ms);
  const auto server = start_server(engine);
  open_stream(server->port());  // its text comes before the request ends
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 1; }));
  {
    Client waiting(server->port());
    ASSERT_TRUE(waiting.send(Client::post_text(kPath, R"({"prompt": "x", "n": 3})")));
    ASSERT_TRUE(eventually([&] { return engine.running() == 3; }));
  }
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 4; }))
      << "a client that waits for the whole answer counts too";
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
}

// An answer whose last byte was written is delivered, whatever the client does next.
TEST(Server, AClientThatLeavesWithItsAnswerHadIt) {
  constexpr int kAnswers = 500;
  std::ostringstream log;
  FakeEngine engine({}, 0us);
  ServerOptions options = make_options();
  options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log));
  options.log->set_pattern("%v");
  options.log_format = LogFormat::kJson;
  {
    const auto server = start_server(engine, options);
    for (int i = 0; i < kAnswers; ++i) {
      Client client(server->port());
      ASSERT_TRUE(client.send(Client::post_text(kPath, i % 2 == 0 ? kStream : kWhole)));
      ASSERT_TRUE(client.wait_for(i % 2 == 0 ? "[DONE]\n\n\r\n0\r\n\r\n" : "completion_tokens")) << i;
    }
  }
  int records = 0;
  std::istringstream lines(log.str());
  for (std::string line; std::getline(lines, line);) {
    const json record = json::parse(line);
    if (record.at("event") != "request") continue;
    ++records;
    EXPECT_EQ(record.at("delivered"), true) << line;
    EXPECT_EQ(record.value("completion_tokens", 0), 11) << line;
  }
  EXPECT_EQ(records, kAnswers);
}

TEST(Server, ASlowReaderIsBoundedAndCancelled) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(std::string(2000, 'w')); }, 50us);
  const auto server = start_server(engine, with(&ServerOptions::write_timeout, 300ms));
  Client client(server->port(), 4096);
  ASSERT_TRUE(client.send(Client::post_text(kPath, kStream)));
  // The client does not read. The kernel's buffers fill, then the mailbox, which holds more than they do, so the write
  // that empties it must time out.
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 1; }));
  Client observer(server->port());
  EXPECT_TRUE(eventually([&] {
    const auto metrics = observer.get("/metrics");
    return metrics && metrics.body.find("\nvolley:http_connections 1\n") != std::string::npos;
  })) << "a client that takes nothing is cut off";
  EXPECT_TRUE(client.wait_for_close());
}

TEST(Server, AReaderThatCatchesUpLearnsWhy) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(std::string(2000, 'w')); }, 50us);
  const auto server = start_server(engine);
  Client client(server->port(), 4096);
  ASSERT_TRUE(client.send(Client::post_text(kPath, kStream)));
  ASSERT_TRUE(eventually([&] { return engine.cancelled() == 1; }));
  const auto response = client.receive();
  EXPECT_TRUE(streamed_text(response.body).ends_with("|error"));
  EXPECT_NE(response.body.find("too slowly"), std::string::npos);
}

TEST(Server, PipelinedRequestsAreAnsweredInOrder) {
  FakeEngine engine;
  const auto server = start_server(engine);
  Client client(server->port());
  ASSERT_TRUE(client.send(Client::post_text(kPath, kStream) + Client::get_text("/health") +
                          Client::post_text(kPath, kWhole) + Client::get_text("/nope")));
  const auto stream = client.receive();
  const auto health = client.receive();
  const auto whole = client.receive();
  const auto nope = client.receive();
  EXPECT_EQ(streamed_text(stream.body), "Hello world|done");
  EXPECT_EQ(health.body, R"({"status":"ok"})");
  EXPECT_EQ(json::parse(whole.body).at("object"), "text_completion");
  EXPECT_EQ(nope.status, 404);
}

TEST(Server, ARequestSentDuringAStreamIsAnsweredAfterIt) {
  FakeEngine engine({}, 20ms);
  const auto server = start_server(engine);
  Client client(server->port());
  ASSERT_TRUE(client.send(Client::post_text(kPath, kStream)));
  ASSERT_TRUE(client.wait_for("Hello"));
  ASSERT_TRUE(client.send(Client::get_text("/health")));
  const auto stream = client.receive();
  const auto health = client.receive();
  EXPECT_EQ(streamed_text(stream.body), "Hello world|done");
  EXPECT_EQ(health.status, 200);
}

// An answer's end and the next request race; in either order, both must be handled.
TEST(Server, RequestsThatArriveWhileAnAnswerEnds) {
  constexpr int kRequests = 300;
  FakeEngine engine({}, 20us);
  const auto server = start_server(engine);
  Client client(server->port());
  ASSERT_TRUE(client.send(Client::post_text(kPath, kStream)));
  for (int i = 0; i < kRequests; ++i) {
    if (i % 3 == 0) {
      ASSERT_TRUE(client.wait_for("[DONE]"));
    }
    ASSERT_TRUE(client.send(Client::post_text(kPath, kStream)));
    const auto response = client.receive();
    ASSERT_EQ(streamed_text(response.body), "Hello world|done") << "request " << i;
  }
}

TEST(Server, MethodsPathsAndHead) {
  FakeEngine engine;
  const auto server = start_server(engine);
  Client client(server->port());
  const auto wrong = client.get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  ASSERT_TRUE(client.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  const auto head = client.receive(true);
  EXPECT_EQ(head.headers.at("content-length"), "15");
  EXPECT_EQ(client.get("/health").status, 200) << "HEAD must not send a body";
}

TEST(Server, Http10EndsTheStreamByClosing) {
  FakeEngine engine;
  const auto server = start_server(engine);
  Client client(server->port());
  ASSERT_TRUE(client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(kStream.size()) +
                          "\r\n\r\n" + kStream));
  const auto response = client.receive();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_EQ(streamed_text(response.body), "Hello world|done");
}

TEST(Server, GarbageGetsA400AndTheServerLives) {
  FakeEngine engine;
  const auto server = start_server(engine);
  const std::string cases[] = {
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(300, '\xAA'),  // a TLS hello
      "hello\r\n\r\n",
      "GET /health HTTP/9.9\r\n\r\n",
      "GET /health HTTP/1.1\r\nHost: localhost\r\nbroken header\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
  };
  for (const std::string& bytes : cases) {
    Client client(server->port());
    ASSERT_TRUE(client.send(bytes));
    const auto response = client.receive();
    EXPECT_EQ(response.status, 400) << bytes;
    EXPECT_EQ(json::parse(response.body).at("error").at("type"), "invalid_request_error");
    EXPECT_TRUE(client.wait_for_close());
  }
  EXPECT_EQ(Client(server->port()).get("/health").status, 200);
}

TEST(Server, OversizeHeadersAndBodies) {
  FakeEngine engine;
  const auto server = start_server(engine, with(&ServerOptions::max_body_bytes, 100'000));
  {
    Client client(server->port());
    client.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + std::string(40'000, 'x') + "\r\n\r\n");
    EXPECT_EQ(client.receive().status, 431);
  }
  {
    // Announced but not sent: its length alone gets it refused.
    Client client(server->port());
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n");
    EXPECT_EQ(client.receive().status, 413);
  }
  {
    // Not announced: refused at the limit, and the answer survives further bytes from the client.
    Client client(server->port());
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5f5e100\r\n");
    for (int i = 0; i < 30; ++i) client.send(std::string(10'000, 'x'));
    EXPECT_EQ(client.receive().status, 413);
  }
  {
    Client client(server->port());
    const auto response = client.post(kPath, "{\"prompt\": \"" + std::string(90'000, 'x') + "\"}");
    EXPECT_EQ(json::parse(response.body).at("error").at("code"), "context_length_exceeded");
  }
  EXPECT_TRUE(engine.submitted().empty());
}

TEST(Server, ExpectContinue) {
  FakeEngine engine;
  const auto server = start_server(engine);
  Client client(server->port());
  ASSERT_TRUE(
      client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: " +
                  std::to_string(kWhole.size()) + "\r\n\r\n"));
  EXPECT_EQ(client.receive().status, 100);
  ASSERT_TRUE(client.send(kWhole));
  EXPECT_EQ(client.receive().status, 200);
}

// A body without a key is not kept in memory: the answer comes before it, instead of "100 Continue".
TEST(Server, WhoIsNotLetInSendsNoBody) {
  FakeEngine engine;
  const auto server = start_server(engine, with(&ServerOptions::api_keys, {"sesame"}));
  const auto ask = [&](const std::string& path, const std::string& head,
                       const std::string& method = "POST ") -> ClientResponse {
    Client client(server->port());
    client.send(method + path +
                " HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\nContent-Type: application/json\r\n" + head +
                "\r\n");
    auto response = client.receive();
    if (response && response.status != 100) {
      client.send(std::string(1'000'000, ' '));  // the client's further bytes are ignored, and do no harm
      EXPECT_TRUE(client.wait_for_close()) << path << head;
      EXPECT_EQ(response.headers.at("connection"), "close");
      EXPECT_EQ(response.headers.at("x-request-id"), "mine");
    }
    return response;
  };
  const std::string bodies[] = {"Content-Length: 5000000\r\n", "Transfer-Encoding: chunked\r\n",
                                "Content-Length: 10\r\nExpect: 100-continue\r\n"};
  for (const std::string& body : bodies) {
    for (const std::string key : {"", "Authorization: Bearer open\r\n"}) {
      const auto response = ask(kPath, key + body);
      EXPECT_EQ(response.status, 401) << body;
    }
    EXPECT_EQ(ask("/health", body).status, 405) << body;
    EXPECT_EQ(ask("/nowhere", body).status, 404) << body;
  }
  EXPECT_EQ(ask("/health", bodies[0], "GET ").status, 413) << "it has no use for a body";
  EXPECT_EQ(ask("/health", bodies[1], "GET ").status, 413);
  EXPECT_EQ(ask(kPath, "Authorization: Bearer sesame\r\n" + bodies[2]).status, 100);
  Client client(server->port());
  EXPECT_EQ(client.post(kPath, kWhole).status, 401);
  EXPECT_EQ(client.get("/health").status, 200) << "a short body costs nothing, and the connection goes on";
}

TEST(Server, ARequestThatNeverEndsTimesOut) {
  FakeEngine engine;
  ServerOptions options = make_options();
  options.receive_timeout = 100ms;
  const auto server = start_server(engine, options);
  Client half(server->port());
  ASSERT_TRUE(half.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"));
  EXPECT_EQ(half.receive().status, 408);
  EXPECT_TRUE(half.wait_for_close());
  options.idle_timeout = 100ms;
  const auto impatient = start_server(engine, options);
  Client silent(impatient->port());
  EXPECT_TRUE(silent.wait_for_close()) << "an idle connection is closed";
}

// For a request refused before it has fully arrived, the known part is in the answer, the log and the metrics.
TEST(Server, ARefusalKeepsTheHead) {
  FakeEngine engine;
  ServerOptions options = make_options();
  options.receive_timeout = 100ms;
  options.cors_origins = {"https://page.example"};
  const auto server = start_server(engine, options);
  for (const auto& [length, status, type] : {std::tuple{"Content-Length: 1000000000", 413, "request_too_large"},
                                             std::tuple{"Content-Length: 50", 408, "invalid_request_error"}}) {
    Client client(server->port());
    client.send(std::string("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nOrigin: https://page.example\r\n") +
                "X-Request-Id: mine\r\nContent-Type: application/json\r\n" + length + "\r\n\r\n{");
    const auto response = client.receive();
    EXPECT_EQ(response.status, status);
    EXPECT_EQ(response.headers.at("x-request-id"), "mine");
    EXPECT_EQ(response.headers.at("access-control-allow-origin"), "https://page.example");
    EXPECT_EQ(json::parse(response.body).at("type"), "error") << "as Anthropic's clients read it";
    EXPECT_EQ(json::parse(response.body).at("error").at("type"), type);
    EXPECT_TRUE(client.wait_for_close());
  }
  const std::string metrics = Client(server->port()).get("/metrics").body;
  for (const char* code : {"408", "413"}) {
    EXPECT_NE(metrics.find(std::string("path=\"/v1/messages\",status=\"") + code), std::string::npos) << metrics;
  }
}

TEST(Server, TooManyConnections) {
  FakeEngine engine;
  const auto server = start_server(engine, with(&ServerOptions::max_connections, 2));
  auto first = std::make_unique<Client>(server->port());
  Client second(server->port());
  ASSERT_EQ(first->get("/health").status, 200);
  ASSERT_EQ(second.get("/health").status, 200);
  Client third(server->port());
  EXPECT_EQ(third.receive().status, 503);
  first.reset();
  EXPECT_TRUE(eventually([&] {
    const auto response = Client(server->port()).get("/health");
    return response.status == 200;
  })) << "a closed connection makes room";
}

TEST(Server, FiftyStreamsAtOnce) {
  constexpr int kStreams = 50;
  constexpr int kPieces = 40;
  FakeEngine engine([](const GenerateRequest& request) {
    return FakeScript{.pieces =
                          std::vector<std::string>(kPieces, std::string(1, static_cast<char>(request.prompt.back())))};
  });
  const auto server = start_server(engine);
  std::atomic<int> good{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&, i] {
      const char letter = static_cast<char>('A' + i % 26);
      Client client(server->port());
      const auto response = client.post(kPath, std::string(R"({"stream": true, "prompt": ")") + letter + "\"}");
      if (response && streamed_text(response.body) == std::string(kPieces, letter) + "|done") ++good;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, kStreams);
  EXPECT_EQ(engine.running(), 0);
}

TEST(Server, ListensBeforeTheEngineIsThere) {
  auto server = Server::start(make_options()).value();
  Client client(server->port());
  EXPECT_EQ(client.get("/version").status, 200);
  EXPECT_EQ(client.get("/health").status, 503) << "healthy is who can be asked";
  const auto early = client.get("/ready");
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(early.headers.at("retry-after"), "1");
  EXPECT_EQ(client.post(kPath, kWhole).status, 503);
  FakeEngine engine;
  ASSERT_TRUE(server->attach(engine).ok());
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(client.get("/ready").status, 200);
  EXPECT_EQ(client.post(kPath, kWhole).status, 200);
  server.reset();  // before the engine, as declared
}

TEST(Server, ARequestThatTakesTooLongEndsAndTheConnectionLivesOn) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(); }, 1ms);
  // The stream begins before the limit.
  const auto server = start_server(engine, with(&ServerOptions::request_timeout, 2s));
  Client client(server->port());
  const auto whole = client.post(kPath, kWhole);
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(json::parse(whole.body).at("error").at("code"), "timeout");
  const auto stream = client.post(kPath, kStream);
  EXPECT_TRUE(streamed_text(stream.body).ends_with("|error"));
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 2 && engine.running() == 0; }));
  EXPECT_EQ(client.get("/health").status, 200);
}

// Every answer names its request, and pages of allowed origins may read all of them.
TEST(Server, HeadersOfEveryAnswer) {
  FakeEngine engine;
  ServerOptions options = make_options();
  options.api_keys = {"sesame"};
  options.cors_origins = {"https://page.example"};
  const auto server = start_server(engine, options);
  Client client(server->port());
  const auto ask = [&](const std::string& head, const std::string& body) {
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\nOrigin: https://page.example\r\n" +
        head + "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.receive();
  };
  const std::string key = "Authorization: Bearer sesame\r\n";
  const std::pair<ClientResponse, int> answers[] = {
      {ask("", kWhole), 401}, {ask(key, kWhole), 200}, {ask(key, kStream), 200}, {ask(key, "{"), 400}};
  for (const auto& [answer, status] : answers) {
    EXPECT_EQ(answer.status, status);
    EXPECT_EQ(answer.headers.at("x-request-id"), "mine");
    EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://page.example");
  }
  client.send(
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://page.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n");
  const auto preflight = client.receive(true);
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "authorization");
  EXPECT_EQ(client.get("/health").status, 200) << "204 has no body";
}

}  // namespace
}  // namespace volley::serve
