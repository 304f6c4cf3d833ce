// A measured function of one number.
#pragma once

#include <span>
#include <vector>

namespace volley::spec {

struct CurvePoint {
  double x = 0, y = 0;
};

// A time, linear between the points it was measured at and never falling: whatever disturbs a measurement adds to it,
// so where something larger was faster, the smaller one takes no longer either, and of one size the fastest time
// counts. Before the first point it is constant; behind the last it goes on with the last slope, or with half of the
// last y / x if that is steeper: where little could be measured, doing more must not look free.
class Curve {
 public:
  Curve() = default;
  explicit Curve(std::vector<CurvePoint> points);

  double at(double x) const;  // REQUIRES: !empty()
  bool empty() const { return points_.empty(); }
  std::span<const CurvePoint> points() const { return points_; }

 private:
  std::vector<CurvePoint> points_;  // ascending
  double last_slope_ = 0;
};

}  // namespace volley::spec
