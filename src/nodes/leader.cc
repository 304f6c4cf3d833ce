#include "nodes/leader.h"

#include <new>
#include <system_error>

#include "base/allocation_retry.h"
#include "device/fault.h"
#include "nodes/meeting.h"

namespace volley::nodes {
namespace {

constexpr size_t kFlushBytes = 64 << 10;
constexpr size_t kMostReplies = 1000;  // that nobody has asked for yet

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

// Nodes that were told to end get a while to read it.
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

// Keeps the next reply; or says why the node is lost.
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
    try {
      why = hear(node);
    } catch (const std::bad_alloc&) {
      why = "no memory";  // a string keeps it in itself
    }
  } while (why.empty());
  (void)retry_allocation([&] { lose(node, why); }, kMemoryPatience);
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

void Leader::append_done() {
  if (out_.size() >= kFlushBytes) flush();
}

void Leader::start_slot(int32_t slot, const spec::SlotStart& start) {
  append_start_slot(out_, slot, start);
  flush();
}

void Leader::reserve(std::span<const spec::RoundSegment> segments) {
  append_reserve(out_, segments);
  flush();
}

Status Leader::answers() {
  Status status;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Answer answer = take<Answer>(i);
    if (status.ok()) status = std::move(answer.status);
  }
  return status;
}

void Leader::clear_slot(int32_t slot) {
  append_clear_slot(out_, slot);
  append_done();
}

void Leader::set_page(int32_t slot, size_t group, int32_t index, PageId page) {
  append_set_page(out_, slot, group, index, page);
  append_done();
}

void Leader::save_state(int32_t slot, PageId snapshot) {
  append_save_state(out_, slot, snapshot);
  append_done();
}

void Leader::restore_state(PageId snapshot, int32_t slot) {
  append_restore_state(out_, snapshot, slot);
  append_done();
}

void Leader::copy_page(size_t group, PageId from, PageId to) {
  append_copy_page(out_, group, from, to);
  append_done();
}

void Leader::enqueue(std::span<const spec::RoundSegment> segments, const spec::VerifyBudget& budget, bool waits) {
  append_enqueue(out_, segments, budget, waits);
  flush();
}

void Leader::masks(std::span<const uint32_t> words) {
  append_masks(out_, words);
  flush();
}

void Leader::wait() {
  append_wait(out_);
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
  append_end(out_);
  for (const Node& node : nodes_) (void)node.connection->send(out_);  // who is gone needs no end
  out_.clear();
}

}  // namespace volley::nodes
