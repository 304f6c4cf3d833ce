// A step's masks, for the rounds of a tensor-parallel group. Which requests are too late depends on time, so one rank
// decides and the others do as it did. Threads: publish() on rank 0's, take() on the others', stop() on any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace volley::spec {

class MaskExchange {
 public:
  // `words` must stay as they are until every rank's step is enqueued.
  void publish(const uint32_t* words);
  // The words of the n-th publish(), counted from 1, once they are there. REQUIRES: n - 1 steps came before, and all
  // ranks have enqueued them. Throws DeviceFault after stop().
  const uint32_t* take(uint64_t n);
  // A rank failed: nobody waits any more.
  void stop();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const uint32_t* words_ = nullptr;  // guarded by mutex_, as all below
  uint64_t published_ = 0;
  bool stopped_ = false;
};

}  // namespace volley::spec
