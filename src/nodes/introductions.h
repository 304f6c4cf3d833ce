// Those who have connected and not yet said who they are. What they say is read side by side: whoever says nothing, or
// only slowly, keeps nobody waiting. Threads: one.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "net/frame.h"

namespace volley::nodes {

class Introductions {
 public:
  // most: bytes of what one may say.
  Introductions(net::Listener& listener, size_t most) : listener_(listener), most_(most) {}

  struct Newcomer {
    std::unique_ptr<net::Connection> connection;
    net::Frame frame;  // the first that came
  };
  // The next who has said something whole. Nothing: nobody has until the deadline.
  std::optional<Newcomer> next(net::Deadline deadline);

 private:
  struct Silent {
    std::unique_ptr<net::Connection> connection;
    net::Deadline until;
    std::vector<std::byte> bytes;  // of its first message, its head included
  };
  enum class Said { kPart, kAll, kNothingOfUse };
  Said read(Silent& silent) const;

  net::Listener& listener_;
  const size_t most_;
  std::deque<Silent> silent_;  // in the order in which they came
};

}  // namespace volley::nodes
