#include "engine/remote/lockstep.h"

#include <algorithm>

namespace volley::engine {

Lockstep::Lockstep(comm::RowExchanges exchanges) : exchanges_(std::move(exchanges)), members_(exchanges_.size()) {}

void Lockstep::begin(int replica) {
  const std::lock_guard lock(mutex_);
  const uint64_t begun = members_[static_cast<size_t>(replica)].begun.fetch_add(1) + 1;
  if (begun <= most_begun_) return;
  most_begun_ = begun;
  for (const Member& member : members_) {
    if (member.begun < begun && member.on_behind) member.on_behind();
  }
  changed_.notify_all();
}

bool Lockstep::behind(int replica) const {
  return members_[static_cast<size_t>(replica)].begun < most_begun_;
}

void Lockstep::watch(int replica, std::function<void()> on_behind) {
  const std::lock_guard lock(mutex_);
  members_[static_cast<size_t>(replica)].on_behind = std::move(on_behind);
}

void Lockstep::leave(int replica) {
  {
    const std::lock_guard lock(mutex_);
    members_[static_cast<size_t>(replica)].left = true;
  }
  changed_.notify_all();
}

void Lockstep::enter(int replica) {
  const std::lock_guard lock(mutex_);
  members_[static_cast<size_t>(replica)].left = false;
}

bool Lockstep::all_left() const {
  return std::ranges::all_of(members_, [](const Member& member) { return member.left; });
}

bool Lockstep::wait(int replica) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return aborted_by_ >= 0 || behind(replica) || all_left(); });
  return aborted_by_ < 0 && behind(replica);
}

// Records the replica before its failure reaches other passes.
void Lockstep::abort(int replica) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_by_ < 0) aborted_by_ = replica;
  }
  exchange(replica).abort();
  changed_.notify_all();
}

int Lockstep::aborted_by() {
  const std::lock_guard lock(mutex_);
  return aborted_by_;
}

}  // namespace volley::engine
