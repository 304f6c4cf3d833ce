// The engine that `volley bench` measures.
#pragma once

#include <volley/engine.h>

#include <memory>

#include "decode/proposer_spec.h"
#include "families/family.h"

namespace volley::apps {

// An engine, and the facts of its models that a step's floor needs.
struct BenchSubject {
  Speculation speculation = Speculation::kOff;
  std::unique_ptr<Engine> engine;
  families::TargetConfig target;
  std::shared_ptr<const decode::ProposerSpec> draft;  // may be null; of two the first, which the floor counts

  bool drafts() const { return speculation == Speculation::kOn; }
};

}  // namespace volley::apps
