// Reads or refuses a connection's request. Only server.cc includes this, like session-inl.h.
#pragma once

#include <algorithm>
#include <boost/beast/http/read.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "serve/http/session-inl.h"

namespace volley::serve::transport {

inline HttpResponse too_many_bodies() {
  return error_response(http_error(503, "Too many large requests are arriving at once. Try again in a moment."));
}

// After reading a socket's end, Asio assumes that no news are there, and the next read would wait for ever. Asking
// whether the socket is readable makes Asio look again.
inline asio::awaitable<void> Session::look_again() {
  error_code error;
  arm(shared_.options.idle_timeout, kDrainIdle);
  co_await stream_.socket().async_wait(tcp::socket::wait_read, token(error));
  disarm();
}

// False: the connection ended, timed out or is drained before a new request. Empty lines are skipped, because some
// clients send one behind a body.
inline asio::awaitable<bool> Session::wait_for_bytes() {
  constexpr std::string_view kEmptyLine = "\r\n";
  const auto received = [this] {
    return std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  };
  for (bool skipped = false;;) {
    if (!skipped && received().starts_with(kEmptyLine)) {
      buffer_.consume(kEmptyLine.size());
      skipped = true;
    }
    if (!received().empty() && (skipped || received() != kEmptyLine.substr(0, 1))) co_return true;
    if (shared_.draining) co_return false;
    error_code error;
    arm(shared_.options.idle_timeout, kDrainIdle);
    const size_t size = co_await stream_.async_read_some(buffer_.prepare(4096), token(error));
    buffer_.commit(size);
    if (error) co_return false;
  }
}

// No value: the connection is to be closed, and the client has its answer if it could get one.
inline asio::awaitable<std::optional<Exchange>> Session::read_request() {
  if (end_seen_) co_await look_again();
  if (!co_await wait_for_bytes()) co_return std::nullopt;
  arm(shared_.options.receive_timeout, kDrainRead);
  body_share_.release();
  upload_.reset();
  Parser parser;
  parser.header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
  const size_t body_limit = shared_.options.max_body_bytes;
  parser.body_limit(std::max(body_limit, shared_.api.max_upload_bytes()));
  error_code error;
  co_await http::async_read_header(stream_, buffer_, parser, token(error));
  HttpRequest request;
  Refusal refused;
  bool upload = false, keep_alive = false;
  const bool head_known = !error || error == http::error::body_limit;
  if (head_known) {  // the head decides the limit
    request = request_head(parser.get());
    upload = shared_.api.takes_upload(request);
    request.client = network_of(stream_.remote_address());
    whose_ = whose(request);
  }
  if (!error) {
    keep_alive = parser.keep_alive();
    if (!upload) parser.body_limit(body_limit);
    if (!upload && parser.content_length().value_or(0) > body_limit) error = http::error::body_limit;
  }
  const bool http_1_0 = parser.get().version() < 11;
  if (!error) {
    const bool asks = boost::beast::iequals(parser.get()[http::field::expect], "100-continue") && !parser.is_done();
    refused = refusal(parser, request, asks);
    if (!refused && asks) {
      if (!co_await write(kContinue)) co_return std::nullopt;
      arm(shared_.options.receive_timeout, kDrainRead);
    }
    // Two statements, because gcc 12 awaits both sides of a conditional expression.
    if (!refused && upload) refused = co_await read_upload(parser, request, error);
    if (!refused && !upload) refused = co_await read_body(parser, error);
  }
  disarm();
  if (refused || error) upload_.reset();
  if (refused) {
    co_await close_with({shared_.api, std::move(request), http_1_0, false}, std::move(*refused));
    co_return std::nullopt;
  }
  if (error) {
    Exchange exchange = head_known ? Exchange(shared_.api, std::move(request), http_1_0, false) : Exchange(shared_.api);
    const size_t limit = upload ? std::max(body_limit, shared_.api.max_upload_bytes()) : body_limit;
    co_await refuse(std::move(exchange), error, limit);
    co_return std::nullopt;
  }
  if (!upload) request.body = std::move(parser.get().body());
  co_return std::optional<Exchange>(std::in_place, shared_.api, std::move(request), http_1_0, keep_alive);
}

// The client is identified by its key, or without keys by its address.
inline std::string Session::whose(const HttpRequest& request) const {
  return shared_.options.api_keys.empty() ? request.client : shared_.api.tenant_of(request);
}

// Refuses by the head alone. A request whose end is known and near is refused later by the handler, so that the
// connection can go on.
inline Session::Refusal Session::refusal(const Parser& parser, const HttpRequest& request, bool asks) const {
  if (const auto error = framing_error(head_fields(parser.get(), request))) return error_response(*error);
  if (!shared_.hosts.allow(request.host)) return error_response(host_not_allowed(request.host));
  auto admitted = shared_.api.admit(request);
  // Only a POST needs a body.
  if (std::holds_alternative<Route>(admitted) && request.method != "POST" && !is_short(parser)) {
    admitted = error_response(http_error(413, "This address takes no body. Send the request without one."));
  }
  auto* response = std::get_if<HttpResponse>(&admitted);
  return response && (asks || !is_short(parser)) ? Refusal(std::move(*response)) : std::nullopt;
}

inline asio::awaitable<Session::Refusal> Session::read_body(Parser& parser, error_code& error) {
  parser.eager(true);
  while (!error && !parser.is_done()) {
    co_await http::async_read_some(stream_, buffer_, parser, token(error));
    if (!body_share_.grow_to(whose_, parser.get().body().size())) {
      std::string().swap(parser.get().body());  // an assignment would keep its memory
      co_return too_many_bodies();
    }
  }
  co_return std::nullopt;
}

// A worker writes a file to the disk piece by piece, because a disk may be slow. The client must send each piece in
// time, and all at the least rate; the disk's time does not count.
inline asio::awaitable<Session::Refusal> Session::read_upload(Parser& parser, const HttpRequest& request,
                                                              error_code& error) {
  auto begun = shared_.api.begin_upload(request);
  if (auto* refused = std::get_if<HttpResponse>(&begun)) co_return std::move(*refused);
  upload_ = std::get<0>(std::move(begun));
  if (!body_share_.grow_to(whose_, FileUpload::kPieceBytes)) {
    co_return too_many_bodies();
  }
  parser.eager(true);
  std::string& piece = parser.get().body();
  const Milliseconds timeout = shared_.options.receive_timeout;
  const auto rate = static_cast<int64_t>(shared_.options.least_upload_rate);
  auto all_by = Clock::now() + timeout;
  while (!error) {
    if (!parser.is_done()) co_await http::async_read_some(stream_, buffer_, parser, token(error));
    if (error || (piece.size() < FileUpload::kPieceBytes && !parser.is_done())) continue;
    disarm();
    all_by += Milliseconds(static_cast<int64_t>(piece.size()) * 1000 / rate);
    const auto before = Clock::now();
    bool good = true;
    co_await on_worker([&] { good = upload_->feed(piece); });
    all_by += Clock::now() - before;
    piece.clear();
    if (gone_) error = asio::error::operation_aborted;
    if (parser.is_done()) break;
    if (shared_.draining) co_return stopping_response();  // its end would get the same answer
    if (!good && !is_short(parser)) co_return upload_->failure();
    const auto left = std::chrono::duration_cast<Milliseconds>(all_by - Clock::now());
    arm(std::clamp(left, Milliseconds(0), timeout), kDrainRead);
  }
  co_return std::nullopt;
}

// Waits for the work in any case, because `work` may use the caller's objects.
template <typename Work>
asio::awaitable<void> Session::on_worker(Work work) {
  const auto done = std::make_shared<bool>(false);  // on the strand
  shared_.workers.post(Workers::kDisk, whose_, [&work, done, weak = weak_from_this(), executor = executor()] {
    work();
    asio::post(executor, [done, weak] {
      *done = true;
      if (const auto self = weak.lock()) self->notify();
    });
  });
  while (!*done) co_await wait_signal();
}

// Answers an incomplete or invalid request, if the client is still there. `exchange`: the known part. The connection
// ends, because the start of the next request is unknown.
inline asio::awaitable<void> Session::refuse(Exchange exchange, error_code error, size_t body_limit) {
  HttpResponse response;
  if (timed_out_ && shared_.draining) {
    response = stopping_response();
  } else if (timed_out_) {
    response = error_response(http_error(408, "The request did not arrive in time. Send it again."));
  } else if (error == http::error::body_limit) {
    response = error_response(http_error(413, "The body is larger than " + std::to_string(body_limit) + " bytes."));
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    response = error_response(
        http_error(431, "The headers are larger than " + std::to_string(shared_.options.max_header_bytes) + " bytes."));
  } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
             error != http::error::end_of_stream && error != http::error::partial_message) {
    response = error_response(http_error(400, "The bytes are not an HTTP request: " + error.message() + "."));
  } else {
    co_return;
  }
  co_await close_with(std::move(exchange), std::move(response));
}

// Answers a client that may still be sending.
inline asio::awaitable<void> Session::close_with(Exchange exchange, HttpResponse response) {
  co_await send_response(exchange, std::move(response));
  co_await linger();
}

}  // namespace volley::serve::transport
