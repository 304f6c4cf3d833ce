#include "comm/nccl_state.h"

#include <system_error>
#include <utility>

#include "comm/gone.h"
#include "device/cuda/launch.h"

namespace volley::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kBetweenLooks(20);
// NCCL only sees that another process is gone; the connection to that process soon says which.
constexpr milliseconds kForTheCause(1000);
constexpr seconds kForTheEnd(10);

Error no_thread() {
  return resource_exhausted("The system gives this process no more threads: lower --tensor-parallel-size.");
}

// A rank's initialisation. ncclCommInitRank() returns when all ranks have called it, and cannot be interrupted. So it
// runs on a thread of its own, which is abandoned if a rank is gone meanwhile.
struct Joining {
  std::mutex mutex;
  std::condition_variable changed;
  // All members are guarded by mutex.
  bool done = false, left = false;
  NcclResult result = NcclResult::kSuccess;
  NcclComm* comm = nullptr;
  std::string why;  // initialisation failed
};

void join_group(const NcclApi& api, Joining& joining, int gpu, int ranks, NcclUniqueId id, int rank) {
  NcclComm* comm = nullptr;
  std::string why;
  NcclResult result = NcclResult::kSuccess;
  if (const cudaError_t e = cudaSetDevice(gpu); e != cudaSuccess) {
    why = cudaGetErrorString(e);
  } else if (result = api.comm_init_rank(&comm, ranks, id, rank); result != NcclResult::kSuccess) {
    why = api.describe(result);
    comm = nullptr;
  }
  std::unique_lock lock(joining.mutex);
  if (joining.left) {
    lock.unlock();
    if (comm != nullptr) api.comm_abort(comm);
    return;
  }
  joining.done = true;
  joining.result = result;
  joining.comm = comm;
  joining.why = std::move(why);
  joining.changed.notify_all();
}

}  // namespace

NcclState::NcclState(const NcclApi& api, int ranks, int first, const std::vector<int>& gpus,
                     std::vector<NodeLink> links)
    : api_(api), ranks_(ranks), first_(first), links_(std::move(links)) {
  for (const int gpu : gpus) {
    members_.push_back(std::make_unique<Member>());
    members_.back()->gpu = gpu;
  }
}

Status NcclState::watch(int rank) {
  Member& m = member(rank);
  const std::lock_guard lock(mutex_);
  try {
    m.thread = std::thread([self = shared_from_this(), rank] { self->run(rank); });
  } catch (const std::system_error&) {
    return no_thread();
  }
  m.over = false;
  return {};
}

float* NcclState::keep(int rank, Buffer memory) {
  Member& m = member(rank);
  m.memory = std::move(memory);
  return static_cast<float*>(m.memory.data());
}

Status NcclState::join(int rank, const NcclUniqueId& id) {
  Member& m = member(rank);
  const auto joining = std::make_shared<Joining>();
  std::thread thread;
  try {
    thread = std::thread([&api = api_, joining, gpu = m.gpu, ranks = ranks_, id, rank] {
      join_group(api, *joining, gpu, ranks, id, rank);
    });
  } catch (const std::system_error&) {
    return no_thread();
  }
  {
    std::unique_lock lock(joining->mutex);
    while (!joining->changed.wait_for(lock, kBetweenLooks, [&] { return joining->done; })) {
      if (gone() < 0) continue;
      joining->left = true;
      lock.unlock();
      thread.detach();
      throw_if_gone();
    }
  }
  thread.join();
  if (joining->comm == nullptr) {
    if (gone_within(kForTheCause)) throw_if_gone();
    return Error{ErrorCode::kUnavailable, "NCCL cannot join rank " + std::to_string(rank) + " of " +
                                              std::to_string(ranks_) + ": " + joining->why +
                                              ". Each rank needs a GPU of its own (--device), and NCCL_DEBUG=WARN in "
                                              "the environment says more."};
  }
  {
    const std::lock_guard lock(m.calls);
    if (!m.ended) m.comm = std::exchange(joining->comm, nullptr);
  }
  if (joining->comm != nullptr) {  // another rank failed at the same time
    api_.comm_abort(joining->comm);
    throw_if_gone();
  }
  return {};
}

