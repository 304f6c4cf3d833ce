// What `volley bench` measures.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>

#include "model/spec.h"

namespace volley::apps {

// An engine, and what a step's floor needs to know of its models.
struct BenchSubject {
  Speculation speculation = Speculation::kOff;
  std::unique_ptr<Engine> engine;
  model::DecoderSpec target;
  std::optional<model::DraftSpec> draft;

  bool drafts() const { return speculation == Speculation::kDFlash; }
};

}  // namespace volley::apps
