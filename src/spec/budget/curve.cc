#include "spec/budget/curve.h"

#include <algorithm>

#include "base/check.h"

namespace volley::spec {

Curve::Curve(std::vector<CurvePoint> points) {
  // From the largest to the smallest.
  std::ranges::sort(points, [](const CurvePoint& a, const CurvePoint& b) { return a.x > b.x; });
  for (const CurvePoint& point : points) {
    const double least = points_.empty() ? point.y : std::min(point.y, points_.back().y);
    if (!points_.empty() && points_.back().x == point.x) points_.pop_back();
    points_.push_back({point.x, least});
  }
  std::ranges::reverse(points_);
  if (points_.empty()) return;
  const CurvePoint last = points_.back();
  if (last.x > 0) last_slope_ = last.y / last.x / 2;
  if (points_.size() > 1) {
    const CurvePoint before = points_[points_.size() - 2];
    last_slope_ = std::max(last_slope_, (last.y - before.y) / (last.x - before.x));
  }
}

double Curve::at(double x) const {
  VOLLEY_CHECK(!points_.empty());
  const auto above = std::ranges::upper_bound(points_, x, {}, &CurvePoint::x);
  if (above == points_.begin()) return points_.front().y;
  const CurvePoint& low = *std::prev(above);
  if (above == points_.end()) return low.y + (x - low.x) * last_slope_;
  return low.y + (above->y - low.y) * (x - low.x) / (above->x - low.x);
}

}  // namespace volley::spec
