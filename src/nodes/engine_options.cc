#include "nodes/engine_options.h"

#include <type_traits>

namespace volley::nodes {
namespace {

constexpr size_t kMostText = 64 << 10;
constexpr uint32_t kMostPhases = 4096;

template <typename Visit, typename... Fields>
void visit_each(const Visit& visit, Fields&... fields) {
  (visit(fields), ...);
}

// An option that is added does not compile until it is named here.
template <typename Options, typename Visit>
void for_each_option(Options& options, const Visit& visit) {
  auto& [model_dir, draft_dir, device, dtype, kv_cache_dtype, attention_backend, draft_attention_backend, threads,
         tensor_parallel_size, tensor_parallel_parts, nnodes, node_rank, master_addr, master_port,
         enable_expert_parallel, data_parallel_size, skip_tokenizer, speculation, block_size, quantization,
         draft_quantization, draft_window, draft_window_mask, page_size, kv_pages, kv_memory_bytes, memory_fraction,
         max_num_seqs, max_num_batched_tokens, prefill_chunk, target_step_ms, max_model_len, max_queue, prefix_cache,
         state_snapshot_tokens, state_snapshot_memory_bytes, mmap, grammar_mask_timeout_ms, grammar_compile_timeout_ms,
         grammar_memory_bytes, dummy_weights, graphs, profile, simulate_routing, simulate_acceptance, verify,
         cost_cache_dir, step_timeout_s, restart_on_device_error, device_command, on_device_failure, on_warning,
         on_cache_events] = options;
  visit_each(visit, model_dir, draft_dir, device, dtype, kv_cache_dtype, attention_backend, draft_attention_backend,
             threads, tensor_parallel_size, tensor_parallel_parts, nnodes, node_rank, master_addr, master_port,
             enable_expert_parallel, data_parallel_size, skip_tokenizer, speculation, block_size, quantization,
             draft_quantization, draft_window, draft_window_mask, page_size, kv_pages, kv_memory_bytes, memory_fraction,
             max_num_seqs, max_num_batched_tokens, prefill_chunk, target_step_ms, max_model_len, max_queue,
             prefix_cache, state_snapshot_tokens, state_snapshot_memory_bytes, mmap, grammar_mask_timeout_ms,
             grammar_compile_timeout_ms, grammar_memory_bytes, dummy_weights, graphs, profile, simulate_routing,
             simulate_acceptance, verify, cost_cache_dir, step_timeout_s, restart_on_device_error);
}

struct Put {
  void operator()(const std::string& value) const { w.put_string(value); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void operator()(const T& value) const { w.put(value); }
  template <typename T>
  requires std::is_enum_v<T>
  void operator()(const T& value) const { w.put(static_cast<std::underlying_type_t<T>>(value)); }
  template <typename T>
  void operator()(const std::optional<T>& value) const {
    w.put(value.has_value());
    if (value) (*this)(*value);
  }
  void operator()(const VerifyPolicy& value) const { visit_each(*this, value.kind, value.tokens); }
  void operator()(const SimulatedAcceptance& value) const {
    visit_each(*this, value.confidence_odds);
    w.put(static_cast<uint32_t>(value.phases.size()));
    for (const auto& phase : value.phases) visit_each(*this, phase.from_step, phase.p);
  }

  net::ByteWriter& w;
};

struct Take {
  void operator()(std::string& value) const { value = r.take_string(kMostText, "an option"); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) const { value = r.take<T>(); }
  template <typename T>
  requires std::is_enum_v<T>
  void operator()(T& value) const { value = static_cast<T>(r.take<std::underlying_type_t<T>>()); }
  template <typename T>
  void operator()(std::optional<T>& value) const {
    if (r.take<bool>()) (*this)(value.emplace());
  }
  void operator()(VerifyPolicy& value) const { visit_each(*this, value.kind, value.tokens); }
  void operator()(SimulatedAcceptance& value) const {
    visit_each(*this, value.confidence_odds);
    value.phases.resize(r.take_within<uint32_t>(0, kMostPhases, "the number of phases"));
    for (auto& phase : value.phases) visit_each(*this, phase.from_step, phase.p);
  }

  net::ByteReader& r;
};

}  // namespace

void put_options(net::ByteWriter& w, const EngineOptions& options) {
  for_each_option(options, Put{w});
}

EngineOptions take_options(net::ByteReader& r) {
  EngineOptions options;
  for_each_option(options, Take{r});
  return options;
}

}  // namespace volley::nodes
