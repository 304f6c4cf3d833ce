// The one model of what a step of the engine takes, in seconds, as a function of its shape: measured at the start
// (measure.h), read from a cache or not known, and refreshed by every step that runs. A round is a step without
// prompts.
#pragma once

#include <volley/result.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decode/budget/mixed_steps.h"

namespace volley::decode {

// A measured point of a function of one number.
struct CurvePoint {
  double x = 0, y = 0;
};

// A time that is linear between measured points and never falls. Disturbances only add time, so a smaller shape takes
// no longer than a larger one, and the fastest run of a size counts. The time is constant before the first point.
// Behind the last it continues with the last slope, or with half of the last y / x if that is steeper, so that
// unmeasured work does not look free.
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

struct RoundShape {
  int32_t requests = 0;         // requests that decode
  int32_t draft = 0;            // tokens drafted for each of them; 0: the drafter does not run
  int32_t verify_rows = 0;      // rows of the target's pass that belong to them, last tokens included
  int32_t other_rows = 0;       // rows of prompts in the same pass
  int64_t kv_tokens = 0;        // positions that the decoding requests attend to, in all
  int64_t other_positions = 0;  // that the rows of prompts see, each those before it and itself
  int32_t drafter = 0;          // the one that drafts
};

struct RoundSeconds {
  double draft = 0;  // the drafter's pass
  double rest = 0;   // the rest of the round
  double total() const { return draft + rest; }
};

struct CostSample {
  RoundShape shape;
  RoundSeconds seconds;
  double experts = 0;  // distinct experts that the target's pass touched, summed over its layers
};

// The target reads only the experts that its rows are routed to, so this cost depends on the rows.
struct ExpertCosts {
  int32_t layers = 0;  // layers with experts; 0: no experts
  int32_t count = 0, top_k = 0;
  double seconds = 0;  // per distinct expert

  // Distinct experts that `rows` independently routed rows touch, summed over layers.
  double distinct(double rows) const;
};

// Seconds for each position that a decoding request attends to.
struct KvCosts {
  std::vector<double> draft;  // per position, in each drafter's pass
  double rest = 0;            // per position, for the target to read it
  double row = 0;             // per position and row of the request, for the target to multiply with it
};

// draft = speed * factor[length] * curve[length](requests) + kv_tokens * kv.draft, with those of the drafter
// rest  = speed * (factor(rows) * curve(rows) + factor * experts.seconds * experts.distinct(rows))
//         + kv_tokens * (kv.rest + kv.row * rows of a request)
// Curves are the measurements and do not change. Times of lengths between two measured ones are interpolated. Plain
// rounds share a curve with other rounds of as many rows: their difference is smaller than the noise between two
// curves. Speed, factors and kv are learned from the rounds that run, each with a variance for its uncertainty. An
// error is attributed mostly to the parameters that are least certain and matter most (a Kalman filter without
// covariances). Speed, which changes no choice, drifts fast: so a machine that is slower for a while does not make a
// shape seem expensive.
//
// A step with prompts takes what MixedSteps learns of it, whose base is draft + rest without other_rows.
class CostModel {
 public:
  // Nothing was measured: only whole steps are known, by what they teach. REQUIRES of predict(): measured().
  CostModel() { forget_variances(); }
  // From measurements at a grid of shapes with short contexts. REQUIRES: one at least. Staircases are the caller's:
  // predict() between two recorded sizes is between their times, so ask for the size that will run. experts: without
  // seconds, which are estimated from the samples as the time for each additional expert. Made-up rows may agree on
  // their experts; predictions assume rows that choose independently, until rounds show otherwise.
  CostModel(std::vector<CostSample> samples, KvCosts kv, ExpertCosts experts = {});

  bool measured() const { return !rest_.empty(); }

  // other_rows count like verify_rows here: how a pass's time grows with its rows.
  RoundSeconds predict(const RoundShape& shape) const { return {predict_draft(shape), predict_rest(shape)}; }
  double predict_draft(const RoundShape& shape) const;
  double predict_rest(const RoundShape& shape) const;

