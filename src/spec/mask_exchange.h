// A step's masks, for the rounds of a tensor-parallel group. Which requests are too late depends on time, so one rank
// decides and the others do as it did. Threads: publish() on rank 0's, take() on the others', stop() on any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

namespace volley::spec {

class MaskExchange {
 public:
  // on_publish, unless empty: called in every publish(), for ranks that are elsewhere.
  explicit MaskExchange(std::function<void(std::span<const uint32_t> words)> on_publish = {})
      : on_publish_(std::move(on_publish)) {}

  // `words` must stay as they are until every rank's step is enqueued.
  void publish(std::span<const uint32_t> words);
  // Keeps them itself. REQUIRES: all ranks have enqueued the step of the last ones.
  void publish_kept(std::vector<uint32_t> words);
  // The words of the n-th publish, counted from 1, once they are there. REQUIRES: n - 1 steps came before, and all
  // ranks have enqueued them. Throws DeviceFault after stop(), and where they are not so many.
  std::span<const uint32_t> take(uint64_t n, size_t count);
  // A rank failed: nobody waits any more.
  void stop();

 private:
  const std::function<void(std::span<const uint32_t>)> on_publish_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> kept_;       // guarded by mutex_, as all below
  std::span<const uint32_t> words_;  // these, or somebody else's
  uint64_t published_ = 0;
  bool stopped_ = false;
};

}  // namespace volley::spec
