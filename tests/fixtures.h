// Reading tests/data (see the README there).
#pragma once

#include <volley/sampling.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "families/family.h"
#include "harness.h"
#include "weights/checkpoint.h"
#include "weights/fixtures_for_test.h"

namespace volley::testing {

using weights::folders, weights::target_of_drafter;

// Expected arrays of a fixture folder.
class Fixture {
 public:
  explicit Fixture(const std::string& dir) : dir_(dir) {
    auto opened = weights::open_safetensors(dir);
    VOLLEY_CHECK_MSG(opened.ok(), opened.error().message);
    checkpoint_ = std::move(opened).value();
  }

  bool has(const std::string& name) const { return checkpoint_->has(name); }
  std::vector<std::vector<float>> matrix(const std::string& name, int64_t rows, int64_t columns) const {
    const std::array<int64_t, 2> shape = {rows, columns};
    const auto tensor = checkpoint_->get(name, shape);
    VOLLEY_CHECK_MSG(tensor.ok(), dir_ + ": " + (tensor.ok() ? "" : tensor.error().message));
    const auto* data = reinterpret_cast<const float*>(tensor->data);
    std::vector<std::vector<float>> out;
    for (int64_t i = 0; i < rows; ++i) out.emplace_back(data + i * columns, data + (i + 1) * columns);
    return out;
  }
  std::vector<float> vector(const std::string& name, int64_t n) const {
    const std::array<int64_t, 1> shape = {n};
    const auto tensor = checkpoint_->get(name, shape);
    VOLLEY_CHECK_MSG(tensor.ok(), dir_ + ": " + (tensor.ok() ? "" : tensor.error().message));
    const auto* data = reinterpret_cast<const float*>(tensor->data);
    return {data, data + n};
  }
  std::vector<TokenId> ids(const std::string& name, int64_t n) const {
    const auto values = vector(name, n);
    return {values.begin(), values.end()};
  }

 private:
  std::string dir_;
  std::unique_ptr<weights::Checkpoint> checkpoint_;
};

// ||a - b|| / ||b|| over all rows.
inline double relative_error(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  VOLLEY_CHECK_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    VOLLEY_CHECK_EQ(a[i].size(), b[i].size());
    for (size_t j = 0; j < a[i].size(); ++j) {
      difference += std::pow(double{a[i][j]} - double{b[i][j]}, 2);
      norm += std::pow(double{b[i][j]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

// Both sides are fp32 arithmetic in different orders: a few ulp of rounding remain (1.6e-7 to 8.3e-7 on CPUs and GPUs),
// far below the 1e-3 that one wrong rotation, norm or head would give.
inline constexpr double kTolerance = 1e-6;
// Recurrent layers have a bound of their own: the norm after a head's output amplifies rows whose q and k are nearly
// orthogonal, which are mostly rounding errors (4.6e-7 to 5.3e-6). The same bound holds against transformers' chunked
// form, which is as far away.
inline constexpr double kRecurrentTolerance = 2e-5;

}  // namespace volley::testing
