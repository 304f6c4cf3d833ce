// Watches a connection's client and its deadlines during an answer. Only server.cc includes this, like session-inl.h.
#pragma once

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "serve/http/session-inl.h"

namespace volley::serve::transport {

// While an answer is under way, reads the client's bytes to learn at once that it has left. The bytes are kept as the
// start of the next request; a client that sends more than fits is no longer watched.
inline void Session::watch() {
  if (gone_ || watching_ || buffer_.max_size() - buffer_.size() < kReadBytes / 2) return;
  stream_.async_read_some(
      buffer_.prepare(4096),
      asio::bind_cancellation_slot(watch_cancel_.slot(), [self = shared_from_this()](error_code error, size_t size) {
        self->watching_ = false;
        self->buffer_.commit(size);
        if (is_end_of_stream(error)) self->end_seen_ = true;
        const bool answering = self->generation_ || self->job_;
        if (answering && !error) {
          self->watch();
        } else if (answering && is_end_of_stream(error)) {
          self->watch_for_reset();
          if (!self->answer_begun_ && self->interim_responses_) self->send_interim();
        } else {
          // A client's end that comes with a ready answer must not prevent its sending.
          self->end_of_watch(error && error != asio::error::operation_aborted && !is_end_of_stream(error));
        }
      }));
  watching_ = true;
}

// The client has ended its side, but may still read: it is gone if it resets the connection when bytes come. The
// answer's first bytes may be far away, so an interim response, which HTTP/1.1 clients skip, tests the connection
// before.
inline void Session::watch_for_reset() {
  stream_.socket().async_wait(
      tcp::socket::wait_error,
      asio::bind_cancellation_slot(watch_cancel_.slot(), [self = shared_from_this()](error_code error) {
        self->watching_ = false;
        const bool reset = !error && self->was_reset();
        if (!error && !reset && (self->generation_ || self->job_)) {
          self->watch_for_reset();
        } else {
          self->end_of_watch(reset || (error && error != asio::error::operation_aborted));
        }
      }));
  watching_ = true;
}

// Asio may end a wait for an error without one: an event of a closed connection can reach its successor in Asio's
// tables. A read or a write then tries again, but a wait does not look.
inline bool Session::was_reset() {
  pollfd state{stream_.socket().native_handle(), 0, 0};  // errors are reported unasked
  return ::poll(&state, 1, 0) != 0;
}

inline void Session::send_interim() {
  if (stream_.encrypted()) {
    stream_.async_write_some(asio::buffer(kContinue), [self = shared_from_this()](error_code error, size_t size) {
      self->sending_interim_ = false;
      self->written_bytes_ += static_cast<int64_t>(size);
      if (error) self->leave();
      self->notify();
    });
    sending_interim_ = true;
    return;
  }
  const ssize_t sent =
      ::send(stream_.socket().native_handle(), kContinue.data(), kContinue.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) written_bytes_ += sent;
  // A client without room for so few bytes reads nothing. If only a part fits, nothing can follow it.
  if (sent >= 0 ? static_cast<size_t>(sent) != kContinue.size() : errno != EAGAIN) leave();
}

// end_watch() may be waiting for this call, which was cancelled too late.
inline void Session::end_of_watch(bool client_left) {
  if (client_left) leave();
  notify();
}

// Ends the answer, because the client is gone.
inline void Session::leave() {
  gone_ = true;
  interrupt();  // also ends a write that waits for the client
  if (generation_) generation_->abandon();
  cancel_job();
}

// A TLS read has several steps, and a cancellation between two of them is lost. The deadline then interrupts it,
// because the client may send the rest much later, or never.
inline asio::awaitable<void> Session::end_watch() {
  if (!watching_) co_return;
  arm(kAskAgain, kAskAgain);
  while (watching_) {
    watch_cancel_.emit(asio::cancellation_type::terminal);
    co_await wait_signal();
  }
  disarm();
}

inline asio::awaitable<void> Session::wait_signal() {
  while (!signalled_) {
    error_code error;
    co_await signal_.async_wait(token(error));
  }
  signalled_ = false;
}

inline void Session::notify() {
  signalled_ = true;
  signal_.cancel();
}

// Makes the socket's operations fail if they last longer than `timeout`, or than `when_draining` once the server
// drains. A write may get more of the second limit, see expire().
inline void Session::arm(Milliseconds timeout, Milliseconds when_draining) {
  timed_out_ = false;
  ends_at_ = Clock::now() + timeout;
  when_draining_ = when_draining;
  schedule();
}

inline void Session::disarm() {
  ++deadline_turn_;
  ends_at_.reset();
}

inline void Session::schedule() {
  const uint64_t turn = ++deadline_turn_;
  auto next = *ends_at_;
  if (shared_.draining) {
    next = std::min(next, Clock::now() + when_draining_);
    taken_before_ = taken_bytes();
  }
  deadline_.expires_at(next);
  deadline_.async_wait([self = shared_from_this(), turn](error_code error) {
    if (!error && turn == self->deadline_turn_) self->expire();
  });
}

// Draining waits for clients that take their answer, however slowly, and for running requests, but not for a client
// that only keeps the server from ending.
inline void Session::expire() {
  const bool worth_waiting = writing_ && ((generation_ && generation_->running()) || taken_bytes() != taken_before_);
  if (!worth_waiting || Clock::now() >= *ends_at_) {
    timed_out_ = true;
    interrupt();
    // The interrupt misses an operation that has just ended, and the next may be endless: repeats until disarm().
    ends_at_ = Clock::now() + kAskAgain;
  }
  schedule();
}

// Bytes that the client's kernel has acknowledged. A socket takes the next write only when much of its buffer is free,
// which shows a slow reader's progress too late.
inline int64_t Session::taken_bytes() {
  int queued = 0;
  if (!stream_.socket().is_open() || ::ioctl(stream_.socket().native_handle(), SIOCOUTQ, &queued) != 0) queued = 0;
  return written_bytes_ - queued;
}

}  // namespace volley::serve::transport
