// Protects the server's start and end: what draining waits for and what it does not, and errors of starting.
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "serve/files/file_store.h"
#include "serve/http/server.h"
#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"
#include "serve/testing/server_helpers.h"

namespace volley::serve {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr size_t kLargeAnswer = size_t{2} << 20;  // more than the kernel buffers for a client that does not read

FakeScript large_answer() {
  return FakeScript{.pieces = {std::string(kLargeAnswer, 'w')}};
}

// Waits that must not delay a drain end by themselves long after its deadline.
ServerOptions patient_options() {
  ServerOptions options = make_options();
  options.receive_timeout = options.idle_timeout = options.write_timeout = 600s;
  return options;
}

// Whether the server ends before the deadline of running requests, when none may run.
bool ends_before_its_deadline(Server& server) {
  constexpr auto kDeadline = 120s;
  const auto begin = Clock::now();
  server.drain(kDeadline);
  server.wait();
  return Clock::now() - begin < kDeadline;
}

TEST(ServerLife, WorkersByCores) {
  EXPECT_EQ(good_worker_threads(1), 6);
  EXPECT_EQ(good_worker_threads(4), 6);
  EXPECT_EQ(good_worker_threads(12), 10);
  EXPECT_EQ(good_worker_threads(128), 12);
}

// A client may use any of a name's addresses: for "localhost" often ::1 first.
TEST(ServerLife, ANameListensOnAllItsAddresses) {
  FakeEngine engine;
  const auto server = start_server(engine, with(&ServerOptions::host, "localhost"));
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  ASSERT_EQ(::getaddrinfo("localhost", std::to_string(server->port()).c_str(), &wanted, &found), 0);
  int addresses = 0;
  for (const addrinfo* address = found; address; address = address->ai_next) {
    const int socket = ::socket(address->ai_family, address->ai_socktype, 0);
    const bool connected = socket >= 0 && ::connect(socket, address->ai_addr, address->ai_addrlen) == 0;
    // An address that the machine lacks refuses in another way.
    if (connected || errno == ECONNREFUSED) ++addresses;
    EXPECT_TRUE(connected || errno != ECONNREFUSED);
    if (socket >= 0) ::close(socket);
  }
  ::freeaddrinfo(found);
  if (addresses < 2) GTEST_SKIP() << "localhost is a single address on this machine";
}

TEST(ServerLife, DrainLetsRunningRequestsEnd) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = std::vector<std::string>(50, "x")}; },
                    2ms);
  const auto server = start_server(engine);
  Client idle(server->port());
  ASSERT_EQ(idle.get("/health").status, 200);
  const auto client = open_stream(server->port(), "\"x\"");
  server->drain(600s);
  EXPECT_TRUE(idle.wait_for_close());
  const auto response = client->receive();
  EXPECT_EQ(streamed_text(response.body), std::string(50, 'x') + "|done");
  server->wait();
  EXPECT_THROW(Client(server->port()).get("/health"), std::runtime_error);
  EXPECT_EQ(engine.cancelled(), 0);
}

TEST(ServerLife, DrainCancelsWhatOutlivesItsDeadline) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(); }, 1ms);
  const auto server = start_server(engine);
  const auto client = open_stream(server->port());
  server->drain(50ms);
  const auto response = client->receive();
  EXPECT_TRUE(streamed_text(response.body).ends_with("|error"));
  server->wait();
  EXPECT_EQ(engine.cancelled(), 1);
}

