#include "engine/start/cost_cache.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "decode/budget/measure.h"
#include "model/kv_memory.h"
#include "model/shard.h"

namespace volley::engine {
namespace {

namespace fs = std::filesystem;

// Such files have some 10 KB. A larger one is no cost file, and is replaced.
constexpr size_t kMaxCostBytes = 4 << 20;

// Identifies the program or library that contains this code, because another build has other kernels and times. For a
// program the loader may know only the word that it was called by.
std::string build_id() {
  Dl_info info = {};
  struct stat file = {};
  if (::dladdr(reinterpret_cast<const void*>(&build_id), &info) == 0) return "";
  const bool is_path = std::strchr(info.dli_fname, '/') != nullptr;
  if (::stat(is_path ? info.dli_fname : "/proc/self/exe", &file) != 0) return "";
  return std::to_string(file.st_size) + " " + std::to_string(file.st_mtim.tv_sec) + "." +
         std::to_string(file.st_mtim.tv_nsec);
}

// The kernel's name for the processor: its instruction set alone says little about its speed. Empty if unknown.
std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, name;
  while (std::getline(info, line) && !line.empty()) {  // lines of the first core
    for (const char* field : {"model name", "CPU implementer", "CPU part"}) {
      if (line.starts_with(field)) name += line.substr(line.find(':') + 1);
    }
  }
  return name;
}

// Makes the file's name from the key. The file also contains the key.
std::string fingerprint(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(hash));
  return hex;
}

// Writes all weights' shapes, the layers' windows, and a row's experts: models that agree in these cost the same.
void describe(std::ostream& out, const char* name, const model::Decoder& spec, std::span<const model::Param> params,
              const model::Numerics& numerics) {
  out << name << " hidden " << spec.hidden << " vocab " << spec.vocab << " storage "
      << ops::format_name(numerics.storage) << " activation " << dtype_name(numerics.activation) << " weights";
  for (const model::Param& param : params) out << " " << param.role << ":" << param.rows() << "x" << param.columns;
  out << " attention";
  for (const model::Layer& layer : spec.layers) {
    const model::MixerFacts mixer = layer.mixer_facts();
    const model::FfnFacts ffn = layer.ffn_facts();
    if (const auto& kv = mixer.kv) {
      out << " " << kv->heads << "/" << kv->kv_heads << "x" << kv->head_dim << ":" << kv->window;
    }
    if (mixer.state) out << " delta " << mixer.state->v_heads << "x" << mixer.state->k_dim;
    if (ffn.router) out << " top " << ffn.router->top_k << (ffn.by_expert ? " whole" : "");
  }
  out << "\n";
}

decode::MeasurePlan measure_plan(const ResolvedModels& models) {
  const model::Decoder& target = models.target.decoder;
  decode::MeasurePlan plan;
  plan.slots = models.max_num_seqs;
  plan.max_rows = models.max_num_batched_tokens;
  plan.page_size = models.page_size;
  plan.pages = models.memory.pages();
  plan.max_model_len = models.max_model_len;
  // A position's bytes, on all ranks together.
  const auto kv_bytes = [&](const model::Decoder& spec) {
    std::vector<model::KvShape> shapes = model::kv_shapes(model::shard_of(spec, 0, models.ranks));
    std::erase_if(shapes, [](const model::KvShape& shape) { return !shape.is_attention; });
    return static_cast<double>(models.ranks * model::kv_page_bytes(shapes, models.page_size, models.kv_dtype)) /
           models.page_size;
  };
  plan.target_kv_bytes = kv_bytes(target);
  for (const ResolvedDrafter& drafter : models.drafters) {
    plan.draft_kv_bytes.push_back(kv_bytes(drafter.facts().decoder));
  }
  // An embedding that is no output head is only read by single rows.
  const int64_t looked_up = target.tied_embeddings ? 0 : int64_t{target.vocab} * target.hidden;
  // A row reads only the experts that it is routed to. All layers of a family have the same number.
  int64_t not_routed = 0;
  for (const model::Layer& layer : target.layers) {
    const model::FfnFacts ffn = layer.ffn_facts();
    if (!ffn.router) continue;
    plan.experts.count = ffn.router->experts;
    plan.experts.top_k = ffn.router->top_k;
    ++plan.experts.layers;
    not_routed += int64_t{ffn.router->experts - ffn.router->top_k} * 3 * ffn.inner * target.hidden;
  }
  plan.experts_share = 1.0 / models.expert_replicas;
  plan.target_weight_bytes = static_cast<double>(model::count(model::params(target)) - looked_up - not_routed) *
                             ops::bytes_per_value(models.target_numerics.storage);
  plan.vocab = target.vocab;
  // A value of a latent is K's and V's.
  if (const auto kv = target.first_kv()) plan.heads_per_kv_head = kv->heads / kv->kv_heads * (kv->v_in_k > 0 ? 2 : 1);
  return plan;
}

}  // namespace

