// Answers a connection's request. Only server.cc includes this, like session-inl.h.
#pragma once

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "serve/http/session-inl.h"

namespace volley::serve::transport {

// True: the connection can take another request.
inline asio::awaitable<bool> Session::answer(Exchange& exchange) {
  if (shared_.draining) {
    upload_.reset();
    co_return co_await send_response(exchange, stopping_response());
  }
  limit_time();
  answer_begun_ = false;
  interim_responses_ = !exchange.http_1_0();
  auto reply = co_await handle(exchange);
  if (auto* response = std::get_if<HttpResponse>(&reply)) {
    time_limit_.cancel();
    co_await end_watch();
    if (!gone_) co_return co_await send_response(exchange, std::move(*response));
    exchange.end(false, nullptr);
    co_return false;
  }
  generation_ = std::get<std::shared_ptr<Generation>>(std::move(reply));
  if (over_time_) generation_->expire();
  watch();
  const bool sent = co_await send_generation(exchange);
  time_limit_.cancel();
  exchange.end(sent, generation_.get());
  generation_.reset();
  co_await end_watch();
  co_return (sent && exchange.reusable() && !gone_);
}

// Returns the reply, or why there is none: the client left, the time is up, or the server stops. A busy worker then
// continues alone until it looks at the flag.
inline asio::awaitable<Api::Reply> Session::handle(Exchange& exchange) {
  auto wake = [weak = weak_from_this(), executor = executor()] {
    asio::post(executor, [weak] {
      if (const auto self = weak.lock()) self->notify();
    });
  };
  const Wait wait = shared_.api.wait_of(exchange.request());
  if (wait == Wait::kNothing) {
    auto reply = shared_.api.handle(exchange.request(), wake, nullptr);
    exchange.drop_body();
    body_share_.release();
    co_return reply;
  }
  const auto job = job_ = std::make_shared<Job>();
  job->request = exchange.hand_over();
  job->upload = std::move(upload_);
  // Runs once there is a reply, or no reply will come.
  const auto end = [job, share = std::make_shared<BodyShare>(std::move(body_share_)), weak = weak_from_this(),
                    executor = executor()] {
    job->upload.reset();
    std::string().swap(job->request.body);  // an assignment would keep its memory
    share->release();
    asio::post(executor, [job, weak] {
      job->ready = true;
      if (const auto self = weak.lock()) self->notify();
    });
  };
  watch();
  const auto lane = wait == Wait::kDisk                     ? Workers::kDisk
                    : may_have_pictures(job->request.body)  ? Workers::kPictures
                    : job->request.body.size() > kLargeBody ? Workers::kLarge
                                                            : Workers::kUsual;
  shared_.workers.post(lane, whose_, [job, end, wake, whose = whose_, &api = shared_.api, &workers = shared_.workers] {
    Api::Rest rest;
    if (!job->cancelled && job->upload) {
      job->reply = job->upload->finish();
    } else if (!job->cancelled) {
      job->reply = api.handle(job->request, wake, &job->cancelled, &rest);
    }
    if (!rest) return end();
    workers.post(Workers::kGrammar, whose, [job, end, rest = std::move(rest)] {
      if (!job->cancelled) job->reply = rest();
      end();
    });
  });
  while (!job->ready && !job->cancelled) co_await wait_signal();
  job_.reset();
  if (over_time_) co_return error_response(timeout_error());
  if (job->cancelled) co_return stopping_response();
  co_return std::move(*job->reply);
}

inline void Session::cancel_job() {
  if (!job_) return;
  job_->cancelled = true;
  notify();
}

// Reserves room for a whole answer until its client has read it. Without room, the answer becomes a 503.
inline void Session::take_room(HttpResponse& response, SharedSpace::Hold& room) const {
  if (response.body.size() <= kSmallBytes || room.grow_to(whose_, response.body.size())) return;
  response = error_response(
      http_error(503, "Too many large answers wait to be read. Read those, or send the request again in a moment."));
}

inline asio::awaitable<bool> Session::send_response(Exchange& exchange, HttpResponse response) {
  SharedSpace::Hold room(shared_.answers);
  take_room(response, room);
  const auto file = exchange.request().method == "HEAD" ? nullptr : response.file;
  const std::string bytes = exchange.whole(std::move(response), shared_.draining);
  bool written = co_await write(bytes);
  if (written && file) written = co_await send_file(*file);
  exchange.end(written, nullptr);
  co_return (written && exchange.reusable());
}

// False: the client left, or the disk failed. The connection then ends, because more bytes were announced.
inline asio::awaitable<bool> Session::send_file(const OpenFile& file) {
  std::string piece;
  for (size_t sent = 0; sent < file.bytes && !gone_; sent += piece.size()) {
    size_t got = 0;
    piece.resize(std::min(file.bytes - sent, FileUpload::kPieceBytes));
    co_await on_worker([&] {
      const auto read = read_at(file, sent, piece.data(), piece.size(), "a file");
      got = read.ok() ? *read : 0;
    });
    if (got < piece.size() || !co_await write(piece)) co_return false;
  }
  co_return !gone_;
}

// Sends a generation's answer to its end, or until the client is gone.
inline asio::awaitable<bool> Session::send_generation(Exchange& exchange) {
  while (!gone_) {
    Generation::Output output = generation_->take();
    const bool done = output.done;
    SharedSpace::Hold room(shared_.answers);
    if (output.response) take_room(*output.response, room);
    const std::string bytes = exchange.piece(std::move(output), shared_.draining);
    if (!co_await write(bytes)) co_return false;
    if (done) co_return true;
    co_await wait_signal();
  }
  co_return false;
}

inline void Session::limit_time() {
  over_time_ = false;
  if (shared_.options.request_timeout.count() == 0) return;
  time_limit_.expires_after(shared_.options.request_timeout);
  // Cancelling is too late for a call under way, which would then find the next request.
  time_limit_.async_wait([self = shared_from_this(), turn = ++limit_turn_](error_code error) {
    if (error || turn != self->limit_turn_) return;
    self->over_time_ = true;
    if (self->generation_) self->generation_->expire();
    self->cancel_job();
    self->notify();
  });
}

// Writes in slices, so that a slow but steady reader has time in proportion to the answer's size. All slices together
// keep the least rate, because a large answer holds memory. True: the kernel has taken all bytes, even if the client
// has left since.
inline asio::awaitable<bool> Session::write(std::string_view bytes) {
  error_code error;
  if (sending_interim_) {
    arm(shared_.options.write_timeout, kDrainWrite);  // a client that reads nothing delays that write, too
    while (sending_interim_) co_await wait_signal();
    disarm();
    notify();  // the next waiter looks at the signals' causes
  }
  writing_ = true;
  if (!bytes.empty()) answer_begun_ = true;
  const Milliseconds timeout = shared_.options.write_timeout;
  const auto all_by =
      Clock::now() + timeout + Milliseconds(bytes.size() * 1000 / std::max<size_t>(shared_.options.least_read_rate, 1));
  while (!bytes.empty() && !error && !gone_) {
    size_t slice = std::min(bytes.size(), kWriteBytes);
    const auto left = std::chrono::duration_cast<Milliseconds>(all_by - Clock::now());
    arm(std::clamp(left, Milliseconds(0), timeout), kDrainWrite);
    while (slice > 0 && !error && !gone_) {
      const size_t size = co_await stream_.async_write_some(asio::buffer(bytes.data(), slice), token(error));
      bytes.remove_prefix(size);
      slice -= size;
      written_bytes_ += static_cast<int64_t>(size);
    }
    disarm();
  }
  writing_ = false;
  co_return bytes.empty();
}

// Closing a socket while bytes arrive resets the connection, and the client may lose its answer. So this reads for a
// moment and drops the bytes.
inline asio::awaitable<void> Session::linger() {
  error_code error;
  co_await say_goodbye();
  tcp::socket& socket = stream_.socket();  // TLS has ended
  socket.shutdown(tcp::socket::shutdown_send, error);
  arm(kLinger, kDrainLinger);
  while (!error && !gone_) {
    buffer_.consume(buffer_.size());
    co_await socket.async_read_some(buffer_.prepare(kReadBytes), token(error));
  }
}

}  // namespace volley::serve::transport
