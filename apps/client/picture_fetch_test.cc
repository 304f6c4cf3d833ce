// Protects what only the server can reach from whoever may send it a picture's URL.
#include "apps/client/picture_fetch.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <tuple>

namespace volley::apps {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

bool is_public(const char* text) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET, v6.sin6_family = AF_INET6;
  if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) return is_public_address(reinterpret_cast<sockaddr*>(&v4));
  EXPECT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1) << text;
  return is_public_address(reinterpret_cast<sockaddr*>(&v6));
}

TEST(PictureFetch, KnowsPublicAddresses) {
  for (const char* address : {"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.0.1", "172.15.0.1", "172.32.0.1",
                              "192.167.0.1", "223.255.255.255", "2606:4700::1", "2a00::1", "2003::1"}) {
    EXPECT_TRUE(is_public(address)) << address;
  }
  for (const char* address :
       {"0.0.0.0",         "10.1.2.3",        "100.64.0.1", "127.0.0.1",   "127.9.9.9",        "169.254.169.254",
        "172.16.0.1",      "172.31.255.1",    "192.0.0.1",  "192.168.1.1", "198.19.0.1",       "224.0.0.1",
        "240.0.0.1",       "255.255.255.255", "::",         "::1",         "::ffff:127.0.0.1", "::ffff:1.1.1.1",
        "64:ff9b::7f00:1", "fe80::1",         "fc00::1",    "fd12::1",     "ff02::1",          "2001::1",
        "2001:db8::1",     "2002:7f00:1::1"}) {
    EXPECT_FALSE(is_public(address)) << address;
  }
  sockaddr other{};
  other.sa_family = AF_UNIX;
  EXPECT_FALSE(is_public_address(&other));
}

std::string error_of(const PictureHosts& hosts, const std::string& url, size_t most = 1000,
                     const std::atomic<bool>* cancelled = nullptr) {
  const auto fetched = fetch_picture(hosts, url, most, cancelled);
  return fetched.ok() ? "fetched " + *fetched : fetched.error().message;
}

TEST(PictureFetch, RefusesWhatIsNotListed) {
  const PictureHosts hosts{.hosts = {"pictures.test", "other.test:8443"}};
  for (const char* url :
       {"http://pictures.test/a", "file:///etc/passwd", "ftp://pictures.test/a", "https://", "pictures.test/a",
        "https://user@pictures.test/a", "https://a b/", "gopher://pictures.test/"}) {
    EXPECT_THAT(error_of(hosts, url), HasSubstr("must begin with \"https://\"")) << url;
  }
  for (const char* url : {"https://elsewhere.test/a", "https://pictures.test.elsewhere.test/", "https://127.0.0.1/",
                          "https://[::1]/", "https://pictures.test:8443/", "https://other.test/", "https://test/"}) {
    EXPECT_THAT(error_of(hosts, url), HasSubstr("this server fetches no pictures from ")) << url;
  }
}

TEST(PictureFetch, RefusesNamesOfPrivateAddresses) {
  for (const char* address : {"127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "[fd00::1]", "[::ffff:127.0.0.1]"}) {
    const PictureHosts hosts{.hosts = {"pictures.test"}, .addresses = {std::string("pictures.test:443:") + address}};
    EXPECT_THAT(error_of(hosts, "https://Pictures.TEST/a"), HasSubstr("an address that is not public")) << address;
  }
}

// Answers each path in its own way, one connection after the other.
class Server {
 public:
  Server() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 8), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    name_ = "pictures.test:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] {
      for (int client; (client = ::accept(socket_, nullptr, nullptr)) >= 0; ::close(client)) answer(client);
    });
  }
  ~Server() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  const std::string& name() const { return name_; }

 private:
  static void answer(int client) {
    char head[2000] = {};
    if (::read(client, head, sizeof head - 1) <= 0) return;
    const std::string path(head + 4, std::string(head + 4).find(' '));
    const auto send = [client](const std::string& text) {
      return ::send(client, text.data(), text.size(), MSG_NOSIGNAL) > 0;
    };
    const std::string ok = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
    if (path == "/a.png") send(ok + "\r\nbytes");
    if (path == "/gone") send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    if (path == "/away") send("HTTP/1.1 302 Found\r\nLocation: /a.png\r\nContent-Length: 0\r\n\r\n");
    if (path == "/announced") send(ok + "Content-Length: 1000000000\r\n\r\n");
    if (path == "/endless" && send(ok + "\r\n")) {
      while (send(std::string(4096, 'x'))) continue;
    }
    if (path == "/slow" && send(ok + "\r\n")) {
      while (send("x")) std::this_thread::sleep_for(20ms);
    }
  }
  const int socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  std::string name_;
  std::thread thread_;
};

TEST(PictureFetch, IsBoundedInAllItTakes) {
  Server server;
  PictureHosts hosts{.hosts = {server.name()}, .timeout = 20s, .plain_http = true, .any_address = true};
  hosts.addresses = {server.name() + ":127.0.0.1"};
  const std::string base = "http://" + server.name();
  EXPECT_EQ(error_of(hosts, base + "/a.png"), "fetched bytes");
  const std::tuple<const char*, const char*> cases[] = {{"/gone", "it answered 404"},
                                                        {"/away", "it redirects, which is not followed"},
                                                        {"/announced", "more than 1000 bytes"},
                                                        {"/endless", "more than 1000 bytes"}};
  for (const auto& [path, sentence] : cases) EXPECT_THAT(error_of(hosts, base + path), HasSubstr(sentence)) << path;
  hosts.timeout = 200ms;
  EXPECT_THAT(error_of(hosts, base + "/slow"), HasSubstr("could not be fetched: Timeout"));
  const std::atomic<bool> cancelled = true;
  EXPECT_THAT(error_of(hosts, base + "/slow", 1000, &cancelled), HasSubstr("not wanted any more"));
  hosts.any_address = false;
  EXPECT_THAT(error_of(hosts, base + "/a.png"), HasSubstr("an address that is not public"));
}

}  // namespace
}  // namespace volley::apps
