// Hands a step's masks to the rounds of a tensor-parallel group. Time decides which requests are too late, so one rank
// decides for all. Alternatively rank 0 asks another process. Threads: publish() and ask() on rank 0's thread, take()
// on the other ranks', stop() on any.
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
  // on_publish, unless empty: called in every publish(), for ranks in other processes.
  explicit MaskExchange(std::function<void(std::span<const uint32_t> words)> on_publish = {})
      : on_publish_(std::move(on_publish)) {}

  // Sends the drafted tokens of each segment with masks, in order. publish_kept() brings the answer.
  using Ask = std::function<void(std::span<const std::span<const TokenId>> drafted)>;
  // Makes an exchange whose masks another process fills, which `ask` reaches.
  static std::unique_ptr<MaskExchange> elsewhere(Ask ask) {
    auto exchange = std::make_unique<MaskExchange>();
    exchange->ask_ = std::move(ask);
    return exchange;
  }
  bool is_elsewhere() const { return ask_ != nullptr; }
  void ask(std::span<const std::span<const TokenId>> drafted) const { ask_(drafted); }  // REQUIRES: is_elsewhere()

  // `words` must not change until every rank has taken them.
  void publish(std::span<const uint32_t> words);
  // Publishes words and keeps them. REQUIRES: all ranks have enqueued the step of the last ones.
  void publish_kept(std::vector<uint32_t> words);
  // Waits for the words of the n-th publish, counted from 1. REQUIRES: n - 1 steps came before, and all ranks have
  // enqueued them. Throws DeviceFault after stop(), or if the step published another number of words.
  std::span<const uint32_t> take(uint64_t n, size_t count);
  // Ends all waits, because a rank failed.
  void stop();

 private:
  const std::function<void(std::span<const uint32_t>)> on_publish_;
  Ask ask_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> kept_;       // guarded by mutex_, like all members below
  std::span<const uint32_t> words_;  // kept_, or words that the publisher owns
  uint64_t published_ = 0;
  bool stopped_ = false;
};

}  // namespace volley::decode
