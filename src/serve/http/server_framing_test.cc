// Protects the borders between requests, over real sockets, and the memory of bodies.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/sanitized.h"
#include "serve/http/server.h"
#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"
#include "serve/testing/server_helpers.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

const std::string kSmuggled = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";

std::string post_head(const std::string& fields) {
  return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + fields + "\r\n";
}

ClientResponse post_with_key(Server& server, const std::string& key, const std::string& json) {
  Client client(server.port());
  const std::string length = "Content-Length: " + std::to_string(json.size()) + "\r\n";
  if (!client.send(post_head("Authorization: Bearer " + key + "\r\n" + length) + json)) return {};
  return client.receive();
}

// The one answer to these bytes, after which the connection ends.
ClientResponse only_answer(Server& server, const std::string& bytes) {
  Client client(server.port());
  client.send(bytes);
  auto response = client.receive();
  EXPECT_FALSE(client.receive()) << "a body was read as a request: " << bytes;
  EXPECT_TRUE(client.wait_for_close());
  return response;
}

// A proxy that reads the framing differently would pass the second request on as part of the first one's body.
TEST(ServerFraming, ABodyIsNeverReadAsARequest) {
  FakeEngine engine;
  const auto server = start_server(engine);
  const std::string length = "Content-Length: " + std::to_string(kSmuggled.size()) + "\r\n";
  const std::pair<std::string, int> cases[] = {
      {post_head("Transfer-Encoding: identity\r\n") + kSmuggled, 501},
      {post_head("Transfer-Encoding: chunked, identity\r\n") + kSmuggled, 501},
      {post_head("Transfer-Encoding: xchunked\r\n") + kSmuggled, 501},
      {post_head("Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n" + kSmuggled, 501},
      {post_head("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n" + kSmuggled, 501},
      {post_head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n" + kSmuggled, 400},
      {post_head("Transfer-Encoding: identity\r\n" + length) + kSmuggled, 400},
      {post_head("Transfer-Encoding: chunked\r\n" + length) + "0\r\n\r\n" + kSmuggled, 400},
      {post_head(length + "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n" + kSmuggled, 400},
      {post_head("Content-Length: 0\r\n" + length) + kSmuggled, 400},
      {post_head("Content-Length: 0, 5\r\n") + kSmuggled, 400},
      {post_head("Content-Length: +5\r\n") + kSmuggled, 400},
      {"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n" +
           kSmuggled,
       400},
  };
  for (const auto& [bytes, status] : cases) {
    const auto response = only_answer(*server, bytes);
    EXPECT_EQ(response.status, status) << bytes;
    EXPECT_EQ(response.headers.at("connection"), "close");
    EXPECT_EQ(json::parse(response.body).at("error").at("type"),
              status == 400 ? "invalid_request_error" : "server_error");
  }
  Client observer(server->port());
  EXPECT_EQ(observer.get("/metrics").body.find("status=\"404\""), std::string::npos);
}

TEST(ServerFraming, ARequestNamesOneHost) {
  FakeEngine engine;
  const auto server = start_server(engine);
  for (const std::string hosts : {"", "Host: localhost\r\nHost: localhost\r\n", "Host: localhost, a\r\n"}) {
    EXPECT_EQ(only_answer(*server, "GET /health HTTP/1.1\r\n" + hosts + "\r\n").status, 400) << hosts;
  }
  EXPECT_EQ(only_answer(*server, "GET /health HTTP/1.0\r\n\r\n").status, 200);
}

TEST(ServerFraming, WhatProxiesAndOldClientsSendIsAnswered) {
  FakeEngine engine;
  const auto server = start_server(engine);
  Client client(server->port());
  const std::string requests[] = {
      "GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "\r\n" + Client::get_text("/health"),
      Client::post_text(kPath, kWhole) + "\r\n",  // an empty line behind a body comes before the next request
      Client::get_text("/health"),
  };
  for (const std::string& request : requests) {
    ASSERT_TRUE(client.send(request));
    const auto response = client.receive();
    EXPECT_EQ(response.status, 200) << request;
    EXPECT_EQ(response.headers.at("connection"), "keep-alive") << request;
  }
  ASSERT_TRUE(client.send("\r"));  // the line's halves may come apart
  ASSERT_TRUE(client.send("\n" + Client::get_text("/health")));
  EXPECT_EQ(client.receive().status, 200);
}

// A page whose name points to 127.0.0.1 cannot act for this machine's user.
TEST(ServerFraming, ALoopbackServerAnswersForThisMachineAlone) {
  FakeEngine engine;
  const auto server = start_server(engine);
  const auto status_of = [](const Server& asked, const std::string& request) {
    Client client(asked.port());
    client.send(request);
    const auto response = client.receive();
    return response ? response.status : 0;
  };
  const auto get = [](const std::string& host) { return "GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n\r\n"; };
  EXPECT_EQ(status_of(*server, get("localhost:8000")), 200);
  EXPECT_EQ(status_of(*server, get("127.0.0.1")), 200);
  EXPECT_EQ(status_of(*server, get("evil.example")), 421);
  EXPECT_EQ(status_of(*server, "GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"), 421)
      << "the request line's host counts";
  const auto refused = only_answer(*server, get("evil.example"));
  EXPECT_EQ(json::parse(refused.body).at("error").at("code"), "host_not_allowed");

  ServerOptions options = make_options();
  options.allowed_hosts = {"llm.example"};
  EXPECT_EQ(status_of(*start_server(engine, options), get("llm.example")), 200);
  ServerOptions everywhere = make_options();
  everywhere.host = "0.0.0.0";
  EXPECT_EQ(status_of(*start_server(engine, everywhere), get("llm.example")), 200);
}

// A client that ends its sending side may still be reading.
TEST(ServerFraming, AClientThatOnlyEndedItsSideGetsItsAnswer) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = std::vector<std::string>(30, "x")}; },
                    2ms);
  const auto server = start_server(engine);
  const auto answer_after_end = [&](const std::string& request) {
    Client client(server->port());
    client.send(request);
    client.send_end();
    auto response = client.receive();
    while (response && response.status == 100) response = client.receive();
    EXPECT_TRUE(response) << request;
    EXPECT_TRUE(client.wait_for_close());
    return response;
  };
  EXPECT_EQ(answer_after_end(Client::get_text("/health")).status, 200);
  EXPECT_EQ(json::parse(answer_after_end(Client::post_text(kPath, kWhole)).body).at("choices").at(0).at("text"),
            std::string(30, 'x'));
  EXPECT_EQ(streamed_text(answer_after_end(Client::post_text(kPath, kStream)).body), std::string(30, 'x') + "|done");
  const std::string old = "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
                          std::to_string(kWhole.size()) + "\r\n\r\n" + kWhole;
  EXPECT_EQ(answer_after_end(old).status, 200);
  EXPECT_EQ(engine.cancelled(), 0);
}