TEST(ServerLife, DrainDoesNotWaitForRequestsThatDoNotArrive) {
  FakeEngine engine;
  ServerOptions options = patient_options();
  options.io_threads = 1;  // so that earlier bytes are read first
  const auto server = start_server(engine, options);
  Client silent(server->port());
  Client half_header(server->port());
  Client half_body(server->port());
  Client used(server->port());
  ASSERT_TRUE(half_header.send("POST /v1/completions HTTP/1.1\r\nHost: "));
  ASSERT_TRUE(half_body.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"));
  // The server must have accepted the connections and read their bytes before it drains.
  ASSERT_TRUE(eventually([&] {
    const auto metrics = used.get("/metrics");
    return metrics && metrics.body.find("\nvolley:http_body_bytes 1\n") != std::string::npos;
  }));
  EXPECT_TRUE(ends_before_its_deadline(*server));
  for (Client* client : {&half_header, &half_body}) {
    EXPECT_EQ(client->receive().status, 503);
  }
  for (Client* client : {&silent, &used, &half_header, &half_body}) EXPECT_TRUE(client->wait_for_close());
}

// Its file would be refused at its end anyway.
TEST(ServerLife, DrainDoesNotWaitForAnUploadThatGoesOn) {
  FakeEngine engine;
  const fs::path folder = fs::temp_directory_path() / ("volley_life_" + std::to_string(getpid()));
  ServerOptions options = patient_options();
  options.max_body_bytes = 1000;
  options.file_store = *FileStore::open(folder.string(), {.max_file_bytes = size_t{100} << 20});
  const auto server = start_server(engine, options);
  const auto upload = [](size_t bytes) {
    return "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
           "Content-Length: " +
           std::to_string(bytes) + "\r\n\r\n";
  };
  Client large(server->port());
  ASSERT_TRUE(large.send(upload(size_t{200} << 20)));
  const auto refused = large.receive();
  EXPECT_NE(refused.body.find("larger than " + std::to_string((100 << 20) + (64 << 10)) + " bytes"), std::string::npos)
      << refused.body;
  Client client(server->port());
  ASSERT_TRUE(client.send(upload(size_t{50} << 20) +
                          "--b\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n" +
                          std::string(size_t{1} << 20, 'x')));
  ASSERT_TRUE(eventually([&] { return !fs::is_empty(folder / "files"); }));
  std::jthread sender([&](const std::stop_token& stop) {
    while (!stop.stop_requested() && client.send(std::string(100'000, 'x'))) std::this_thread::sleep_for(20ms);
  });
  EXPECT_TRUE(ends_before_its_deadline(*server));
  sender.request_stop();
  sender.join();
  EXPECT_TRUE(fs::is_empty(folder / "files"));
  fs::remove_all(folder);
}

// Otherwise a client that sends each piece in time could hold a connection and part of a file for hours.
TEST(ServerLife, AnUploadComesAtALeastRate) {
  FakeEngine engine;
  const fs::path folder = fs::temp_directory_path() / ("volley_rate_" + std::to_string(getpid()));
  ServerOptions options = patient_options();
  options.receive_timeout = 1s;
  options.file_store = *FileStore::open(folder.string(), {});
  const std::string head =
      "--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
      "--b\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n";
  const std::string piece(300'000, 'x'), end = "\r\n--b--\r\n";
  constexpr size_t kPieces = 8;
  for (const auto& [rate, status] : {std::pair<size_t, int>{1, 200}, {size_t{1} << 30, 408}}) {
    options.least_upload_rate = rate;
    const auto server = start_server(engine, options);
    Client client(server->port());
    client.send(
        "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        "Content-Length: " +
        std::to_string(head.size() + kPieces * piece.size() + end.size()) + "\r\n\r\n" + head);
    for (size_t i = 0; i < kPieces && client.send(piece); ++i) std::this_thread::sleep_for(200ms);
    client.send(end);
    const auto response = client.receive();
    EXPECT_EQ(response.status, status) << response.body;
  }
  fs::remove_all(folder);
}

TEST(ServerLife, DrainDoesNotWaitForAReaderThatWasCutOff) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(std::string(2000, 'w')); }, 50us);
  const auto server = start_server(engine, patient_options());
  Client client(server->port(), 4096);
  ASSERT_TRUE(client.send(Client::post_text(kPath, kStream)));
  ASSERT_TRUE(eventually([&] { return engine.cancelled() == 1; }));
  EXPECT_TRUE(ends_before_its_deadline(*server));
}

TEST(ServerLife, DrainDoesNotWaitForAnAnswerThatNobodyTakes) {
  FakeEngine engine([](const GenerateRequest&) { return large_answer(); });
  ServerOptions options = patient_options();
  options.max_unsent_bytes = 8 * kLargeAnswer;
  const auto server = start_server(engine, options);
  Client whole(server->port(), 4096);
  Client stream(server->port(), 4096);
  ASSERT_TRUE(whole.send(Client::post_text(kPath, kWhole)));
  ASSERT_TRUE(stream.send(Client::post_text(kPath, R"({"prompt": "x", "stream": true, "n": 2})")));
  ASSERT_TRUE(whole.wait_for("www"));
  ASSERT_TRUE(stream.wait_for("www"));
  ASSERT_TRUE(eventually([&] { return engine.running() == 0; }));
  EXPECT_TRUE(ends_before_its_deadline(*server));
}

// Any progress of a reader counts: it may be seconds until the kernel calls the socket writable.
TEST(ServerLife, DrainWaitsForASlowReader) {
  FakeEngine engine([](const GenerateRequest&) { return large_answer(); });
  const auto server = start_server(engine);
  Client client(server->port(), 4096);
  ASSERT_TRUE(client.send(Client::post_text(kPath, kWhole)));
  ASSERT_TRUE(client.wait_for("www"));
  server->drain(120s);
  for (const auto slow_until = Clock::now() + 4s; Clock::now() < slow_until;) {
    ASSERT_TRUE(client.fill());
    std::this_thread::sleep_for(100ms);
  }
  const auto response = client.receive();
  EXPECT_GT(response.body.size(), kLargeAnswer);
}

// While the request runs, the unsent limit decides about a reader that stalls.
TEST(ServerLife, DrainLetsTheRequestOfAStalledReaderRun) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(std::string(40'000, 'w')); }, 20ms);
  const auto server = start_server(engine, with(&ServerOptions::max_unsent_bytes, size_t{1} << 30));
  Client client(server->port(), 4096);
  ASSERT_TRUE(client.send(Client::post_text(kPath, kStream)));
  ASSERT_TRUE(client.wait_for("www"));
  const auto begin = Clock::now();
  server->drain(2500ms);
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 1; })) << "the drain's own deadline counts";
  EXPECT_GE(Clock::now() - begin, 2500ms) << "it was cut off before";
  server->wait();
}

