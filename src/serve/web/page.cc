#include "serve/web/page.h"

#include <algorithm>
#include <array>

namespace volley::serve {
namespace {

using Header = std::pair<std::string_view, std::string_view>;

constexpr std::array<Header, 4> kHeaders = {{
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
     "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    // Asks again each time, so that a new version of the program is seen at once.
    {"Cache-Control", "no-cache"},
}};

}  // namespace

const PageFile* find_page_file(std::string_view path) {
  const auto files = page_files();
  const auto found = std::find_if(files.begin(), files.end(), [&](const PageFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

std::span<const Header> page_headers() {
  return kHeaders;
}

}  // namespace volley::serve
