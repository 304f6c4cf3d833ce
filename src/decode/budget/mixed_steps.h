// The part of the cost model (cost_model.h) that knows steps in which prompts share the pass with decoding requests. It
// learns from the steps that run. Arithmetic only: times come in.
#pragma once

#include <array>
#include <cstdint>

namespace volley::decode {

// What rows of prompts add to a step, in seconds: for each row, and for each position that a row sees.
struct PromptPrice {
  double row = 0, position = 0;
};

// seconds = base + row * prompt rows + position * positions that they see
//
// base is what the step takes for the requests that decode; it moves with the load and with what is verified. Where the
// curves of the cost model predict it, only its factor is learned. An extended Kalman filter follows the logarithms of
// the three, with their covariances: rows and positions of a long prompt grow together, and it takes both its ends to
// tell what each of them costs.
class MixedSteps {
 public:
  struct Step {
    int32_t decode_rows = 0;  // rows of the requests that decode
    double decoding_s = 0;    // the prediction for them; ignored where the base is learned
    int32_t prompt_rows = 0;
    double prompt_positions = 0;
  };

  // typical_s: about how long a step with prompts takes, from which the first prices are guessed; 0: there are none,
  // and nothing is learned. predicted: whether Step::decoding_s is given.
  MixedSteps(double typical_s, bool predicted);

  bool priced() const { return costs_[kRow] > 0; }
  PromptPrice price() const { return {costs_[kRow], costs_[kPosition]}; }
  // What the decoding requests take of a step, where decoding_s is predicted for them.
  double base(double decoding_s) const { return costs_[kBase] * (predicted_ ? decoding_s : 1); }
  // base() as a multiple of the prediction; 1 where the base is learned.
  double base_factor() const { return predicted_ ? costs_[kBase] : 1; }
  // What the device takes at least for the step: two standard deviations less than is expected, and for no more prompt
  // rows and no longer decoding than were seen of late. 0: there are no prices.
  double at_least(const Step& step) const;
  // A step that ran, alone on the device.
  void observe(const Step& step, double seconds);

 private:
  enum { kBase, kRow, kPosition, kCosts };
  using Vector = std::array<double, kCosts>;
  struct Expected {
    double seconds = 0;
    Vector parts = {};    // of the whole, which is also how its logarithm moves with those of the costs
    Vector known = {};    // covariance * parts
    double variance = 0;  // of the logarithm
  };
  Expected expect(const Step& step) const;

  bool predicted_;
  Vector costs_;  // of the base: its factor, where it is predicted
  Vector drift_;
  std::array<Vector, kCosts> covariance_ = {};  // of the costs' logarithms
  int32_t base_rows_ = 0;                       // that decoded in the last step that tells of a base that is learned
  double prompt_rows_ = 0, decoding_s_ = 0;     // the most of a step of late
};

}  // namespace volley::decode
