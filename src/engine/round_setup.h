// The round that an engine of these models runs.
#pragma once

#include <memory>

#include "engine/models.h"
#include "spec/round.h"

namespace volley::engine {

// Takes loaded.proposer; the rest of `loaded`, and the device, must outlive the round. Errors as Round::create().
Result<std::unique_ptr<spec::Round>> make_round(Device& device, const EngineOptions& options,
                                                const ResolvedModels& models, LoadedModels& loaded,
                                                const Progress& progress);

// What lives on a device, in the order in which it is made; it goes in the opposite one. REQUIRES of an assignment:
// there is nothing yet.
struct DeviceParts {
  std::unique_ptr<Device> device;
  LoadedModels models;
  std::unique_ptr<spec::Round> round;

  void reset() {
    round.reset();
    models = {};
    device.reset();
  }
};

// All of it. Errors as make_device(), load_models() and make_round(); a DeviceFault or std::bad_alloc meanwhile is
// kUnavailable.
Result<DeviceParts> make_device_parts(const EngineOptions& options, const ResolvedModels& models,
                                      const Progress& progress);

// Memory of the device that the round takes, found by making one on a device that has neither memory nor kernels; no
// weight is read. models: all but `memory`. Errors as load_models() and make_round().
struct StepBytes {
  int64_t memory = 0;  // to the byte
  int64_t graphs = 0;  // that the driver takes for recorded graphs, at most
};
Result<StepBytes> measure_step(const EngineOptions& options, const ResolvedModels& models);

}  // namespace volley::engine
