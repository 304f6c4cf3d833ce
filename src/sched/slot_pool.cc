#include "sched/slot_pool.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace volley::sched {

SlotPool::SlotPool(int32_t slots) {
  VOLLEY_CHECK_GT(slots, 0);
  taken_.resize(static_cast<size_t>(slots));
  for (int32_t slot = 0; slot < slots; ++slot) free_.emplace_back(slot);  // ascending order already is a heap
}

SlotId SlotPool::take() {
  VOLLEY_CHECK(!free_.empty());
  std::ranges::pop_heap(free_, std::greater());
  const SlotId slot = free_.back();
  free_.pop_back();
  taken_[static_cast<size_t>(slot.value)] = true;
  return slot;
}

void SlotPool::release(SlotId slot) {
  VOLLEY_CHECK_GE(slot.value, 0);
  VOLLEY_CHECK_LT(static_cast<size_t>(slot.value), taken_.size());
  VOLLEY_CHECK(taken_[static_cast<size_t>(slot.value)]);
  taken_[static_cast<size_t>(slot.value)] = false;
  free_.push_back(slot);
  std::ranges::push_heap(free_, std::greater());
}

}  // namespace volley::sched