ServerOptions with_room_for(size_t body_bytes, size_t total_bytes) {
  ServerOptions options = make_options();
  options.max_body_bytes = body_bytes;
  options.max_total_body_bytes = total_bytes;
  return options;
}

TEST(ServerFraming, BodiesTogetherAreBounded) {
  FakeEngine engine;
  ServerOptions options = with_room_for(1'000'000, 2'500'000);
  options.api_keys = {"a", "b", "c"};
  const auto server = start_server(engine, options);
  // Only received bytes count, not announced ones.
  std::vector<std::unique_ptr<Client>> halves;
  for (int i = 0; i < 8; ++i) {
    halves.push_back(std::make_unique<Client>(server->port()));
    const std::string key = i % 2 == 0 ? "a" : "b";
    ASSERT_TRUE(halves.back()->send(post_head("Authorization: Bearer " + key + "\r\nContent-Length: 1000000\r\n")));
    if (i >= 2) continue;
    ASSERT_TRUE(halves.back()->send(std::string(999'999, ' ')));
  }
  Client observer(server->port());
  const auto holds = [&](const std::string& bytes) {
    const auto metrics = observer.get("/metrics");
    return metrics && metrics.body.find("\nvolley:http_body_bytes " + bytes + "\n") != std::string::npos;
  };
  ASSERT_TRUE(eventually([&] { return holds("1999998"); }));
  const std::string large = "{\"prompt\": \"" + std::string(900'000, 'x') + "\"}";
  const auto refused = post_with_key(*server, "c", large);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(post_with_key(*server, "c", kWhole).status, 200) << "small requests still fit";
  halves.clear();
  EXPECT_TRUE(eventually([&] { return holds("0"); })) << "what a connection held is given back";
  EXPECT_EQ(post_with_key(*server, "c", large).status, 400) << "read, and too long for the model";
}

// An endless upload is held as long as its client likes, up to the time of a request.
TEST(ServerFraming, NoClientTakesTheRoomOfAllBodies) {
  FakeEngine engine;
  ServerOptions options = with_room_for(1'000'000, 2'500'000);
  options.api_keys = {"a", "b"};
  const auto server = start_server(engine, options);
  std::vector<std::unique_ptr<Client>> unfinished;
  for (int i = 0; i < 6; ++i) {
    unfinished.push_back(std::make_unique<Client>(server->port()));
    unfinished.back()->send(post_head("Authorization: Bearer a\r\nContent-Length: 1000000\r\n") +
                            std::string(600'000, ' '));
    if (i >= 2) EXPECT_TRUE(unfinished.back()->wait_for("HTTP/1.1 503 "));
    if (i != 1) continue;
    EXPECT_TRUE(eventually([&] {
      return Client(server->port()).get("/metrics").body.find("\nvolley:http_body_bytes 1200000\n") !=
             std::string::npos;
    })) << "almost half is taken";
  }
  const std::string large = "{\"prompt\": \"" + std::string(900'000, 'x') + "\"}";
  EXPECT_EQ(post_with_key(*server, "b", large).status, 400) << "read, and too long for the model";
  EXPECT_EQ(post_with_key(*server, "a", kWhole).status, 200) << "a small one depends on nothing";
}

// Small bodies do not count; otherwise these would be too many.
TEST(ServerFraming, SmallBodiesAlwaysHaveRoom) {
  FakeEngine engine;
  const auto server = start_server(engine, with_room_for(100'000, 100'000));
  std::vector<std::unique_ptr<Client>> unfinished;
  for (int i = 0; i < 10; ++i) {
    unfinished.push_back(std::make_unique<Client>(server->port()));
    ASSERT_TRUE(unfinished.back()->send(post_head("Content-Length: 60000\r\n") + std::string(50'000, ' ')));
  }
  EXPECT_EQ(Client(server->port()).post(kPath, kWhole).status, 200);
  for (const auto& client : unfinished) {
    ASSERT_TRUE(client->send(std::string(10'000 - kWhole.size(), ' ') + kWhole));
    EXPECT_EQ(client->receive().status, 200);
  }
}

FakeScript script_of(size_t bytes) {
  return FakeScript{.pieces = {std::string(bytes, 'x')}};
}

TEST(ServerFraming, WholeAnswersThatNobodyReadsAreBounded) {
  constexpr size_t kBytes = 4'000'000;
  FakeEngine engine([](const GenerateRequest&) { return script_of(kBytes); });
  ServerOptions options = make_options();
  options.max_response_bytes = kBytes + 100'000;
  options.max_total_response_bytes = 10'000'000;
  options.api_keys = {"a", "b"};
  const auto server = start_server(engine, options);
  const auto ask = [&](Client& client, const std::string& key) {
    return client.send(
        post_head("Authorization: Bearer " + key + "\r\nContent-Length: " + std::to_string(kWhole.size()) + "\r\n") +
        kWhole);
  };
  Client first(server->port(), 4096), other(server->port(), 4096);
  ASSERT_TRUE(ask(first, "a") && first.wait_for("HTTP/1.1 200 "));
  const auto refused = post_with_key(*server, "a", kWhole);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_NE(refused.body.find("answers wait to be read"), std::string::npos);
  ASSERT_TRUE(ask(other, "b") && other.wait_for("HTTP/1.1 200 ")) << "half is left to others";
  EXPECT_EQ(Client(server->port()).get("/health").status, 200) << "a small one depends on nothing";
  const auto read = first.receive();
  EXPECT_GT(read.body.size(), kBytes);
  EXPECT_TRUE(eventually([&] { return post_with_key(*server, "a", kWhole).status == 200; })) << "given back";
}

TEST(ServerFraming, AWholeAnswerIsReadAtTheLeastRate) {
  FakeEngine engine([](const GenerateRequest&) { return script_of(4'000'000); });
  ServerOptions options = make_options();
  options.write_timeout = 300ms;
  const auto read_slowly = [&](size_t least_rate) {
    options.least_read_rate = least_rate;
    const auto server = start_server(engine, options);
    Client client(server->port(), 4096);
    client.send(post_head("Connection: close\r\nContent-Length: " + std::to_string(kWhole.size()) + "\r\n") + kWhole);
    // 16 KiB at a time: some 250 times, each well within the time of 64 KiB.
    while (client.fill()) std::this_thread::sleep_for(5ms);
    return client.receive().status != 0;
  };
  EXPECT_FALSE(read_slowly(100'000'000));
  EXPECT_TRUE(read_slowly(100'000));
}

// No machine has that much memory, so only received bytes may take any.
TEST(ServerFraming, ABodyThatIsAnnouncedTakesNoMemory) {
  FakeEngine engine;
  ServerOptions options = make_options();
  options.max_body_bytes = size_t{1} << 62;
  options.receive_timeout = 500ms;
  const auto server = start_server(engine, options);
  Client other(server->port());
  ASSERT_EQ(other.get("/health").status, 200);
  const std::string head = post_head("Content-Length: " + std::to_string(size_t{1} << 60) + "\r\n");
  for (const std::string body : {"", "{"}) {
    Client client(server->port());
    ASSERT_TRUE(client.send(head + body));
    if (body.empty()) ASSERT_TRUE(client.send("{"));  // on its own, after the head was read
    EXPECT_EQ(client.receive().status, 408) << "the rest is waited for";
  }
  EXPECT_EQ(other.get("/health").status, 200);
}

// The client's end may arrive just when the answer is ready; the connection must not wait for more.
TEST(ServerFraming, AnEndThatComesWithTheAnswerEndsTheConnection) {
  FakeEngine engine;
  const auto server = start_server(engine, with(&ServerOptions::idle_timeout, 600s));
  for (int i = 0; i < (kSanitized ? 600 : 3000); ++i) {
    Client client(server->port());
    ASSERT_TRUE(client.send(Client::post_text("/tokenize", R"({"prompt": "a"})")));
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(i % 300);
    while (std::chrono::steady_clock::now() < end) continue;
    client.send_end();
    auto response = client.receive();
    while (response && response.status == 100) response = client.receive();
    ASSERT_TRUE(client.wait_for_close()) << i;
  }
}

// Whether a client is gone also matters while its text is read; ServerLife tests clients that are.
TEST(ServerFraming, AClientThatOnlyEndedItsSideIsWaitedForWhileItsTextIsRead) {
  for (const char* path : {kPath, "/tokenize"}) {
    FakeEngine engine;
    const auto server = start_server(engine);
    Client client(server->port());
    ASSERT_TRUE(client.send(Client::post_text(path, R"({"prompt": "stuck"})")));
    ASSERT_TRUE(eventually([&] { return engine.encoding() == 1; }));
    client.send_end();
    auto response = client.receive();
    engine.release();
    EXPECT_EQ(response.status, 100) << "the server has seen the end";
    response = client.receive();
    EXPECT_EQ(response.status, 200) << path;
    EXPECT_TRUE(client.wait_for_close());
  }
}

}  // namespace
}  // namespace volley::serve