  // Whole steps. expect_steps() comes first; typical_s: MixedSteps's, which counts until there are prices. by_shape:
  // whether predict() holds in them. REQUIRES: measured(), for by_shape.
  void expect_steps(double typical_s, bool by_shape);
  // What the decoding requests take of such a step; 0: nobody decodes.
  double decoding(const RoundShape& shape) const;
  // decoding() as a multiple of predict(), 1 where that does not hold.
  double decoding_factor() const { return mixed_.base_factor(); }
  PromptPrice prompt_price() const { return mixed_.price(); }
  double at_least(const RoundShape& shape) const { return mixed_.at_least(mixed(shape)); }  // MixedSteps::at_least()

  // A step that ran. One outlier (another program on the machine) moves little; a lasting change is followed. Those
  // with prompts teach nothing of rounds: their times are mostly the prompts'.
  void observe(const RoundShape& shape, const RoundSeconds& seconds);

  // JSON text for a cache file. `key` identifies device, model shapes and build; from_text returns kFailedPrecondition
  // for another key and kDataLoss for invalid text.
  std::string to_text(std::string_view key) const;
  static Result<CostModel> from_text(std::string_view text, std::string_view key);

 private:
  struct Factor {
    double value = 1;
    double variance = 0;  // variance of the factor's logarithm
  };
  // A factor of a predicted time, and its share of it.
  struct Share {
    Factor* factor;
    double part;
  };
  // A correction stands at every half octave of rows; between two it is linear.
  static constexpr int kKnots = 32;
  struct Knot {
    int index = 0;
    double above = 0;  // weight of the next knot
  };
  using RowFactors = std::array<Factor, kKnots>;
  static Knot knot_of(double rows);
  static double factor_at(const RowFactors& factors, double rows);
  struct DraftCurve {
    int32_t length = 0;
    Curve seconds;  // over the number of requests
    Factor factor = {};
  };
  struct Drafter {
    std::vector<DraftCurve> curves;  // ascending lengths
    double kv = 0;                   // seconds per position: an initial guess, and the factor that corrects it
    Factor kv_factor = {};
  };
  // A draft length between two measured ones.
  struct Length {
    size_t low = 0, high = 0;  // indices into Drafter::curves
    double above = 0;          // weight of high
  };
  struct DraftParts {
    double pass = 0, kv = 0;
    double seconds() const { return pass + kv; }
  };
  struct RestParts {
    double rows = 0, experts = 0, kv_read = 0, kv_row = 0;
    double seconds() const { return rows + experts + kv_read + kv_row; }
  };

  // `seen` counts the times that the variance was estimated from, while they are few.
  struct Noise {
    double variance = 0;
    int32_t seen = 0;
  };

  MixedSteps::Step mixed(const RoundShape& shape) const;
  static void complete_drafts(std::vector<DraftCurve>& drafts);
  void forget_variances();
  void drift(int32_t requests);
  static void learn(std::span<const Share> shares, double error, Noise& noise);
  bool sane() const;  // checks what was read from a file
  const Drafter& drafter_of(const RoundShape& shape) const;
  static Length find(const Drafter& drafter, int32_t draft_length);
  DraftParts draft_parts(const RoundShape& shape) const;
  RestParts rest_parts(const RoundShape& shape) const;

  std::vector<Drafter> drafters_;
  Curve rest_;  // over the number of rows
  RowFactors row_factors_;
  double kv_rest_s_ = 0, kv_row_s_ = 0;  // initial guesses; the factors that correct them:
  Factor kv_rest_, kv_row_;
  ExpertCosts experts_;
  Factor experts_differ_;  // ratio of touched experts to those that independent rows would touch
  Factor speed_;
  int32_t last_requests_ = 0;  // in the last observed round
  Noise draft_noise_, rest_noise_;
  MixedSteps mixed_ = {0, false};
};

}  // namespace volley::decode
