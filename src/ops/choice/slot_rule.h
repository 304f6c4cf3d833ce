// The parts of a slot's parameters that the rule reads, resolved once, for both devices.
#pragma once

#include "ops/choice/choice.h"

namespace volley::ops::choice {

struct SlotRule {
  bool greedy = false;
  float divisor = 1.0f;    // the temperature, or 1 when greedy
  int32_t top_k = 0;       // 0: off
  double log_min_p = 0.0;  // meaningful when params.min_p > 0
  bool penalised = false;  // some penalty is set; only then are tokens counted
};

// Also checks the parameters: the engine has validated users' input, so a violation is our bug.
SlotRule resolve(const SlotSampling& sampling, int32_t vocab);

}  // namespace volley::ops::choice
