// Keeps requests decoding together while a measurement reads the engine's counters. Threads: one.
#pragma once

#include <volley/engine.h>

#include <chrono>
#include <functional>
#include <vector>

#include "apps/client/request_pool.h"
#include "apps/interrupt.h"

namespace volley::apps {

class Occupancy {
 public:
  using Sample = std::function<void(const EngineStats&)>;

  // Both must outlive it. `sample`: called with each snapshot of the counters, which may skip steps; may be empty.
  Occupancy(Engine& engine, InterruptWatch* interrupt, Sample sample = {});
  ~Occupancy();  // drains

  // Starts the requests and waits until all of them decode. Errors: a request was refused or has ended;
  // kFailedPrecondition when the engine does not run this many at once.
  Status fill(std::vector<GenerateRequest> requests);
  // Waits until the engine has made `steps` passes since its start, and returns the counters then, or a little later.
  // After an interrupt it returns the current ones. Error: a request ended before, or was preempted.
  Result<EngineStats> wait_for(int64_t steps);
  void drain();  // cancels the requests and waits until the engine is idle. REQUIRES: no other requests

 private:
  Status check_all_run(const EngineStats& stats) const;
  EngineStats look();

  Engine& engine_;
  InterruptWatch& interrupt_;
  Sample sample_;
  RequestPool pool_;
  InterruptScope scope_;
  int64_t requests_ = 0;
};

}  // namespace volley::apps
