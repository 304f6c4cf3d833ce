// A request's body in memory. Included by session-inl.h and tests/fuzz/http.cc.
#pragma once

#include <boost/beast/http/string_body.hpp>

namespace volley::serve::transport {

// Beast's own body allocates all that a head announces. This one grows with its bytes, which are counted, and a reader
// of a large one may empty it meanwhile.
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
