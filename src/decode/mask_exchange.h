// A step's masks, for the rounds of a tensor-parallel group. Which requests are too late depends on time, so one rank
// decides and the others do as it did; or another process does, which rank 0 asks. Threads: publish() and ask() on rank
// 0's, take() on those that do not publish, stop() on any.
#pragma once

#include <volley/sampling.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace volley::decode {

class MaskExchange {
 public:
  // on_publish, unless empty: called in every publish(), for ranks that are elsewhere.
  explicit MaskExchange(std::function<void(std::span<const uint32_t> words)> on_publish = {})
      : on_publish_(std::move(on_publish)) {}

  // What each segment with masks has drafted, in order. The answer comes by publish_kept().
  using Ask = std::function<void(std::span<const std::span<const TokenId>> drafted)>;
  // Nobody publishes here: whoever `ask` reaches fills them.
  static std::unique_ptr<MaskExchange> elsewhere(Ask ask) {
    auto exchange = std::make_unique<MaskExchange>();
    exchange->ask_ = std::move(ask);
    return exchange;
  }
  bool is_elsewhere() const { return ask_ != nullptr; }
  void ask(std::span<const std::span<const TokenId>> drafted) const { ask_(drafted); }  // REQUIRES: is_elsewhere()

  // `words` must stay as they are until every rank has taken them.
  void publish(std::span<const uint32_t> words);
  // Keeps them itself. REQUIRES: all ranks have enqueued the step of the last ones.
  void publish_kept(std::vector<uint32_t> words);
  // Waits for the words of the n-th publish, counted from 1. REQUIRES: n - 1 steps came before, and all ranks have
  // enqueued them. Throws DeviceFault after stop(), or if the step published another number of words.
  std::span<const uint32_t> take(uint64_t n, size_t count);
  // A rank failed: ends all waits.
  void stop();

 private:
  const std::function<void(std::span<const uint32_t>)> on_publish_;
  Ask ask_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> kept_;       // guarded by mutex_, as all below
  std::span<const uint32_t> words_;  // these, or somebody else's
  uint64_t published_ = 0;
  bool stopped_ = false;
};

}  // namespace volley::decode
