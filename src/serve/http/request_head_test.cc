// Protects against request smuggling: a request that a proxy and this server could read differently is refused.
#include "serve/http/request_head.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

int status_of(const HeadFields& head) {
  const auto error = framing_error(head);
  return error ? error->status : 0;
}

HeadFields with_coding(std::vector<std::string_view> codings) {
  HeadFields head;
  head.hosts = {"localhost"};
  head.transfer_encodings = std::move(codings);
  return head;
}

TEST(FramingError, OnlyChunkedAloneIsRead) {
  EXPECT_EQ(status_of(with_coding({})), 0);
  EXPECT_EQ(status_of(with_coding({"chunked"})), 0);
  EXPECT_EQ(status_of(with_coding({"Chunked"})), 0);
  for (const std::string_view coding :
       {"gzip", "identity", "gzip, chunked", "chunked, identity", "chunked;q=1", "xchunked", "chunked,",
        "\x0b"
        "chunked",
        ""}) {
    EXPECT_EQ(status_of(with_coding({coding})), 501) << coding;
  }
  EXPECT_EQ(status_of(with_coding({"gzip", "chunked"})), 501);
  EXPECT_EQ(status_of(with_coding({"chunked", "identity"})), 501);
}

TEST(FramingError, TwoLengthsOfOneBody) {
  HeadFields head = with_coding({"identity"});
  head.content_length = true;
  EXPECT_EQ(status_of(head), 400);
  HeadFields old = with_coding({"chunked"});
  old.http_1_0 = true;
  EXPECT_EQ(status_of(old), 400) << "a proxy of HTTP/1.0 does not know chunks";
}

TEST(FramingError, OneHost) {
  const auto status_with = [](std::vector<std::string_view> hosts, bool http_1_0 = false) {
    HeadFields head;
    head.http_1_0 = http_1_0;
    head.hosts = std::move(hosts);
    return status_of(head);
  };
  EXPECT_EQ(status_with({}), 400);
  EXPECT_EQ(status_with({}, true), 0);
  EXPECT_EQ(status_with({"a", "a"}), 400);
  EXPECT_EQ(status_with({"a", "b"}, true), 400);
  for (const std::string_view host : {"localhost", "localhost:8000", "127.0.0.1", "[::1]:8000", "a-b.example", ""}) {
    EXPECT_EQ(status_with({host}), 0) << host;
  }
  for (const std::string_view host : {"a, b", "user@a", "a/b", "a b", "a?b"})
    EXPECT_EQ(status_with({host}), 400) << host;
  HeadFields named;
  named.hosts = {"a"};
  named.authority = "user@b";
  EXPECT_EQ(status_of(named), 400);
}

TEST(SplitTarget, OriginAndAbsoluteForm) {
  const auto split = [](std::string_view target) {
    const Target found = split_target(target);
    return found.authority + "|" + found.path;
  };
  EXPECT_EQ(split("/v1/models?x=http://a/b"), "|/v1/models?x=http://a/b");
  EXPECT_EQ(split("http://a.example:80/v1/models?x=1"), "a.example:80|/v1/models?x=1");
  EXPECT_EQ(split("HTTPS://a"), "a|/");
  EXPECT_EQ(split("http://a?x=/"), "a|/?x=/");
  EXPECT_EQ(split("*"), "|*");
  EXPECT_EQ(split("a.example:443"), "|a.example:443");
  EXPECT_EQ(split(""), "|");
}

TEST(CanonicalTarget, OneSpellingOfAPath) {
  EXPECT_EQ(canonical_target("/v1/%6Dodels/"), "/v1/models");
  EXPECT_EQ(canonical_target("//v1%2F%2fmodels//?a=%6d//b/"), "/v1/models?a=%6d//b/") << "the query stays";
  EXPECT_EQ(canonical_target("/"), "/");
  EXPECT_EQ(canonical_target("///?x"), "/?x");
  EXPECT_EQ(canonical_target("/%7Euser/a%2Db%2E%5F"), "/~user/a-b._");
  EXPECT_EQ(canonical_target("/a%3Fb%23c%25%6D%00%C3%BC%2"), "/a%3Fb%23c%25m%00%C3%BC%2");
  EXPECT_EQ(canonical_target("/%256d"), "/%256d") << "decoded once, not twice";
  EXPECT_EQ(canonical_target("/a/../b/%2e%2E/c"), "/a/../b/../c") << "dots mean nothing";
  EXPECT_EQ(canonical_target("*"), "*");
  EXPECT_EQ(canonical_target(""), "");
}

}  // namespace
}  // namespace volley::serve