// An abandoned request takes no more time of the threads that tokenise and apply templates.
TEST(ServerLife, AWorkerGivesUpWhatNobodyWaitsFor) {
  FakeEngine engine;
  const auto server = start_server(engine);
  for (const char* path : {kPath, "/tokenize"}) {
    auto client = std::make_unique<Client>(server->port());
    ASSERT_TRUE(client->send(Client::post_text(path, R"({"prompt": "endless"})")));
    ASSERT_TRUE(eventually([&] { return engine.encoding() == 1; }));
    client.reset();
    EXPECT_TRUE(eventually([&] { return engine.encoding() == 0; })) << path;
  }
}

TEST(ServerLife, TheTimeLimitHoldsForWorkersToo) {
  FakeEngine engine;
  const auto server = start_server(engine, with(&ServerOptions::request_timeout, 100ms));
  Client client(server->port());
  for (const char* path : {kPath, "/tokenize"}) {
    EXPECT_EQ(client.post(path, R"({"prompt": "endless"})").status, 504) << path;
  }
  EXPECT_EQ(client.get("/health").status, 200) << "the connection can go on";
  EXPECT_TRUE(eventually([&] { return engine.encoding() == 0; }));
}

// Some work does not look at the flag: the client is told anyway, and wait() tells its caller not to wait.
TEST(ServerLife, DrainCancelsWhatWorkersDo) {
  for (const bool gives_up : {true, false}) {
    FakeEngine engine;
    const auto server = start_server(engine);
    Client client(server->port());
    ASSERT_TRUE(
        client.send(Client::post_text(kPath, gives_up ? R"({"prompt": "endless"})" : R"({"prompt": "stuck"})")));
    ASSERT_TRUE(eventually([&] { return engine.encoding() == 1; }));
    server->drain(50ms);
    EXPECT_EQ(client.receive().status, 503);
    ASSERT_TRUE(!gives_up || eventually([&] { return engine.encoding() == 0; }));
    EXPECT_EQ(server->wait(), gives_up);
    engine.release();
  }
}

TEST(ServerLife, LargeRequestsLeaveWorkersToOthers) {
  FakeEngine engine;
  const auto server = start_server(engine, with(&ServerOptions::worker_threads, 1));
  const std::string large = R"({"prompt": "endless)" + std::string(size_t{300} << 10, 'x') + "\"}";
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    ASSERT_TRUE(clients.back()->send(Client::post_text(kPath, large)));
  }
  ASSERT_TRUE(eventually([&] { return engine.encoding() == 1; }));
  EXPECT_EQ(Client(server->port()).post(kPath, kWhole).status, 200);
}

// A slow grammar delays only other grammars, and no longer than its client stays.
TEST(ServerLife, GrammarsLeaveWorkersToOthers) {
  FakeEngine engine;
  ServerOptions options = make_options();
  options.worker_threads = 1;
  options.grammar_threads = 2;
  const auto server = start_server(engine, options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    ASSERT_TRUE(clients.back()->send(Client::post_text(kPath, R"({"prompt": "x", "regex": "new, endless"})")));
  }
  ASSERT_TRUE(eventually([&] { return engine.compiling() == 2; }));
  EXPECT_EQ(Client(server->port()).post(kPath, kWhole).status, 200);
  EXPECT_EQ(Client(server->port()).post(kPath, R"({"prompt": "x", "regex": "known"})").status, 200);
  Client waits(server->port());
  ASSERT_TRUE(waits.send(Client::post_text(kPath, R"({"prompt": "x", "regex": "new"})")));
  EXPECT_EQ(engine.compiling(), 2);
  clients.clear();
  EXPECT_EQ(waits.receive().status, 200);
  EXPECT_TRUE(eventually([&] { return engine.compiling() == 0; }));
}

