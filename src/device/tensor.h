// A view of a dense row-major tensor. It owns no memory; the allocation must outlive the view.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "device/dtype.h"

namespace volley {

struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};  // elements; shape[rank - 1] is contiguous

  TensorView() = default;
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> dims) : data(data), dtype(dtype) {
    VOLLEY_CHECK_LE(dims.size(), static_cast<size_t>(kMaxRank));
    for (int64_t d : dims) shape[rank++] = d;
  }

  int64_t dim(int i) const {
    VOLLEY_CHECK_LT(i, rank);
    return shape[i];
  }
  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t bytes() const { return count() * static_cast<int64_t>(dtype_size(dtype)); }

  template <typename T>
  T* as() const {
    VOLLEY_CHECK(dtype == kDTypeOf<T>);
    return static_cast<T*>(data);
  }

  // Entries [begin, begin + n) of the first dimension.
  TensorView rows(int64_t begin, int64_t n) const {
    VOLLEY_CHECK(rank >= 1 && begin >= 0 && n >= 0 && begin + n <= shape[0]);
    TensorView view = *this;
    const int64_t row_bytes = shape[0] == 0 ? 0 : bytes() / shape[0];
    view.data = static_cast<char*>(data) + begin * row_bytes;
    view.shape[0] = n;
    return view;
  }
};

}  // namespace volley
