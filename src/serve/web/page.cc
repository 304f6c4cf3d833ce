#include "serve/web/page.h"

#include <algorithm>
#include <array>
#include <string>

namespace volley::serve {
namespace {

using Header = std::pair<std::string_view, std::string_view>;

constexpr std::array<Header, 5> kHeaders = {{
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src "
     "'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    // Makes browsers check each time, so that a new version of the program shows at once.
    {"Cache-Control", "no-cache"},
    {"Vary", "Accept-Encoding"},
}};

}  // namespace

const PageFile* find_page_file(std::string_view path) {
  const auto files = page_files();
  const auto found = std::find_if(files.begin(), files.end(), [&](const PageFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

// RFC 9110, 12.5.3: codings with weights, where 0 means "not this one".
bool accepts_gzip(std::string_view accept_encoding) {
  while (!accept_encoding.empty()) {
    const size_t comma = std::min(accept_encoding.find(','), accept_encoding.size());
    std::string item(accept_encoding.substr(0, comma));
    accept_encoding.remove_prefix(std::min(comma + 1, accept_encoding.size()));
    std::erase_if(item, [](char c) { return c == ' ' || c == '\t'; });
    std::transform(item.begin(), item.end(), item.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::string coding = item.substr(0, item.find(';'));
    if (coding != "gzip" && coding != "x-gzip" && coding != "*") continue;
    const size_t weight = item.find(";q=");
    return weight == std::string::npos || item.find_first_of("123456789", weight) != std::string::npos;
  }
  return false;
}

std::span<const Header> page_headers() {
  return kHeaders;
}

}  // namespace volley::serve
