#include "engine/remote/node_setup.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <type_traits>

#include "base/file.h"
#include "base/mix.h"
#include "gguf/header.h"
#include "ops/cpu_features.h"

namespace volley::engine {
namespace {

namespace fs = std::filesystem;

// Machines start at different times and read from different disks.
constexpr std::chrono::minutes kPatience(10);

class Digest {
 public:
  void add(std::span<const std::byte> bytes) {
    size_ += bytes.size();
    for (const std::byte b : bytes) hash_ = (hash_ ^ static_cast<uint64_t>(b)) * 0x100000001b3u;  // FNV-1a
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  std::string text() const {
    char hex[17];
    std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(mix_bits(hash_ ^ size_)));
    return hex;
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u, size_ = 0;
};

// Covers the file's size, header and some of its data: enough to tell two trainings of one model apart.
Status add_weights(const std::string& path, Digest& digest) {
  constexpr size_t kBlock = 4096, kBlocks = 64;
  constexpr uint64_t kMostHeader = 100'000'000;
  VOLLEY_ASSIGN(const OpenFile file, open_regular_file(path));
  digest.add(std::to_string(file.bytes));
  uint64_t header = 0;
  VOLLEY_ASSIGN(const size_t got, read_at(file, 0, &header, sizeof(header), path));
  if (got < sizeof(header)) return {};  // loading reports what is wrong with the file
  std::vector<std::byte> bytes(std::min<uint64_t>({header, kMostHeader, file.bytes}));
  VOLLEY_ASSIGN(const size_t of_header, read_at(file, sizeof(header), bytes.data(), bytes.size(), path));
  digest.add(std::span(bytes).first(of_header));
  bytes.resize(kBlock);
  for (size_t i = 0; i < kBlocks; ++i) {
    VOLLEY_ASSIGN(const size_t n, read_at(file, file.bytes / kBlocks * i, bytes.data(), kBlock, path));
    digest.add(std::span(bytes).first(n));
  }
  return {};
}

Result<std::string> digest_of_folder(const std::string& dir, bool weights) {
  constexpr size_t kMostConfig = 64 << 20;
  if (fs::is_regular_file(dir)) {
    Digest digest;
    VOLLEY_ASSIGN(const gguf::File file, gguf::open_file(dir));
    for (const gguf::File::Part& part : file.parts) VOLLEY_RETURN_IF_ERROR(add_weights(part.path, digest));
    return digest.text();
  }
  std::vector<std::string> files;
  std::error_code failed;
  for (fs::directory_iterator file(dir, failed), end; !failed && file != end; file.increment(failed)) {
    if (weights && file->path().extension() == ".safetensors") files.push_back(file->path().filename().string());
  }
  std::ranges::sort(files);
  Digest digest;
  VOLLEY_ASSIGN(const std::string config, read_file((fs::path(dir) / "config.json").string(), kMostConfig));
  digest.add(config);
  for (const std::string& file : files) {
    digest.add(file);
    VOLLEY_RETURN_IF_ERROR(add_weights((fs::path(dir) / file).string(), digest));
  }
  return digest.text();
}

std::string numerics_text(const model::Numerics& numerics) {
  return std::string(dtype_name(numerics.activation)) + ", weights as " + ops::format_name(numerics.storage) +
         ", attention " + ops::attention_backend_name(numerics.attention);
}

// Formats a value as its option is written.
template <typename T>
std::string value_text(const EngineOption<T>& option, const EngineOptions& options) {
  const T& value = options.*option.field;
  if constexpr (std::is_same_v<T, bool>) {
    return value == std::string_view(option.name).starts_with("--no-") ? "no" : "yes";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(std::ranges::find(option.words, value, &Word<T>::value)->text);
  } else if constexpr (std::is_same_v<T, std::optional<uint64_t>>) {
    return value ? std::to_string(*value) : "none";
  } else {
    VOLLEY_CHECK(false);  // an option without text; node_facts() compares what follows from it
  }
}

}  // namespace

Result<std::vector<nodes::Fact>> node_facts(const EngineOptions& options, const ResolvedModels& models) {
  std::vector<nodes::Fact> facts;
  const auto add = [&](const char* name, const auto& value) {
    std::ostringstream text;
    text << value;
    facts.push_back({name, text.str()});
  };
  const bool cpu = models.device.kind == DeviceKind::kCpu;
  add("the version of Volley", VOLLEY_VERSION);
  for_each_option([&](const auto& option) {
    if (option.shared) add(option.name, value_text(option, options));
  });
  add("--device", cpu ? "cpu" : "cuda");
  if (cpu) {
    add("the processor's instruction set", ops::cpu_instruction_set());
  } else {
    add("the kind of GPU",
        std::to_string(models.device.gpu.compute_capability) + "/" + std::to_string(models.device.gpu.multiprocessors));
    if (models.nodes > 1) {
      VOLLEY_ASSIGN(const std::string nccl, comm::nccl_version());
      add("the version of NCCL", nccl);
    }
  }
  const bool random = options.dummy_weights.has_value();
  VOLLEY_ASSIGN(const std::string target, digest_of_folder(options.model_dir, !random));
  add("the files of --model", target);
  add("the target's arithmetic (--dtype, --quantization, --attention-backend)", numerics_text(models.target_numerics));
  add("--kv-cache-dtype", dtype_name(models.kv_dtype));
  add("speculation (--draft, --spec)", models.drafters.empty() ? "off" : "on");
  const std::vector<std::string> dirs = draft_dirs(options);
  for (size_t i = 0; i < models.drafters.size(); ++i) {
    VOLLEY_ASSIGN(const std::string draft, digest_of_folder(dirs[i], !random));
    add("the files of --draft", draft);
    add("the drafter's arithmetic (--draft-quantization, --draft-attention-backend)",
        numerics_text(models.drafters[i].numerics));
    add("--block-size", 1 + models.drafters[i].proposals);
    std::string lengths;
    for (const int32_t length : models.draft_lengths[i]) lengths += std::to_string(length) + " ";
    add("the lengths that are drafted (--verify)", lengths);
  }
  add("--max-model-len", models.max_model_len);
  // Where free memory chose these numbers, the nodes agree on them in meet_nodes(); they are no facts.
  const bool chosen = options.max_num_seqs == 0 && models.kv.slot_bytes() > 0;
  const auto add_unless = [&](bool by_memory, const char* name, int32_t value) {
    add(name, by_memory ? "as memory allows" : std::to_string(value));
  };
  add_unless(chosen, "--max-num-seqs", models.max_num_seqs);
  add_unless(chosen && options.max_num_batched_tokens == 0, "--max-num-batched-tokens", models.max_num_batched_tokens);
  add("--prefill-chunk", models.prefill_chunk);
  add("--page-size", models.page_size);
  add("--state-snapshot-tokens", models.snapshot_tokens);
  return facts;
}

Result<nodes::Links> meet_nodes(const EngineOptions& options, ResolvedModels& models) {
  nodes::Place place;
  place.nodes = models.nodes;
  place.node = models.node;
  place.ranks = models.ranks;
  place.master = {options.master_addr, static_cast<uint16_t>(options.master_port)};
  VOLLEY_ASSIGN(const std::vector<nodes::Fact> facts, node_facts(options, models));
  const int32_t slots = models.max_num_seqs;
  VOLLEY_ASSIGN(nodes::Links links, nodes::meet(place, facts, sizes_of(models), net::after(kPatience)));
  take_sizes(links.least, models);
  if (models.max_num_seqs < slots) {
    models.warnings.push_back("Another node has less memory for states of recurrent layers: --max-num-seqs is " +
                              std::to_string(models.max_num_seqs) + ".");
  }
  return links;
}

std::vector<int64_t> sizes_of(const ResolvedModels& models) {
  std::vector<int64_t> sizes;
  for (const kv::Group& group : models.kv.groups) sizes.push_back(group.pages);
  sizes.insert(sizes.end(), {models.kv.snapshots, models.max_num_seqs, models.max_num_batched_tokens});
  return sizes;
}

void take_sizes(std::span<const int64_t> sizes, ResolvedModels& models) {
  VOLLEY_CHECK_EQ(sizes.size(), models.kv.groups.size() + 3);
  for (size_t i = 0; i < models.kv.groups.size(); ++i) {
    models.kv.groups[i].pages = models.memory.groups[i].pages = sizes[i];
  }
  const auto rest = sizes.subspan(models.kv.groups.size());
  models.kv.snapshots = models.memory.snapshots = rest[0];
  models.memory.snapshot_bytes = models.kv.snapshots * models.kv.slot_bytes() * models.ranks_sharing_memory();
  models.kv.slots = models.max_num_seqs = models.memory.max_num_seqs = static_cast<int32_t>(rest[1]);
  models.memory.state_bytes = models.kv.state_bytes() * models.ranks_sharing_memory();
  models.max_num_batched_tokens = static_cast<int32_t>(rest[2]);
}

nodes::CallLimits call_limits(const ResolvedModels& models) {
  nodes::CallLimits limits;
  limits.slots = models.max_num_seqs;
  limits.max_rows = models.max_num_batched_tokens;
  limits.max_positions = models.max_positions();
  limits.page_size = models.page_size;
  limits.block_size = models.block_size;
  for (const ResolvedDrafter& drafter : models.drafters) limits.proposals.push_back(drafter.proposals);
  limits.vocab = models.target.decoder.vocab;
  limits.hidden = models.target.decoder.hidden;
  limits.vectors = 1 + models.target.decoder.added_layers;
  limits.rope_axes = models.target.decoder.has_rope_axes();
  limits.logit_rows = std::max(logit_rows(models.device.kind), models.block_size);
  limits.groups = models.kv.groups;
  limits.snapshots = models.kv.snapshots;
  if (const auto& tower = models.target.decoder.tower; tower && models.nodes == 1) {  // a node's ranks have none
    limits.picture_side = tower->rules.token_side();
    limits.picture_pixels = tower->rules.max_pixels;
  }
  return limits;
}

}  // namespace volley::engine
