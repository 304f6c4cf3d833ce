// The framing of requests on a connection, in pieces as they may arrive: Beast's parser with the server's limits, and
// the server's own checks of a head.
#include "fuzz.h"
#include "serve/http/session_shared-inl.h"
#include "serve/http/text_body-inl.h"

using namespace volley;
using serve::transport::error_code;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [piece, text] = fuzz::choose(data, size, 32);
  const serve::ServerOptions options;
  std::string_view rest = text;
  for (int requests = 0; requests < 8 && !rest.empty(); ++requests) {
    boost::beast::http::request_parser<serve::transport::TextBody> parser;
    parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
    parser.body_limit(options.max_body_bytes);
    parser.eager(true);
    error_code error;
    size_t end = std::min(rest.size(), size_t{1} + piece);
    while (!parser.is_done() && !error) {
      const size_t taken = parser.put(boost::asio::const_buffer(rest.data(), end), error);
      if (error == boost::beast::http::error::need_more) error = {};
      rest.remove_prefix(taken);
      end -= taken;
      if (taken == 0 && end == rest.size()) break;
      end = std::min(rest.size(), end + 1 + piece);
    }
    if (!parser.is_header_done() || error) break;
    const serve::HttpRequest request = serve::transport::request_head(parser.get());
    const auto refusal = serve::framing_error(serve::transport::head_fields(parser.get(), request));
    const auto routed = serve::route(request);
    // Where a body ends is never a matter of opinion.
    const bool both = parser.get().count("Content-Length") > 0 && parser.get().count("Transfer-Encoding") > 0;
    fuzz::require(refusal.has_value() || !both);
    if (refusal || !parser.is_done()) break;
  }
  return 0;
}
