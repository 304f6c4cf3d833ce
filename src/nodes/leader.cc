#include "nodes/leader.h"

#include <system_error>

#include "device/fault.h"
#include "nodes/meeting.h"

namespace volley::nodes {
namespace {

constexpr size_t kFlushBytes = 64 << 10;
constexpr size_t kMostReplies = 1000;  // replies that no call has asked for yet

}  // namespace

Leader::Leader(std::vector<std::unique_ptr<net::Connection>> nodes) : nodes_(nodes.size()) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes_[i].connection = std::move(nodes[i]);
    nodes_[i].connection->give_up_silence(kMostSilence);
  }
  try {
    for (size_t i = 0; i < nodes_.size(); ++i) nodes_[i].thread = std::thread([this, i] { listen(i); });
  } catch (const std::system_error&) {
    end_threads();
    throw DeviceFault("The system gives this process no more threads for the nodes of the engine.");
  }
}

// Nodes that were told to end get some time to read that.
Leader::~Leader() {
  {
    std::unique_lock lock(mutex_);
    if (ending_) {
      changed_.wait_for(lock, std::chrono::seconds(5), [this] {
        for (const Node& node : nodes_) {
          if (node.listens) return false;
        }
        return true;
      });
    }
  }
  end_threads();
}

void Leader::end_threads() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  for (const Node& node : nodes_) node.connection->shut_down();
  for (Node& node : nodes_) {
    if (node.thread.joinable()) node.thread.join();
  }
}

void Leader::watch(std::function<void(const std::string&)> on_lost) {
  const std::lock_guard watching(watch_mutex_);
  on_lost_ = std::move(on_lost);
  std::unique_lock lock(mutex_);
  const std::string lost = lost_;
  lock.unlock();
  told_ = !lost.empty();
  if (told_ && on_lost_) on_lost_(lost);
}

std::string Leader::lost_within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [this] { return !lost_.empty(); });
  return lost_;
}

// Keeps the next reply, or records why the node is lost.
std::string Leader::hear(size_t node) {
  const Result<net::Frame> frame = net::receive_frame(*nodes_[node].connection, kMostReplyBytes);
  if (!frame.ok()) return frame.error().message;
  Result<Reply> reply = read_reply(*frame);
  if (!reply.ok()) return reply.error().message;
  if (const auto* failed = std::get_if<Failed>(&*reply)) return failed->sentence;
  const std::lock_guard lock(mutex_);
  nodes_[node].replies.push_back(std::move(*reply));
  changed_.notify_all();
  return nodes_[node].replies.size() > kMostReplies ? "it answers what nobody asked" : "";
}

void Leader::listen(size_t node) {
  std::string why;
  do {
    why = hear(node);
  } while (why.empty());
  lose(node, why);
  const std::lock_guard lock(mutex_);
  nodes_[node].listens = false;
  changed_.notify_all();
}

void Leader::lose(size_t node, const std::string& why) {
  std::string lost;
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    if (lost_.empty()) {
      lost_ = "Node " + std::to_string(node + 1) + " at " + net::to_string(nodes_[node].connection->peer()) +
              " is gone: " + why + (why.ends_with('.') ? "" : ".");
    }
    lost = lost_;
    changed_.notify_all();
  }
  nodes_[node].connection->shut_down();
  const std::lock_guard lock(watch_mutex_);
  if (!on_lost_ || told_) return;
  on_lost_(lost);
  told_ = true;
}

template <typename T>
T Leader::take(size_t node) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !lost_.empty() || !nodes_[node].replies.empty(); });
  if (!lost_.empty()) throw DeviceFault(lost_);
  Reply reply = std::move(nodes_[node].replies.front());
  nodes_[node].replies.pop_front();
  lock.unlock();
  if (auto* wanted = std::get_if<T>(&reply)) return std::move(*wanted);
  throw_other_answer(node);
}

void Leader::throw_other_answer(size_t node) {
  lose(node, "it answers something else than it was asked");
  throw DeviceFault("Node " + std::to_string(node + 1) + " answers something else than it was asked.");
}

Result<Ready> Leader::ready() {
  Ready all;
  try {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const auto one = take<Ready>(i);
      all.threads += one.threads;
      all.weight_bytes += one.weight_bytes;
      all.target_bytes += one.target_bytes;
      all.state_bytes += one.state_bytes;
    }
  } catch (const DeviceFault& fault) {
    return Error{ErrorCode::kUnavailable, fault.what()};
  }
  return all;
}

void Leader::flush() {
  if (out_.empty()) return;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Status sent = nodes_[i].connection->send(out_);
    if (!sent.ok()) lose(i, sent.error().message);
  }
  out_.clear();
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) throw DeviceFault(lost_);
}

void Leader::tell(const decode::Command& command) {
  append_call(out_, command);
  if (out_.size() >= kFlushBytes) flush();
}

decode::Answer Leader::answers(decode::Answer own) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    decode::Answer answer = take<Answer>(i).answer;
    if (answer.index() != own.index()) throw_other_answer(i);
    if (decode::is_refusal(answer) && !decode::is_refusal(own)) own = std::move(answer);
  }
  return own;
}

void Leader::masks(std::span<const uint32_t> words) {
  append_call(out_, Masks{{words.begin(), words.end()}});
  flush();
}

std::vector<Report> Leader::reports() {
  std::vector<Report> reports;
  for (size_t i = 0; i < nodes_.size(); ++i) reports.push_back(take<Report>(i));
  return reports;
}

void Leader::end() {
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) return;
    ending_ = true;
  }
  append_call(out_, End{});
  for (const Node& node : nodes_) (void)node.connection->send(out_);  // a node that is gone needs no End
  out_.clear();
}

}  // namespace volley::nodes
