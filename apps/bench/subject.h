// What `volley bench` measures.
#pragma once

#include <volley/engine.h>

#include <memory>

#include "decode/proposer_spec.h"
#include "families/family.h"

namespace volley::apps {

// An engine, and what a step's floor needs to know of its models.
struct BenchSubject {
  Speculation speculation = Speculation::kOff;
  std::unique_ptr<Engine> engine;
  families::TargetConfig target;
  std::shared_ptr<const decode::ProposerSpec> draft;  // null: none

  bool drafts() const { return speculation == Speculation::kOn; }
};

}  // namespace volley::apps
