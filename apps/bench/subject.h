// What `volley bench` measures.
#pragma once

#include <volley/engine.h>

#include <memory>

#include "families/family.h"
#include "spec/proposer_spec.h"

namespace volley::apps {

// An engine, and what a step's floor needs to know of its models.
struct BenchSubject {
  Speculation speculation = Speculation::kOff;
  std::unique_ptr<Engine> engine;
  families::TargetConfig target;
  std::shared_ptr<const spec::ProposerSpec> draft;  // null: none

  bool drafts() const { return speculation == Speculation::kOn; }
};

}  // namespace volley::apps