// A client that waits for others' grammars is told in time, and at a stop.
TEST(ServerLife, NobodyWaitsForAGrammarLongerThanARequestMay) {
  FakeEngine engine;
  ServerOptions options = make_options();
  options.grammar_threads = 1;
  options.request_timeout = 100ms;
  const std::string body = R"({"prompt": "x", "regex": "new, endless"})";
  for (const bool stop : {false, true}) {
    if (stop) options.request_timeout = 0ms;
    const auto server = start_server(engine, options);
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 3; ++i) {
      clients.push_back(std::make_unique<Client>(server->port()));
      ASSERT_TRUE(clients.back()->send(Client::post_text(kPath, body)));
    }
    if (stop) {
      ASSERT_TRUE(eventually([&] { return engine.compiling() == 1; }));
      server->drain(50ms);
    }
    for (const auto& client : clients) {
      EXPECT_EQ(client->receive().status, stop ? 503 : 504);
    }
    ASSERT_TRUE(eventually([&] { return engine.compiling() == 0; }));
  }
}

TEST(ServerLife, StopEndsEverythingAtOnce) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(); }, 1ms);
  auto server = start_server(engine);
  const auto client = open_stream(server->port());
  server->stop();
  server->wait();
  EXPECT_TRUE(client->wait_for_close());
  server.reset();
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 1; })) << "events after the server's end must be harmless";
}

TEST(ServerLife, StartAndStopUnderLoad) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(); }, 200us);
  for (int round = 0; round < 5; ++round) {
    const auto server = start_server(engine);
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 10; ++i) {
      clients.push_back(std::make_unique<Client>(server->port()));
      ASSERT_TRUE(clients.back()->send(Client::post_text(kPath, i % 2 ? kStream : kWhole)));
    }
    if (round % 2) std::this_thread::sleep_for(5ms);
  }
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
}

TEST(ServerLife, StartErrorsSayWhatToDo) {
  FakeEngine engine;
  const auto server = start_server(engine);
  ServerOptions options = make_options();
  options.port = server->port();
  const auto taken = Server::start(engine, options);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(taken.error().message.find(std::to_string(server->port())), std::string::npos);
  options.host = "not an address";
  EXPECT_EQ(Server::start(engine, options).error().code, ErrorCode::kInvalidArgument);
  options.served_model_names.clear();
  EXPECT_EQ(Server::start(engine, options).error().code, ErrorCode::kInvalidArgument);
}

// Without the spare descriptor they hung in the listener's queue.
TEST(ServerLife, ClientsThatFindNoDescriptorLeftAreTold) {
  FakeEngine engine;
  const auto server = start_server(engine);
  Client earlier(server->port());
  ASSERT_EQ(earlier.get("/health").status, 200);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<int> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(::socket(AF_INET, SOCK_STREAM, 0));
  const int next = ::dup(0);  // the lowest free descriptor
  ASSERT_GE(next, 0);
  ::close(next);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout{120, 0};
  for (const int client : clients) {
    ::setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    EXPECT_EQ(::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    std::array<char, 12> start{};
    EXPECT_EQ(::recv(client, start.data(), start.size(), MSG_WAITALL), static_cast<ssize_t>(start.size()));
    EXPECT_EQ(std::string(start.data(), start.size()), "HTTP/1.1 503");
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const int client : clients) ::close(client);
  EXPECT_EQ(earlier.get("/health").status, 200);
  EXPECT_EQ(Client(server->port()).get("/health").status, 200);
}

// Holds for each of the server's descriptors that the process may not have.
TEST(ServerLife, TooManyOpenFilesIsNotAMatterOfThePort) {
#ifdef __SANITIZE_ADDRESS__
  // UndefinedBehaviorSanitizer checks an exception's type through a pipe, and without descriptors calls it broken.
  GTEST_SKIP() << "the sanitizer needs file descriptors of its own";
#endif
  FakeEngine engine;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(0);  // the lowest free descriptor
  ASSERT_GE(next, 0);
  ::close(next);
  int failed = 0;
  for (rlim_t more = 0; more < 16; ++more) {
    rlimit tight = before;
    tight.rlim_cur = static_cast<rlim_t>(next) + more;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
    const auto server = Server::start(engine, make_options());
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    if (server.ok()) break;
    ++failed;
    EXPECT_EQ(server.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(server.error().message.find("ulimit -n"), std::string::npos) << server.error().message;
    EXPECT_EQ(server.error().message.find("port"), std::string::npos) << server.error().message;
  }
  EXPECT_GE(failed, 2) << "Asio's own descriptors and the socket";
  EXPECT_LT(failed, 16);
}

}  // namespace
}  // namespace volley::serve
