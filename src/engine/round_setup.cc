#include "engine/round_setup.h"

#include <new>

#include "device/dry_run.h"
#include "device/fault.h"

namespace volley::engine {

Result<std::unique_ptr<spec::Round>> make_round(Device& device, const EngineOptions& options,
                                                const ResolvedModels& models, LoadedModels& loaded,
                                                const Progress& progress) {
  spec::RoundConfig config;
  config.slots = models.max_num_seqs;
  config.max_rows = models.max_num_batched_tokens;
  config.max_positions = models.max_positions();
  config.page_size = models.page_size;
  config.logit_rows = logit_rows(models.device.kind);
  config.graphs = options.graphs;
  config.profile = options.profile;
  config.simulate_routing = options.simulate_routing;
  config.mask_timeout = std::chrono::milliseconds(options.grammar_mask_timeout_ms);
  config.draft_lengths = models.draft_lengths;
  const auto recorded = [&](double fraction) {
    if (progress) progress("Recording graphs", fraction);
  };
  return spec::Round::create(device, *loaded.target, *loaded.kv, std::move(loaded.proposer), config, recorded);
}

Result<DeviceParts> make_device_parts(const EngineOptions& options, const ResolvedModels& models,
                                      const Progress& progress) {
  try {
    DeviceParts parts;
    VOLLEY_ASSIGN(parts.device, make_device(models.device, options.threads));
    VOLLEY_ASSIGN(parts.models, load_models(*parts.device, models, options.draft_window, progress));
    VOLLEY_ASSIGN(parts.round, make_round(*parts.device, options, models, parts.models, progress));
    return parts;
  } catch (const DeviceFault& fault) {
    return Error{ErrorCode::kUnavailable, fault.what()};
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kUnavailable, "There is no memory to load the models again."};
  }
}

Result<StepBytes> measure_step(const EngineOptions& options, const ResolvedModels& models) {
  const bool cpu = models.device.kind == DeviceKind::kCpu;
  const auto device = cpu ? std::make_unique<DryDevice>(options.threads > 0 ? options.threads : usable_cores())
                          : std::make_unique<DryDevice>(models.device.gpu);
  VOLLEY_ASSIGN(LoadedModels loaded, load_models(*device, models, options.draft_window, {}));
  const int64_t before = device->bytes();
  VOLLEY_ASSIGN(const auto round, make_round(*device, options, models, loaded, {}));
  return StepBytes{device->bytes() - before, device->graph_bytes()};
}

}  // namespace volley::engine
