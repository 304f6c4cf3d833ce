// Slots: rows of the device state, one for each running request. Threads: one.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace volley::sched {

// Hands out the lowest free slot, so that few running requests stay in the first rows.
class SlotPool {
 public:
  explicit SlotPool(int32_t slots);

  bool empty() const { return free_.empty(); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  SlotId take();              // REQUIRES: !empty()
  void release(SlotId slot);  // REQUIRES: the slot is taken

 private:
  std::vector<bool> taken_;
  std::vector<SlotId> free_;  // a heap, the lowest slot on top
};

// A taken slot, returned when the lease ends. Movable, not copyable; the pool must outlive it.
class SlotLease {
 public:
  explicit SlotLease(SlotPool& pool) : pool_(&pool), slot_(pool.take()) {}
  SlotLease(SlotLease&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), slot_(other.slot_) {}
  SlotLease& operator=(SlotLease&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~SlotLease() {
    if (pool_ != nullptr) pool_->release(slot_);
  }

  SlotId id() const { return slot_; }

 private:
  SlotPool* pool_;  // null once moved from
  SlotId slot_;
};

}  // namespace volley::sched
