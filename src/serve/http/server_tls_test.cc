// TLS with a client on plain sockets, so that sanitizers see it: clients leave, end their side, stall or read nothing.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "serve/http/server.h"
#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"
#include "serve/testing/server_helpers.h"

namespace volley::serve {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

// A key and its certificate in one file, during this object's life.
class Certificate {
 public:
  Certificate() {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    FILE* file = std::fopen(path_.c_str(), "w");
    PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    PEM_write_X509(file, certificate);
    std::fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  ~Certificate() { fs::remove(path_); }
  TlsOptions options() const {
    TlsOptions tls;
    tls.certificate = path_;
    return tls;
  }

 private:
  const std::string path_ = (fs::temp_directory_path() / ("volley_tls_" + std::to_string(getpid()) + ".pem")).string();
};

class TlsClient {
 public:
  explicit TlsClient(uint16_t port, int receive_buffer = 0) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    const timeval patience{10, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    context_.reset(SSL_CTX_new(TLS_client_method()));
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket_);
    EXPECT_EQ(SSL_connect(ssl_.get()), 1);
  }
  ~TlsClient() { leave(); }
  TlsClient(const TlsClient&) = delete;

  void send(const std::string& bytes) {
    EXPECT_EQ(SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())), static_cast<int>(bytes.size()));
  }
  // Reads until `text` has come, or the connection ends.
  std::string receive(const std::string& text) {
    std::string received;
    char bytes[4096];
    while (received.find(text) == std::string::npos) {
      const int size = SSL_read(ssl_.get(), bytes, sizeof bytes);
      if (size <= 0) break;
      received.append(bytes, static_cast<size_t>(size));
    }
    return received;
  }
  // The records that send() would send.
  std::string sealed(const std::string& bytes) {
    BIO* records = BIO_new(BIO_s_mem());
    SSL_set0_wbio(ssl_.get(), records);
    send(bytes);
    char* data = nullptr;
    const long size = BIO_get_mem_data(records, &data);
    return {data, static_cast<size_t>(size)};
  }
  void send_raw(const std::string& bytes) {
    EXPECT_EQ(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void end_in_tls() { SSL_shutdown(ssl_.get()); }
  void end_in_tcp() { ::shutdown(socket_, SHUT_WR); }
  void leave() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  int socket_ = -1;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;
};

class ServerTls : public ::testing::Test {
 protected:
  ServerOptions options() const {
    ServerOptions options = make_options();
    options.tls = certificate_.options();
    return options;
  }
  const Certificate certificate_;
};

TEST_F(ServerTls, AnswersOnOneConnectionAgainAndAgain) {
  FakeEngine engine;
  const auto server = start_server(engine, options());
  TlsClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    client.send(Client::post_text(kPath, kWhole));
    EXPECT_NE(client.receive("\"usage\"").find("HTTP/1.1 200"), std::string::npos);
    client.send(Client::post_text(kPath, kStream));
    EXPECT_NE(client.receive("[DONE]").find("HTTP/1.1 200"), std::string::npos);
  }
}

TEST_F(ServerTls, ADisconnectCancelsTheRequest) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(); }, 1ms);
  const auto server = start_server(engine, options());
  for (int how = 0; how < 3; ++how) {
    TlsClient client(server->port());
    client.send(Client::post_text(kPath, kStream));
    EXPECT_NE(client.receive("word"), "");
    if (how == 1) client.end_in_tls();
    if (how == 2) client.end_in_tcp();
    client.leave();
    EXPECT_TRUE(eventually([&] { return engine.cancelled() == how + 1; })) << how;
  }
}

TEST_F(ServerTls, WhoEndsItsSideGetsItsAnswer) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = std::vector<std::string>(50, "x")}; },
                    2ms);
  const auto server = start_server(engine, options());
  for (const bool in_tls : {true, false}) {
    TlsClient client(server->port());
    client.send(Client::post_text(kPath, kWhole));
    in_tls ? client.end_in_tls() : client.end_in_tcp();
    EXPECT_NE(client.receive("\"usage\"").find("HTTP/1.1 200"), std::string::npos) << in_tls;
  }
}

// A part of a record is no request yet: when an answer is ready, reading it must be given up at any step.
TEST_F(ServerTls, AnAnswerDoesNotWaitForTheRestOfTheNextRequest) {
  FakeEngine engine;
  const auto server = start_server(engine, options());
  TlsClient client(server->port());
  const std::string request = Client::post_text(kPath, kWhole);
  for (int i = 0; i < 100; ++i) {
    client.send_raw(client.sealed(request));
    const std::string next = client.sealed(request);
    for (size_t at = 0; at + 1 < next.size(); ++at) client.send_raw(next.substr(at, 1));
    ASSERT_NE(client.receive("\"usage\"").find("HTTP/1.1 200"), std::string::npos) << i;
    client.send_raw(next.substr(next.size() - 1));
    ASSERT_NE(client.receive("\"usage\"").find("HTTP/1.1 200"), std::string::npos) << i;
  }
}

TEST_F(ServerTls, DrainWaitsForNoHandshake) {
  FakeEngine engine;
  ServerOptions patient = options();
  patient.receive_timeout = patient.idle_timeout = patient.write_timeout = 600s;
  const auto server = start_server(engine, patient);
  Client stalled(server->port());
  stalled.send("\x16\x03\x01");
  const TlsClient idle(server->port());
  const auto begin = std::chrono::steady_clock::now();
  server->drain(120s);
  server->wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 120s);
}

TEST_F(ServerTls, StopEndsHandshakesAndStreams) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(); }, 1ms);
  const auto server = start_server(engine, options());
  std::vector<std::unique_ptr<TlsClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<TlsClient>(server->port()));
    clients.back()->send(Client::post_text(kPath, kStream));
    if (i % 2 == 0) clients.back()->end_in_tls();
  }
  Client stalled(server->port());
  stalled.send("\x16\x03\x01");
  EXPECT_NE(clients.back()->receive("word"), "");
  server->stop();
  EXPECT_TRUE(server->wait());
}

// The interim response for a client that has ended its side finds the kernel's buffer full. The number of answers that
// fill it depends on the kernel.
TEST_F(ServerTls, WhoReadsNothingHoldsNoConnection) {
  FakeEngine engine([](const GenerateRequest&) { return endless_script(); }, 1ms);
  ServerOptions limited = options();
  limited.write_timeout = 500ms;
  limited.request_timeout = 300ms;
  const auto server = start_server(engine, limited);
  std::vector<std::unique_ptr<TlsClient>> clients;
  for (int answers = 0; answers < 24; ++answers) {
    clients.push_back(std::make_unique<TlsClient>(server->port(), 4096));
    std::string all;  // at once, because a server that has given up takes no second piece
    for (int i = 0; i < answers; ++i) all += Client::get_text("/openapi.json");
    clients.back()->send(all + Client::post_text(kPath, kWhole));
    clients.back()->end_in_tls();
  }
  std::this_thread::sleep_for(2s);
  const auto begin = std::chrono::steady_clock::now();
  server->drain(120s);
  server->wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 120s);
}

}  // namespace
}  // namespace volley::serve
