// The embedded page is complete: all named files exist, and nothing needs what its policy forbids.
#include "serve/web/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace volley::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string text_of(const PageFile& file) {
  return std::string(file.bytes);
}

// Every first group of `pattern` in `text`.
std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) found.insert((*it)[1]);
  return found;
}

TEST(Page, RootIsTheDocument) {
  const PageFile* file = find_page_file("/");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->content_type, "text/html; charset=utf-8");
  EXPECT_THAT(text_of(*file), StartsWith("<!doctype html>"));
}

TEST(Page, UnknownPathsAreNotFiles) {
  for (const char* path : {"", "/web", "/web/", "/index.html", "/web/index.html", "/web/../page.cc", "/web/app.js/"}) {
    EXPECT_EQ(find_page_file(path), nullptr) << path;
  }
}

// tests/web/serving.test.mjs compares files that exist only compressed, because it can decompress them.
TEST(Page, BytesAreThoseOfTheSources) {
  for (const PageFile& file : page_files()) {
    EXPECT_FALSE(file.bytes.empty() && file.gzip.empty()) << file.path;
    EXPECT_TRUE(file.gzip.empty() || file.gzip.starts_with("\x1f\x8b")) << file.path;
    if (file.bytes.empty()) continue;
    const std::string name = file.path == "/" ? "index.html" : std::string(file.path.substr(5));
    std::ifstream source("src/serve/web/" + name, std::ios::binary);
    std::ostringstream bytes;
    bytes << source.rdbuf();
    EXPECT_EQ(text_of(file), bytes.str()) << name;
  }
}

TEST(Page, EveryFileItNamesIsEmbedded) {
  const std::string document = text_of(*find_page_file("/"));
  std::set<std::string> named = matches(document, "(?:src|href)=\"([^\"#][^\"]*)\"");
  EXPECT_GE(named.size(), 4U);
  for (const PageFile& file : page_files()) {
    const std::string text = text_of(file);
    for (const char* pattern : {"from '\\./([^']+)'", "import\\('\\./([^']+)'\\)", "'web/(vendor/[^']+)'"}) {
      for (const std::string& import : matches(text, pattern)) named.insert("web/" + import);
    }
    if (file.path.ends_with(".woff2")) named.insert(std::string(file.path.substr(1)));  // named by a style sheet
  }
  for (const std::string& name : named) EXPECT_NE(find_page_file("/" + name), nullptr) << name;
  EXPECT_EQ(named.size() + 1, page_files().size()) << "a file is embedded that nothing names";
}

TEST(Page, NothingNeedsWhatThePolicyForbids) {
  const std::string document = text_of(*find_page_file("/"));
  EXPECT_TRUE(matches(document, "(<style|<script>|\\sstyle=|\\son[a-z]+=|javascript:)").empty());
  for (const PageFile& file : page_files()) {
    const std::string text = text_of(file);
    // SVG's namespace is a name, not an address, and the Markdown reader has an expression for links.
    const auto hosts = matches(text, "https?://([a-z0-9.]+)");
    EXPECT_TRUE(hosts.empty() || hosts == std::set<std::string>{"www.w3.org"}) << file.path;
    for (const char* sink :
         {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"}) {
      EXPECT_THAT(text, Not(HasSubstr(sink))) << file.path;
    }
  }
}

TEST(Page, VersionsDiffer) {
  std::set<std::string_view> versions;
  for (const PageFile& file : page_files()) {
    EXPECT_EQ(file.version.size(), 16U) << file.path;
    versions.insert(file.version);
  }
  EXPECT_EQ(versions.size(), page_files().size());
}

TEST(Page, ReadsWhatAClientAccepts) {
  for (const char* yes : {"gzip", "deflate, gzip", "br;q=1.0, GZIP;q=0.8", "*", "gzip;q=0.001", "x-gzip"}) {
    EXPECT_TRUE(accepts_gzip(yes)) << yes;
  }
  for (const char* no : {"", "identity", "br, deflate", "gzip;q=0", "gzip; q=0.000", ",,;", "gzipped"}) {
    EXPECT_FALSE(accepts_gzip(no)) << no;
  }
}

TEST(Page, PolicyAllowsNothingFromElsewhere) {
  for (const auto& [name, value] : page_headers()) {
    if (name != "Content-Security-Policy") continue;
    EXPECT_THAT(std::string(value), StartsWith("default-src 'none'"));
    EXPECT_THAT(std::string(value), Not(HasSubstr("unsafe")));
    return;
  }
  FAIL() << "there is no policy";
}

}  // namespace
}  // namespace volley::serve
