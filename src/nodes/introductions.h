// New connections that have not introduced themselves yet. Introductions are read side by side: a silent or slow
// connection delays no other. Threads: one.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "net/frame.h"

namespace volley::nodes {

class Introductions {
 public:
  // most: the most bytes of an introduction.
  Introductions(net::Listener& listener, size_t most) : listener_(listener), most_(most) {}

  struct Newcomer {
    std::unique_ptr<net::Connection> connection;
    net::Frame frame;  // the one that came first
  };
  // The next connection with a whole introduction. No value: none until the deadline.
  std::optional<Newcomer> next(net::Deadline deadline);

 private:
  struct Silent {
    std::unique_ptr<net::Connection> connection;
    net::Deadline until;
    std::vector<std::byte> bytes;  // bytes of its first message, including the head
  };
  enum class Said { kPart, kAll, kNothingOfUse };
  Said read(Silent& silent) const;

  net::Listener& listener_;
  const size_t most_;
  std::deque<Silent> silent_;  // in the order of arrival
};

}  // namespace volley::nodes
