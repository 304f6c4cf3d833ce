#include "base/memory_reserve.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

namespace volley {
namespace {

enum class State { kUnused, kHeld, kGiven, kChanging };  // kChanging: one thread takes it or gives it back

// The process has one reserve: a handler of `new` has no other place to look.
std::atomic<State> state{State::kUnused};
void* block = nullptr;  // of the thread that changes the state
size_t most_bytes = 0;

// Less where there is less: a process that lives near its limit would be without for ever. From the heap: what others
// gave back to it is free for us, but no longer address space that could be mapped.
bool take() {
  constexpr size_t kLeast = 16;  // a part of the most
  for (size_t bytes = most_bytes; bytes >= most_bytes / kLeast && bytes > 0; bytes /= 2) {
    block = std::malloc(bytes);
    if (block != nullptr) return true;
  }
  return false;
}

void on_failed_allocation() {
  State held = State::kHeld;
  if (state.compare_exchange_strong(held, State::kChanging)) {
    std::free(block);
    state = State::kGiven;
    return;
  }
  // Another thread gives it back just now: then there will be room for this one, too.
  if (held == State::kChanging) {
    while (state == State::kChanging) continue;
    return;
  }
  throw std::bad_alloc();
}

}  // namespace

void keep_memory_reserve() {
  constexpr rlim_t kShare = 16;  // of the limit
  most_bytes = kMemoryReserveBytes;
  // What is free in one heap is of no use to threads of another. Of the eight a core that there may be, each comes to
  // hold the most that its threads ever needed.
  int heaps = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    constexpr rlim_t kPage = 4096;
    const rlim_t share = std::max(limit.rlim_cur / kShare / kPage * kPage, kPage);
    most_bytes = static_cast<size_t>(std::min<rlim_t>(share, kMemoryReserveBytes));
    // A heap of a thread's own is 64 MiB of address space at once: it would swallow what is given back.
    heaps = 1;
  }
  mallopt(M_ARENA_MAX, heaps);
  state = take() ? State::kHeld : State::kGiven;
  std::set_new_handler(on_failed_allocation);
}

bool has_memory_reserve() {
  State given = state.load();
  if (given == State::kUnused || given == State::kHeld) return true;
  if (given != State::kGiven || !state.compare_exchange_strong(given, State::kChanging)) return false;
  const bool taken = take();
  state = taken ? State::kHeld : State::kGiven;
  return taken;
}

}  // namespace volley
