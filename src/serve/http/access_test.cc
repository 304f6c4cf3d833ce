// Protects the server of this machine's user against web pages whose name points to this machine (DNS rebinding).
#include "serve/http/access.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

const std::string_view kOfThisMachine[] = {"",          "localhost",   "LOCALHOST:8000",       "localhost.",
                                           "127.0.0.1", "127.1.2.3:9", "[::1]:8000",           "::1",
                                           "[::1]",     "a.localhost", "volley.localhost:8000"};
const std::string_view kOfOthers[] = {"evil.example",           "evil.example:8000", "localhost.evil.example",
                                      "127.0.0.1.evil.example", "notlocalhost",      "192.168.1.5",
                                      "[2001:db8::1]:8000",     "0.0.0.0",           "[::1",
                                      "127.0.0.1:80:80",        "localhost:a:b",     "."};

TEST(AllowedHosts, ALoopbackServerAnswersForThisMachineAlone) {
  const AllowedHosts hosts({}, true);
  for (const std::string_view host : kOfThisMachine) EXPECT_TRUE(hosts.allow(host)) << host;
  for (const std::string_view host : kOfOthers) EXPECT_FALSE(hosts.allow(host)) << host;
}

TEST(AllowedHosts, NamesAreAddedAndAStarIsAny) {
  const AllowedHosts proxied({"LLM.example.com", "10.0.0.5"}, true);
  EXPECT_TRUE(proxied.allow("llm.example.com"));
  EXPECT_TRUE(proxied.allow("llm.EXAMPLE.com:443"));
  EXPECT_TRUE(proxied.allow("10.0.0.5:8000"));
  EXPECT_TRUE(proxied.allow("localhost:8000"));
  EXPECT_FALSE(proxied.allow("example.com"));
  EXPECT_FALSE(proxied.allow("x.llm.example.com"));
  EXPECT_TRUE(AllowedHosts({"*"}, true).allow("evil.example"));
}

TEST(AllowedHosts, OtherServersCheckOnlyWhatTheyAreAskedTo) {
  EXPECT_TRUE(AllowedHosts({}, false).allow("llm.example.com"));
  const AllowedHosts named({"llm.example.com"}, false);
  EXPECT_TRUE(named.allow("llm.example.com"));
  EXPECT_TRUE(named.allow("localhost:8000"));
  EXPECT_FALSE(named.allow("evil.example"));
  for (const char* address : {"10.0.0.5:8000", "192.168.1.5", "[2001:db8::1]:8000", "2001:db8::1"}) {
    EXPECT_TRUE(named.allow(address)) << "as probes call it: " << address;
  }
  for (const char* name : {"10.0.0.5.evil.example", "10.0.0", "10.0.0.5:a:b", "0x7f.1"}) {
    EXPECT_FALSE(named.allow(name)) << name;
  }
}

TEST(HostProblem, NamesWhatNoRequestIsFor) {
  for (const char* host : {"*", "llm.example", "LLM.example.", "10.0.0.5", "::1", "[::1]", "2001:db8::1"}) {
    EXPECT_EQ(host_problem(host), "") << host;
  }
  for (const char* host : {"https://llm.example", "llm.example:8000", "llm.example/v1", "[::1]:8000", "*.example",
                           ".example", "a b", "b\xc3\xbc.example", ""}) {
    EXPECT_NE(host_problem(host).find("without a scheme, a port or a path"), std::string::npos) << host;
  }
}

TEST(OriginProblem, NamesWhatNoBrowserSends) {
  for (const char* origin : {"*", "null", "https://a.example", "http://localhost:3000", "http://[::1]:3000",
                             "https://a.example:80", "chrome-extension://abc", "https://xn--bcher-kva.example"}) {
    EXPECT_EQ(origin_problem(origin), "") << origin;
  }
  for (const char* origin :
       {"a.example", "https://a.example/", "https://a.example/page", "https://A.example", "HTTPS://a.example",
        "https://a.example:443", "http://a.example:80", "https://a.example:", "https://a.example:x", "https://",
        "https://*.example", "https://a.example,https://b.example", "https://me@a.example", "https://b\xc3\xbc.example",
        "://a.example", ""}) {
    EXPECT_NE(origin_problem(origin).find("write https://HOST"), std::string::npos) << origin;
  }
}

// An IPv6 network's owner has 2^64 addresses.
TEST(NetworkOf, IsTheAddressOrItsNetwork) {
  for (const char* address : {"192.0.2.7", "::ffff:192.0.2.7"}) EXPECT_EQ(network_of(address), "192.0.2.7");
  for (const char* address : {"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::9"}) {
    EXPECT_EQ(network_of(address), "2001:db8:1:2::") << address;
  }
  EXPECT_EQ(network_of("fe80::1:2:3:4%eth0"), "fe80::");
  for (const char* address : {"::1", ""}) EXPECT_EQ(network_of(address), address);
}

}  // namespace
}  // namespace volley::serve