void NcclState::abort(int rank, std::string cause) {
  {
    const std::lock_guard lock(mutex_);
    if (gone() < 0) {
      cause_ = std::move(cause);
      gone_.store(rank, std::memory_order_release);
    }
  }
  changed_.notify_all();
  for (const NodeLink& link : links_) link.connection->shut_down();  // so that the other processes learn of it
}

void NcclState::throw_if_gone() const {
  const int who = gone();
  if (who < 0) return;
  std::unique_lock lock(mutex_);
  const std::string cause = cause_;
  lock.unlock();
  throw_gone(who, ranks_, cause.empty() ? nullptr : cause.c_str());
}

bool NcclState::gone_within(milliseconds time) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return gone() >= 0; });
}

void NcclState::fail(int rank, NcclResult result) {
  const std::string why = api_.describe(result);
  if (gone_within(kForTheCause)) throw_if_gone();
  throw DeviceFault("NCCL failed on rank " + std::to_string(rank) + " of " + std::to_string(ranks_) + ": " + why + ".");
}

// While the rank itself is in a call of NCCL, that call reports errors.
NcclResult NcclState::async_error(Member& m) const {
  const std::unique_lock lock(m.calls, std::try_to_lock);
  if (!lock.owns_lock() || m.comm == nullptr) return NcclResult::kSuccess;
  NcclResult result = NcclResult::kSuccess;
  const NcclResult asked = api_.comm_get_async_error(m.comm, &result);
  if (asked != NcclResult::kSuccess) return asked;
  return result == NcclResult::kInProgress ? NcclResult::kSuccess : result;
}

void NcclState::check(int rank) {
  throw_if_gone();
  if (const NcclResult result = async_error(member(rank)); result != NcclResult::kSuccess) fail(rank, result);
}

void NcclState::run(int rank) {
  Member& m = member(rank);
  cudaSetDevice(m.gpu);  // errors are reported where they matter
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kBetweenLooks, [this] { return gone() >= 0; })) {
    lock.unlock();
    look(rank);
    lock.lock();
  }
  lock.unlock();
  end_communicator(m);
  lock.lock();
  m.over = true;
  changed_.notify_all();
}

void NcclState::look(int rank) {
  Member& m = member(rank);
  if (rank == first_) {
    for (const NodeLink& link : links_) {
      if (link.connection->has_ended()) return abort(link.first_rank, "its process has ended, or was stopped");
    }
  }
  const NcclResult result = async_error(m);
  if (result == NcclResult::kSuccess) return;
  if (result == NcclResult::kRemoteError && ++m.remote_errors * kBetweenLooks < kForTheCause) return;
  abort(rank, "NCCL: " + api_.describe(result));
}

// A call of NCCL takes a moment. One that does not return waits for a rank that is gone, and only an abort ends it,
// although NCCL permits one thread at a time.
void NcclState::end_communicator(Member& m) const {
  std::unique_lock lock(m.calls, std::defer_lock);
  const bool locked = lock.try_lock_for(kForTheEnd);
  NcclComm* const comm = std::exchange(m.comm, nullptr);
  m.ended = true;
  if (locked) lock.unlock();
  if (comm != nullptr) api_.comm_abort(comm);
}

void NcclState::finish() {
  std::unique_lock lock(mutex_);
  const auto all_over = [this] {
    for (const auto& m : members_) {
      if (!m->over) return false;
    }
    return true;
  };
  changed_.wait_for(lock, kForTheEnd, all_over);
  for (const auto& m : members_) {
    if (!m->thread.joinable()) continue;
    if (!m->over) {
      m->thread.detach();
      continue;
    }
    lock.unlock();  // the thread's last step releases the state
    m->thread.join();
    lock.lock();
  }
}

}  // namespace volley::comm
