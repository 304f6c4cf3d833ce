#include "engine/start/companions.h"

#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace volley::engine {
namespace {

class Companions {
 public:
  // Throws std::system_error if the system gives no more threads.
  Companions(std::span<Executor* const> replicas, size_t alone)
      : lockstep_(*replicas[alone]->lockstep().with), alone_(static_cast<int>(alone)), failures_(replicas.size()) {
    for (int i = 0; i < lockstep_.replicas(); ++i) {
      if (i != alone_) lockstep_.leave(i);
    }
    try {
      for (size_t i = 0; i < replicas.size(); ++i) {
        if (i != alone) threads_.emplace_back([this, i, replica = replicas[i]] { run(i, *replica); });
      }
    } catch (...) {
      end();
      throw;
    }
  }
  ~Companions() { end(); }
  Companions(const Companions&) = delete;
  Companions& operator=(const Companions&) = delete;

  // Returns when all threads have, and they can be called again.
  void end() {
    lockstep_.leave(alone_);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    for (int i = 0; i < lockstep_.replicas(); ++i) lockstep_.enter(i);
  }
  void abort() { lockstep_.abort(alone_); }
  // REQUIRES: end().
  void rethrow() const {
    for (const std::exception_ptr& failure : failures_) {
      if (failure) std::rethrow_exception(failure);
    }
  }

 private:
  void run(size_t index, Executor& replica) {
    const int number = static_cast<int>(index);
    try {
      replica.attach_thread();
      while (lockstep_.wait(number)) replica.execute(decode::TakePart{});
    } catch (...) {
      failures_[index] = std::current_exception();
      lockstep_.abort(number);
    }
  }

  Lockstep& lockstep_;
  const int alone_;
  std::vector<std::exception_ptr> failures_;  // by replica; each thread writes its own
  std::vector<std::thread> threads_;
};

}  // namespace

Status with_companions(std::span<Executor* const> replicas, size_t index, const std::function<Status()>& f) {
  if (!replicas[index]->lockstep()) return f();
  std::optional<Companions> companions;
  try {
    companions.emplace(replicas, index);
  } catch (const std::system_error&) {
    return resource_exhausted("The system does not give this process " + std::to_string(replicas.size()) +
                              " threads, one for each replica: lower --data-parallel-size.");
  }
  Status status;
  std::exception_ptr failure;
  try {
    status = f();
  } catch (...) {
    failure = std::current_exception();
    companions->abort();
  }
  companions->end();
  // The first replica to fail has the cause; the others only report the loss.
  if (replicas[index]->lockstep().with->aborted_by() != static_cast<int>(index)) companions->rethrow();
  if (failure) std::rethrow_exception(failure);
  return status;
}

}  // namespace volley::engine
