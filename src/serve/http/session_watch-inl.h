// A connection watches its client while it answers, and its deadlines. Included by server.cc alone, as session-inl.h
// is.
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

// While an answer is on its way, reads what the client sends: to learn at once that it is gone. What comes is kept as
// the start of the next request; a client that sends more than fits is no longer watched.
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
          // An end that comes when the answer is ready is no reason not to send it.
          self->end_of_watch(error && error != asio::error::operation_aborted && !is_end_of_stream(error));
        }
      }));
  watching_ = true;
}

// The client sends nothing more. Whether it still reads, its end of stream does not say: it is gone if it resets the
// connection when bytes come. The answer's first bytes may be far, so one that has not begun is preceded by an interim
// response, which clients of HTTP/1.1 pass over.
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

// Asio may end a wait for an error without one: an event of a closed connection can reach the one that took its place
// in Asio's tables. A read or a write tries again then, a wait does not look.
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
  // Without room for so little the client reads nothing; with room for a part of it, nothing can follow.
  if (sent >= 0 ? static_cast<size_t>(sent) != kContinue.size() : errno != EAGAIN) leave();
}

// end_watch() may be waiting for this very call, which cancelling came too late for.
inline void Session::end_of_watch(bool client_left) {
  if (client_left) leave();
  notify();
}

// There is nobody to answer any more.
inline void Session::leave() {
  gone_ = true;
  interrupt();  // a write that waits for the client
  if (generation_) generation_->abandon();
  cancel_job();
}

// A read through TLS has several steps, and a cancellation that comes between two of them is lost. Then the deadline
// interrupts it: the client may send the rest of what it has begun much later, or never.
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

// Ends the socket's operations with an error if they last longer than `timeout`, or than `when_draining` from the
// moment the server drains. A write may take more of the second limit, see expire().
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

// Draining waits for clients that take their answer, however slowly, and for requests that still run, but not for a
// client that only keeps the server from ending.
inline void Session::expire() {
  const bool worth_waiting = writing_ && ((generation_ && generation_->running()) || taken_bytes() != taken_before_);
  if (!worth_waiting || Clock::now() >= *ends_at_) {
    timed_out_ = true;
    interrupt();
    // An operation that is just over was not interrupted, and the next one may have no end: so until disarm().
    ends_at_ = Clock::now() + kAskAgain;
  }
  schedule();
}

// What the client's kernel has acknowledged. A socket takes the next write only when much of its buffer is free again,
// which says too late that a slow client does read.
inline int64_t Session::taken_bytes() {
  int queued = 0;
  if (!stream_.socket().is_open() || ::ioctl(stream_.socket().native_handle(), SIOCOUTQ, &queued) != 0) queued = 0;
  return written_bytes_ - queued;
}

}  // namespace volley::serve::transport
