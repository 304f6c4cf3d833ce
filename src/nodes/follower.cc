#include "nodes/follower.h"

#include "nodes/meeting.h"

namespace volley::nodes {
namespace {

// Node 0 waits for results before it sends much more than this, so a longer backlog means that it is broken.
constexpr size_t kMostWaiting = size_t{1} << 30;

}  // namespace

Follower::Follower(std::unique_ptr<net::Connection> leader, CallLimits limits, std::function<void()> on_lost)
    : leader_(std::move(leader)), limits_(std::move(limits)), on_lost_(std::move(on_lost)) {
  leader_->give_up_silence(kMostSilence);
  thread_ = std::thread([this] { listen(); });
}

Follower::~Follower() {
  set_hooks({});
  leader_->shut_down();
  thread_.join();
}

void Follower::set_hooks(Hooks hooks) {
  const std::lock_guard lock(hooks_mutex_);
  hooks_ = std::move(hooks);
}

Status Follower::hear(const net::Frame& frame, bool& ended) {
  VOLLEY_ASSIGN(Call call, read_call(frame, limits_));
  if (auto* masks = std::get_if<Masks>(&call.message)) {
    const std::lock_guard lock(hooks_mutex_);
    if (!hooks_.on_masks) return invalid_argument("masks came before there was a step");
    return hooks_.on_masks(std::move(masks->words));
  }
  ended = std::holds_alternative<End>(call.message);
  const std::lock_guard lock(mutex_);
  const size_t bytes = sizeof(Call) + frame.payload.size();
  bytes_ += bytes;
  if (bytes_ > kMostWaiting) return invalid_argument("more calls came than can be waiting");
  calls_.emplace_back(std::move(call), bytes);
  changed_.notify_all();
  return {};
}

void Follower::listen() {
  for (bool ended = false; !ended;) {
    const Result<net::Frame> frame = net::receive_frame(*leader_, kMostCallBytes);
    const Status heard = frame.ok() ? hear(*frame, ended) : Status(frame.error());
    if (heard.ok()) continue;
    if (frame.ok()) (void)send(Failed{heard.error().message});  // node 0 cannot know otherwise
    {
      const std::lock_guard lock(mutex_);
      lost_ = heard.error().message;
      changed_.notify_all();
    }
    leader_->shut_down();
    if (on_lost_) on_lost_();
    const std::lock_guard lock(hooks_mutex_);
    if (hooks_.on_lost) hooks_.on_lost();
    return;
  }
}

Error Follower::gone() {
  return {ErrorCode::kUnavailable,
          "Node 0 at " + net::to_string(leader_->peer()) + " is gone: " + lost_ + (lost_.ends_with('.') ? "" : ".")};
}

std::optional<Error> Follower::lost_within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, time, [this] { return !lost_.empty(); })) return std::nullopt;
  return gone();
}

Result<Call> Follower::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !lost_.empty() || !calls_.empty(); });
  if (!lost_.empty()) return gone();
  Call call = std::move(calls_.front().first);
  bytes_ -= calls_.front().second;
  calls_.pop_front();
  return call;
}

Status Follower::send(Reply reply) {
  Bytes out;
  append_reply(out, std::move(reply));
  const std::lock_guard lock(send_mutex_);
  return leader_->send(out);
}

Status Follower::reply(Reply reply) {
  const Status sent = send(std::move(reply));
  if (sent.ok()) return {};
  const std::lock_guard lock(mutex_);
  if (lost_.empty()) lost_ = sent.error().message;
  changed_.notify_all();
  return gone();
}

}  // namespace volley::nodes
