// A request's body in memory, whole or a piece at a time. Included by session-inl.h and
// tests/fuzz/http.cc.
#pragma once

#include <boost/beast/http/string_body.hpp>
#include <exception>

namespace volley::serve::transport {

// Beast's own body throws when there is no memory, from where it would end the process.
struct TextBody : boost::beast::http::string_body {
  class reader : public boost::beast::http::string_body::reader {
    using Base = boost::beast::http::string_body::reader;

   public:
    using Base::Base;

    void init(const boost::optional<std::uint64_t>& length, boost::system::error_code& error) {
      try {
        Base::init(length, error);
      } catch (const std::exception&) {
        error = no_memory();
      }
    }

    template <typename Buffers>
    std::size_t put(const Buffers& buffers, boost::system::error_code& error) {
      try {
        return Base::put(buffers, error);
      } catch (const std::exception&) {
        error = no_memory();
        return 0;
      }
    }
  };

  static boost::system::error_code no_memory() {
    return boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
  }
};

// One that may be too large to have room made for it at once: whoever reads it empties it as it comes.
struct PieceBody : TextBody {
  class reader : public TextBody::reader {
   public:
    using TextBody::reader::reader;
    void init(const boost::optional<std::uint64_t>&, boost::system::error_code& error) {
      TextBody::reader::init(boost::none, error);
    }
  };
};

}  // namespace volley::serve::transport
