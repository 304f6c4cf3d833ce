// TLS of the server's connections. Only session_shared-inl.h and server.cc include this, like session-inl.h.
//
// Threads: make_tls_context() on any; a Stream on its connection's strand.
#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/file.h"
#include "serve/http/server.h"

namespace volley::serve::transport {

namespace ssl = boost::asio::ssl;

// OpenSSL's reason, in its words.
inline std::string openssl_reason(const boost::system::error_code& error) {
  const char* reason = ERR_reason_error_string(static_cast<unsigned long>(error.value()));
  return reason != nullptr ? reason : error.message();
}

inline Result<std::string> read_pem(const char* option, const std::string& path) {
  constexpr size_t kMaxBytes = 1 << 20;
  auto text = read_file(path, kMaxBytes);
  if (!text.ok()) return invalid_argument(text.error().message + " Check " + option + ".");
  return text;
}

// Clients that offer protocol names get HTTP/1.1, or no choice if they do not offer it.
inline int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                           unsigned int offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, size, kOurs, sizeof(kOurs) - 1, offered, offered_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

inline Status take_client_authorities(ssl::context& context, const TlsOptions& options) {
  using Wanted = TlsOptions::ClientCertificate;
  if (options.client_certificate == Wanted::kNone) return {};
  VOLLEY_ASSIGN(const std::string pem, read_pem("--ssl-ca-certs", options.client_authorities));
  boost::system::error_code error;
  context.add_certificate_authority(boost::asio::buffer(pem), error);
  const auto* found = X509_STORE_get0_objects(SSL_CTX_get_cert_store(context.native_handle()));
  if (error || sk_X509_OBJECT_num(found) == 0) {
    return invalid_argument(options.client_authorities + " of --ssl-ca-certs holds no certificates in PEM format (" +
                            openssl_reason(error) + ").");
  }
  const bool required = options.client_certificate == Wanted::kRequired;
  context.set_verify_mode(ssl::verify_peer | (required ? ssl::verify_fail_if_no_peer_cert : 0));
  // A session with a client certificate is resumed within this context alone.
  constexpr unsigned char kName[] = "volley";
  SSL_CTX_set_session_id_context(context.native_handle(), kName, sizeof(kName) - 1);
  return {};
}

inline Result<std::shared_ptr<ssl::context>> make_tls_context(const TlsOptions& options) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_alpn_select_cb(native, choose_protocol, nullptr);
  boost::system::error_code error;
  // OpenSSL would ask for a password on the terminal.
  bool has_password = false;
  context->set_password_callback(
      [&has_password](size_t, ssl::context::password_purpose) {
        has_password = true;
        return std::string();
      },
      error);

  VOLLEY_ASSIGN(const std::string certificate, read_pem("--ssl-certfile", options.certificate));
  context->use_certificate_chain(boost::asio::buffer(certificate), error);
  if (error) {
    return invalid_argument(options.certificate + " of --ssl-certfile holds no certificate in PEM format that can be " +
                            "used (" + openssl_reason(error) + ").");
  }
  const bool apart = !options.key.empty();
  const char* option = apart ? "--ssl-keyfile" : "--ssl-certfile";
  const std::string& path = apart ? options.key : options.certificate;
  VOLLEY_ASSIGN(const std::string key, read_pem(option, path));
  context->use_private_key(boost::asio::buffer(key), ssl::context::pem, error);
  if (error && ERR_GET_REASON(static_cast<unsigned long>(error.value())) == X509_R_KEY_VALUES_MISMATCH) {
    return invalid_argument("The key in " + path + " is not that of the certificate in " + options.certificate + ".");
  }
  if (error) {
    return invalid_argument(
        path + " of " + option +
        (has_password ? " holds a key with a password: store it without one, readable by this "
                        "user alone."
                      : " holds no private key in PEM format that can be used (" + openssl_reason(error) + ")."));
  }
  if (SSL_CTX_check_private_key(native) != 1) {
    return invalid_argument("The key in " + path + " is not that of the certificate in " + options.certificate + ".");
  }
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  VOLLEY_RETURN_IF_ERROR(take_client_authorities(*context, options));
  return context;
}

// A connection's bytes, with TLS or without. An AsyncReadStream and AsyncWriteStream; one read and one write at a time.
class Stream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using executor_type = Socket::executor_type;

  // `tls`: null: plain; must outlive the stream.
  Stream(Socket socket, ssl::context* tls) : socket_(std::move(socket)) {
    if (tls != nullptr) tls_.emplace(socket_, *tls);
  }

  executor_type get_executor() { return socket_.get_executor(); }
  Socket& socket() { return socket_; }
  std::string remote_address() const {  // empty: the client has left
    boost::system::error_code left;
    const auto remote = socket_.remote_endpoint(left);
    return left ? std::string() : remote.address().to_string();
  }
  bool encrypted() const { return tls_.has_value(); }
  ssl::stream<Socket&>& tls() { return *tls_; }  // REQUIRES: encrypted()
  // After a failed handshake no TLS message can be sent.
  void give_up_tls() { tls_.reset(); }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, size_t)>(
        [this](auto handler, const auto& into) {
          tls_ ? tls_->async_read_some(into, std::move(handler)) : socket_.async_read_some(into, std::move(handler));
        },
        token, buffers);
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, size_t)>(
        [this](auto handler, const auto& from) {
          tls_ ? tls_->async_write_some(from, std::move(handler)) : socket_.async_write_some(from, std::move(handler));
        },
        token, buffers);
  }

 private:
  Socket socket_;
  std::optional<ssl::stream<Socket&>> tls_;
};

// The client has ended its side: by TCP, by TLS, or by TCP beneath a TLS that does not say so.
inline bool is_end_of_stream(const boost::system::error_code& error) {
  return error == boost::asio::error::eof || error == ssl::error::stream_truncated;
}

// The client speaks plain HTTP to an HTTPS port.
inline bool is_plain_http(const boost::system::error_code& error) {
  return error.category() == boost::asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
}

}  // namespace volley::serve::transport
