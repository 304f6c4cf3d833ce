#include "engine/start/round_setup.h"

#include "device/dry_run.h"

namespace volley::engine {

Result<std::unique_ptr<decode::Round>> make_round(Device& device, const EngineOptions& options,
                                                  const ResolvedModels& models, LoadedModels& loaded,
                                                  const Progress& progress, const RankPlace& place) {
  decode::RoundConfig config;
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
  config.masks = place.masks;
  config.rank = place.rank;
  config.exchange = place.exchange;
  const auto recorded = [&](double fraction) {
    if (progress) progress("Recording graphs", fraction);
  };
  return decode::Round::create(device, *loaded.target, *loaded.kv, std::move(loaded.drafters), config, recorded);
}

Result<StepBytes> measure_step(const EngineOptions& options, const ResolvedModels& models) {
  StepBytes bytes;
  comm::Group group(1);
  if (models.ranks > 1) group = comm::make_dry_group(models.ranks, models.first_rank(), models.local_ranks());
  for (int i = 0; i < models.ranks_sharing_memory(); ++i) {
    const bool cpu = models.device.kind == DeviceKind::kCpu;
    const auto device = cpu ? std::make_unique<DryDevice>(threads_of_rank(options.threads, i, models.local_ranks()))
                            : std::make_unique<DryDevice>(models.device.gpu);
    RankPlace place = {models.first_rank() + i, group[static_cast<size_t>(i)].get(), nullptr, nullptr};
    std::unique_ptr<comm::RowExchange> exchange;
    if (models.expert_replicas > 1) {
      exchange =
          comm::make_dry_row_exchange(models.expert_replica, models.expert_replicas, models.max_num_batched_tokens);
      place.exchange = exchange.get();
    }
    VOLLEY_ASSIGN(LoadedModels loaded, load_models(*device, models, options.draft_window, {}, place));
    for (const decode::Drafter& drafter : loaded.drafters) bytes.memory += drafter.proposer->slot_bytes();
    const int64_t before = device->bytes();
    if (place.group != nullptr) VOLLEY_RETURN_IF_ERROR(place.group->prepare(*device));
    VOLLEY_ASSIGN(const auto round, make_round(*device, options, models, loaded, {}, place));
    bytes.memory += device->bytes() - before;
    bytes.graphs += device->graph_bytes();
    if (exchange != nullptr) bytes.exchange = static_cast<int64_t>(exchange->common().peak());
  }
  return bytes;
}

}  // namespace volley::engine
