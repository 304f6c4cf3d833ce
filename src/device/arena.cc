#include "device/arena.h"

#include <algorithm>
#include <limits>

#include "device/dry_run.h"

namespace volley {

Arena Arena::measuring() {
  Arena arena;
  arena.begin_ = static_cast<char*>(no_memory());
  arena.capacity_ = std::numeric_limits<size_t>::max();
  return arena;
}

TensorView Arena::take(DType dtype, std::initializer_list<int64_t> dims) {
  TensorView view(begin_ + used_, dtype, dims);
  const auto bytes = static_cast<size_t>(arena_bytes(view.bytes()));
  VOLLEY_CHECK_LE(used_ + bytes, capacity_);
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return view;
}

}  // namespace volley
