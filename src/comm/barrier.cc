#include "comm/barrier.h"

namespace volley::comm {
namespace {

constexpr uint32_t kAborted = 1u << 31, kTurn = 1u << 16;

uint32_t turn_of(uint32_t state) {
  return state & ~(kAborted | (kTurn - 1));
}

// With a core each, ranks arrive within microseconds of one another. Where ranks share a core, spinning keeps the
// others from arriving, so the thread soon sleeps.
constexpr int kSpins = 200;

}  // namespace

bool Barrier::wait() {
  uint32_t state = state_.load(std::memory_order_acquire);
  const auto come = [&] {
    const bool last = (state & (kTurn - 1)) + 1 == threads_;
    return last ? turn_of(turn_of(state) + kTurn) : state + 1;
  };
  do {
    if (state & kAborted) return false;
  } while (!state_.compare_exchange_weak(state, come(), std::memory_order_acq_rel, std::memory_order_acquire));
  if (turn_of(come()) != turn_of(state)) {
    state_.notify_all();
    return true;
  }
  const uint32_t turn = turn_of(state);
  const auto waiting = [&] {
    state = state_.load(std::memory_order_acquire);
    return turn_of(state) == turn && (state & kAborted) == 0;
  };
  for (int i = 0; i < kSpins && waiting(); ++i) {
  }
  while (waiting()) state_.wait(state, std::memory_order_acquire);
  return turn_of(state) != turn;  // all had arrived, even if a thread aborted right after that
}

void Barrier::abort(int who) {
  int nobody = -1;
  who_.compare_exchange_strong(nobody, who, std::memory_order_acq_rel);
  state_.fetch_or(kAborted, std::memory_order_acq_rel);
  state_.notify_all();
}

}  // namespace volley::comm
