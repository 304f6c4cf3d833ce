#include "device/arena.h"

#include <algorithm>

namespace volley {

TensorView Arena::take(DType dtype, std::initializer_list<int64_t> dims) {
  TensorView view(static_cast<char*>(buffer_.data()) + used_, dtype, dims);
  const auto bytes = static_cast<size_t>(arena_bytes(view.bytes()));
  VOLLEY_CHECK_LE(used_ + bytes, buffer_.bytes());
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return view;
}

}  // namespace volley
