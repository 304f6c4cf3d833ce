#include "device/arena.h"

#include <algorithm>

namespace volley {

TensorView Arena::take(DType dtype, std::initializer_list<int64_t> dims) {
  TensorView view(static_cast<char*>(buffer_.data()) + used_, dtype, dims);
  const size_t bytes = (static_cast<size_t>(view.bytes()) + 63) / 64 * 64;
  VOLLEY_CHECK_LE(used_ + bytes, buffer_.bytes());
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return view;
}

}  // namespace volley
