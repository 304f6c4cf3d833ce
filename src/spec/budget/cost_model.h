// What a round costs, in seconds, as a function of its shape: measured at the start (measure.h) or read from a cache,
// refreshed by every round that runs.
#pragma once

#include <volley/result.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spec/budget/curve.h"

namespace volley::spec {

struct RoundShape {
  int32_t requests = 0;     // that decode
  int32_t draft = 0;        // tokens drafted for each of them; 0: the drafter does not run
  int32_t verify_rows = 0;  // rows of the target's pass that belong to them, last tokens included
  int32_t other_rows = 0;   // rows of prompts in the same pass
  int64_t kv_tokens = 0;    // positions that the decoding requests attend to, in all
};

struct RoundSeconds {
  double draft = 0;  // the drafter's pass
  double rest = 0;   // everything after it
  double total() const { return draft + rest; }
};

struct CostSample {
  RoundShape shape;
  RoundSeconds seconds;
  double experts = 0;  // distinct ones that the target's pass touched, summed over its layers
};

// What the target's pass reads beside what every pass does: the experts that its rows are routed to.
struct ExpertCosts {
  int32_t layers = 0;  // that have experts; 0: none has
  int32_t count = 0, top_k = 0;
  double seconds = 0;  // for each distinct expert

  // Distinct experts of `rows` rows that choose independently, in all layers.
  double distinct(double rows) const;
};

// Seconds for each position that a decoding request attends to.
struct KvCosts {
  double draft = 0;  // in the drafter's pass
  double rest = 0;   // in the target's: to read it
  double row = 0;    // in the target's, for each row of the request: to multiply with it
};

// draft = speed * factor[length] * curve[length](requests) + kv_tokens * kv.draft
// rest  = speed * (factor(rows) * curve(rows) + factor * experts.seconds * experts.distinct(rows))
//         + kv_tokens * (kv.rest + kv.row * rows of a request)
// Curves are what was measured, and stay. Lengths between two that were measured lie between their times. Plain rounds
// are not told from others with as many rows: what they differ by is less than what noise would make of two curves.
// Speed, factors and kv are learned from the rounds that run, each with a variance that says how little is known of it:
// of an error those take most that are known least and matter most (a Kalman filter that knows no covariances). Speed,
// which changes no choice, drifts fast: so a machine that is slower for a while is not mistaken for a shape that is
// dear.
class CostModel {
 public:
  // From measurements at a grid of shapes with short contexts. REQUIRES: one at least.
  // Staircases are the caller's: predict() between two recorded sizes is between their times, so ask for the size that
  // will run.
  // experts: without seconds, which the samples say: what a pass takes for each expert more than another touched.
  // Made-up rows may agree on their experts; what is predicted is for rows that choose independently, until rounds
  // teach otherwise.
  CostModel(std::vector<CostSample> samples, KvCosts kv, ExpertCosts experts = {});

  RoundSeconds predict(const RoundShape& shape) const { return {predict_draft(shape), predict_rest(shape)}; }
  double predict_draft(const RoundShape& shape) const;
  double predict_rest(const RoundShape& shape) const;

  // A round that ran. One outlier (another program on the machine) moves little; a lasting change is followed. Rounds
  // with prompts are ignored: their times are mostly the prompts'.
  void observe(const RoundShape& shape, const RoundSeconds& seconds);

  // As JSON text, for a cache file. `key` says what it was measured for (device, model shapes, build); from_text
  // answers kFailedPrecondition for another key and kDataLoss for text that is none.
  std::string to_text(std::string_view key) const;
  static Result<CostModel> from_text(std::string_view text, std::string_view key);

 private:
  struct Factor {
    double value = 1;
    double variance = 0;  // of its logarithm
  };
  // A factor that had a part in a time, and that part.
  struct Share {
    Factor* factor;
    double part;
  };
  // Corrections of a curve over rows: at every half octave, linear between.
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
    Curve seconds;  // over requests
    Factor factor = {};
  };
  // A length of drafts between two that were measured.
  struct Length {
    size_t low = 0, high = 0;  // indices into drafts_
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

  // Variance of a time's logarithm that nothing explains, and from how many times it was estimated while they were few.
  struct Noise {
    double variance = 0;
    int32_t seen = 0;
  };

  CostModel() { forget_variances(); }
  void complete_drafts();
  void forget_variances();
  void drift(int32_t requests);
  static void learn(std::span<const Share> shares, double error, Noise& noise);
  bool sane() const;  // of what was read from a file
  Length find(int32_t draft_length) const;
  DraftParts draft_parts(const RoundShape& shape) const;
  RestParts rest_parts(const RoundShape& shape) const;

  std::vector<DraftCurve> drafts_;  // ascending lengths
  Curve rest_;                      // over rows
  RowFactors row_factors_;
  KvCosts kv_;  // as guessed; its factors:
  Factor kv_draft_, kv_rest_, kv_row_;
  ExpertCosts experts_;
  Factor experts_differ_;  // how many are touched, of those that independent rows would
  Factor speed_;
  int32_t last_requests_ = 0;  // of the last round that was observed
  Noise draft_noise_, rest_noise_;
};

}  // namespace volley::spec