std::string cost_key(const ResolvedModels& models, const EngineOptions& options, const EngineInfo& info) {
  // Pages count only as the number of made-up requests that they hold. Otherwise the free memory of each start would
  // change the key, and no start would find its file.
  const decode::MeasurePlan plan = measure_plan(models);
  const int64_t requests = std::min<int64_t>(plan.slots, plan.pages / plan.pages_per_slot(models.block_size));
  std::ostringstream key;
  key << "device " << info.device << " " << info.instruction_set << " threads " << info.threads << " ranks "
      << models.ranks << (models.nodes > 1 ? "/" + std::to_string(models.nodes) : "") << processor() << "\n";
  if (models.expert_replicas > 1) key << "experts of " << models.expert_replicas << " replicas\n";
  if (options.restart_on_device_error) key << "in a process of its own\n";
  const model::Decoder& target = models.target.decoder;
  describe(key, "target", target, model::params(target), models.target_numerics);
  for (const ResolvedDrafter& drafter : models.drafters) {
    const decode::ProposerFacts& draft = drafter.facts();
    describe(key, "drafter", draft.decoder, draft.params, drafter.numerics);
    key << "proposals " << drafter.proposals << " attention " << static_cast<int>(drafter.numerics.attention) << " "
        << draft.architecture << " features";
    for (const int32_t layer : draft.feature_layers) key << " " << layer;
    key << " window " << options.draft_window << "\n";
  }
  key << "weights " << info.quantization << " " << info.draft_quantization << "\n";
  key << "block " << models.block_size << " slots " << models.max_num_seqs << " rows " << models.max_num_batched_tokens
      << " positions " << models.max_positions() << " page " << models.page_size << " kv "
      << dtype_name(models.kv_dtype) << " requests " << requests << " attention "
      << static_cast<int>(models.target_numerics.attention) << " logits " << logit_rows(models.device.kind)
      << " graphs " << (options.graphs && !options.profile) << " routing " << options.simulate_routing << "\n";
  key << "build " << build_id() << "\n";
  return key.str();
}

CostCache::CostCache(std::string dir, std::string key) : dir_(std::move(dir)), key_(std::move(key)) {
  if (!dir_.empty()) path_ = (fs::path(dir_) / ("rounds-" + fingerprint(key_) + ".json")).string();
}

std::optional<decode::CostModel> CostCache::read() const {
  if (path_.empty()) return std::nullopt;
  const Result<std::string> text = read_file(path_, kMaxCostBytes);
  if (!text.ok()) return std::nullopt;
  auto costs = decode::CostModel::from_text(*text, key_);
  if (!costs.ok()) return std::nullopt;
  return std::move(costs).value();
}

// Written to another name and renamed, so that a reader sees the old file or the new one.
Status CostCache::write(const decode::CostModel& costs) const {
  if (path_.empty()) return {};
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::kUnavailable, "What a step costs could not be kept in " + path_ + " (" + why +
                                              "), so the next start measures again: name another folder with "
                                              "--cost-cache, or none."};
  };
  std::error_code failed;
  fs::create_directories(dir_, failed);
  if (failed) return refuse(failed.message());
  const std::string draft = path_ + "." + std::to_string(::getpid()) + "." +
                            std::to_string(reinterpret_cast<uintptr_t>(this));  // distinguishes engines of one process
  errno = 0;
  std::ofstream file(draft);
  file << costs.to_text(key_);
  file.close();
  if (!file) {
    const std::string why = std::strerror(errno);
    fs::remove(draft, failed);
    return refuse(why);
  }
  fs::rename(draft, path_, failed);
  if (!failed) return {};
  const std::string why = failed.message();
  fs::remove(draft, failed);
  return refuse(why);
}

Result<decode::CostModel> round_costs(decode::StepExecutor& round, const ResolvedModels& models, const CostCache& cache,
                                      const Progress& progress, std::vector<std::string>& warnings) {
  if (std::optional<decode::CostModel> kept = cache.read()) return std::move(*kept);
  const auto report = [&](double fraction) {
    if (progress) progress("Measuring rounds", std::min(fraction, 1.0));
  };
  report(0);
  VOLLEY_ASSIGN(decode::CostModel costs, decode::measure_costs(round, measure_plan(models), report));
  report(1);
  if (const Status written = cache.write(costs); !written.ok()) warnings.push_back(written.error().message);
  return costs;
}

}  // namespace volley::engine
