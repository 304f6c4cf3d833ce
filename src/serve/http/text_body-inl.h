// A request's body in memory. Included by session-inl.h and tests/fuzz/http.cc.
#pragma once

#include <boost/beast/http/string_body.hpp>

namespace volley::serve::transport {

// Beast's own body makes room for all that a head announces at once. This one grows as its bytes come, which are
// counted then, and whoever reads a large one may empty it meanwhile.
struct TextBody : boost::beast::http::string_body {
  class reader : public boost::beast::http::string_body::reader {
    using Base = boost::beast::http::string_body::reader;

   public:
    using Base::Base;
    void init(const boost::optional<std::uint64_t>&, boost::system::error_code& error) {
      Base::init(boost::none, error);
    }
  };
};

}  // namespace volley::serve::transport
