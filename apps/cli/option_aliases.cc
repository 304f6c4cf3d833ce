#include "apps/cli/option_aliases.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <numeric>
#include <ranges>

namespace volley::apps {
namespace {

struct Alias {
  std::string_view theirs, ours;  // ours is empty if this program always works so
};

constexpr Alias kAliases[] = {
    // vLLM
    {"--gpu-memory-utilization", "--memory-fraction"},
    {"--num-gpu-blocks-override", "--kv-pages"},
    {"--enable-prefix-caching", ""},
    {"--no-enable-prefix-caching", "--no-prefix-cache"},
    {"--enable-chunked-prefill", ""},
    {"--enforce-eager", "--no-graphs"},
    {"--enable-auto-tool-choice", ""},
    {"--uvicorn-log-level", "--log-level"},
    {"-tp", "--tensor-parallel-size"},
    {"-dp", "--data-parallel-size"},
    {"-ep", "--enable-expert-parallel"},
    // SGLang
    {"--model-path", "--model"},
    {"--mem-fraction-static", "--memory-fraction"},
    {"--context-length", "--max-model-len"},
    {"--max-running-requests", "--max-num-seqs"},
    {"--max-queued-requests", "--max-queue"},
    {"--chunked-prefill-size", "--prefill-chunk"},
    {"--speculative-draft-model-path", "--draft"},
    {"--disable-radix-cache", "--no-prefix-cache"},
    {"--disable-cuda-graph", "--no-graphs"},
    {"--tp-size", "--tensor-parallel-size"},
    {"--tp", "--tensor-parallel-size"},
    {"--dp-size", "--data-parallel-size"},
    {"--dp", "--data-parallel-size"},
    {"--enable-ep-moe", "--enable-expert-parallel"},
    {"--no-enable-expert-parallel", ""},
};

// SGLang's: a number of ranks, which has no counterpart here.
constexpr std::string_view kExpertSizes[] = {"--ep-size", "--ep", "--expert-parallel-size"};

// Options with another meaning or value here: an error says what to do instead. A row has all names of one option.
constexpr Alias kCounterparts[] = {
    // llama.cpp
    {"-m", "use --model DIR"},
    {"-hf -hfr --hf-repo", "use --model ORG/NAME, or --model ORG/NAME:Q4_K_M"},
    {"-md --model-draft", "use --draft DRAFTER, or --draft auto"},
    {"-a --alias", "use --served-model-name NAME"},
    {"-c --ctx-size", "use --max-model-len N"},
    {"-ngl --gpu-layers --n-gpu-layers", "all layers run on one device: use --device cuda or --device cpu"},
    {"-dev -mg --main-gpu", "use --device cuda:N"},
    {"-sm --split-mode -ts --tensor-split", "use --tensor-parallel-size N"},
    {"-p", "use --prompt TEXT of volley generate, or for a server --port"},
    {"-f --file", "use --prompt - of volley generate, which reads standard input, or its --input FILE.jsonl"},
    {"-n --predict --n-predict", "use --max-tokens N"},
    {"-t", "use --threads N"},
    {"-tb --threads-batch", "use --threads N, for prompts and answers alike"},
    {"-b --batch-size", "use --max-num-batched-tokens N"},
    {"-ub --ubatch-size", "use --prefill-chunk N"},
    {"-np --parallel", "use --max-num-seqs N"},
    {"-cb --cont-batching", "requests always join a running batch: leave it out"},
    {"-fa --flash-attn", "attention is always computed in tiles: leave it out"},
    {"-ctk --cache-type-k -ctv --cache-type-v", "use --kv-cache-dtype"},
    {"-s", "use --seed N"},
    {"--temp", "use --temperature X"},
    {"--repeat-penalty", "use --repetition-penalty X"},
    {"--draft-max --draft-n", "use --verify N for a fixed number; without it each step has its own"},
    {"-sys --system-prompt", "use --system TEXT of volley chat"},
    {"-cnv --conversation -i --interactive", "use volley chat"},
    {"--jinja", "chat templates are always read: leave it out"},
    {"--chat-template-file", "use --chat-template FILE"},
    {"--chat-template-kwargs", "use --default-chat-template-kwargs JSON"},
    {"--ssl-key-file", "use --ssl-keyfile FILE"},
    {"--ssl-cert-file", "use --ssl-certfile FILE"},
    {"-to --timeout", "use --request-timeout SECONDS"},
    {"--mlock", "weights stay in memory by --no-mmap"},
    {"-v", "use --log-level debug, or volley --version"},
    {"--verbose", "use --log-level debug"},
    {"--metrics", "metrics are always at /metrics: leave it out"},
    {"-j --json-schema", "use response_format of a request"},
    {"--grammar", "use structured_outputs of a request"},
    {"--lora", "adapters are not built"},
    {"--mmproj", "pictures need the model's folder of safetensors: a GGUF file's tower is not read"},
    {"--embeddings", "embeddings are not built"},
    // vLLM and SGLang
    {"--load-format", "use --dummy-weights SEED for random weights, and nothing for a checkpoint's"},
    {"--speculative-config --speculative-algorithm", "use --draft DRAFTER, or --draft auto"},
    {"--num-speculative-tokens --speculative-num-draft-tokens",
     "use --verify N for a fixed number; without it each step has its own"},
    {"--allowed-origins", "use --cors-origin ORIGIN"},
    {"--allowed-media-domains", "use --allow-image-hosts HOST"},
    {"--limit-mm-per-prompt", "a request may have 16 pictures: leave it out"},
    {"--mm-processor-kwargs", "use --max-picture-pixels N"},
    {"--max-prefill-tokens", "use --max-num-batched-tokens N"},
    {"--trust-remote-code", "code of a model's folder is never run: leave it out"},
    {"--revision", "use --model with the folder of that revision, from hf download --revision"},
    {"--download-dir", "the variable HF_HUB_CACHE says where models are looked for, and kept"},
    {"--hf-token", "the variable HF_TOKEN holds the token"},
    {"--disable-log-requests --disable-log-stats", "use --log-level warning"},
    {"--enable-metrics", "metrics are always at /metrics: leave it out"},
    {"-pp --pipeline-parallel-size --pp-size", "use --tensor-parallel-size N: layers are not divided among GPUs"},
    {"--swap-space", "a preempted request is computed again: leave it out"},
    {"--cpu-offload-gb", "weights on the CPU are not built: use --quantization fp8 or int4"},
    {"--enable-lora", "adapters are not built"},
    {"--random-seed", "use seed of a request"},
    {"--watchdog-timeout", "use --step-timeout SECONDS"},
    {"--max-logprobs", "a request may ask for 20: leave it out"},
    {"--enable-reasoning", "use --reasoning-parser, which knows by itself"},
    {"--guided-decoding-backend --grammar-backend", "grammars have one backend: leave it out"},
    {"-O --compilation-config", "nothing is compiled here: leave it out"},
    // Ollama and others
    {"--keepalive", "a model stays until volley ends: leave it out"},
    {"--num-ctx", "use --max-model-len N"},
    {"--num-predict", "use --max-tokens N"},
    {"--num-gpu", "all layers run on one device: use --device cuda or --device cpu"},
    {"--num-thread", "use --threads N"},
    {"--system-message", "use --system TEXT of volley chat"},
    {"--bind --listen", "use --host ADDRESS and --port PORT"},
};

// Letters to insert, delete, replace or swap (optimal string alignment).
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(now);
  }
  return last[b.size()];
}

// The option that undoes an alias for this program's normal behaviour; empty: none.
std::string opposite_of(const std::string& name) {
  if (name.starts_with("--no-")) return "--" + name.substr(5);
  const auto alias = std::ranges::find(kAliases, "--no-" + name.substr(2), &Alias::theirs);
  return alias == std::end(kAliases) ? "" : std::string(alias->ours);
}

}  // namespace

std::optional<bool> truth(std::string word) {
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "no", "off", "0"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

std::optional<std::pair<std::string, std::string>> split_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  int port = 0;
  const char* end = text.data() + text.size();
  const auto [read, failure] = std::from_chars(text.data() + colon + 1, end, port);
  if (failure != std::errc() || read != end || port < 1 || port > 65535) return std::nullopt;
  return std::pair(std::string(host), std::to_string(port));
}

std::vector<std::string> translate_aliases(std::vector<std::string> words) {
  std::vector<std::string> ours;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string& word = words[i];
    const std::string name = word.substr(0, word.find('='));
    const bool has_value = word.size() > name.size();
    if (name == kDistInitAddr && (has_value || i + 1 < words.size())) {
      if (const auto address = split_address(has_value ? word.substr(name.size() + 1) : words[i + 1])) {
        ours.push_back("--master-addr=" + address->first);
        ours.push_back("--master-port=" + address->second);
        i += has_value ? 0 : 1;
        continue;
      }
    }
    const auto alias = std::ranges::find(kAliases, name, &Alias::theirs);
    if (alias != std::end(kAliases) && alias->ours.empty()) {
      const std::optional<bool> on = has_value ? truth(word.substr(name.size() + 1)) : true;
      if (on.value_or(false)) continue;
      const std::string opposite = opposite_of(name);
      if (on.has_value() && !opposite.empty()) word = opposite;
    } else if (alias != std::end(kAliases)) {
      word.replace(0, name.size(), alias->ours);
    }
    ours.push_back(std::move(word));
  }
  return ours;
}

std::string_view instead_of(std::string_view option) {
  if (std::ranges::count(kExpertSizes, option) > 0) {
    return "use --enable-expert-parallel, which divides experts among all ranks of --tensor-parallel-size, or for 1 "
           "nothing";
  }
  for (const Alias& row : kCounterparts) {
    for (const auto& name : std::views::split(row.theirs, ' ')) {
      if (std::ranges::equal(name, option)) return row.ours;
    }
  }
  const auto alias = std::ranges::find(kAliases, option, &Alias::theirs);
  return alias != std::end(kAliases) && alias->ours.empty() ? "what it asks for is always so, leave it out" : "";
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  std::string nearest;
  size_t least = 1 + std::min<size_t>(3, word.size() / 3);
  for (const std::string& name : names) {
    const size_t distance = edits(word, name);
    const bool begins = word.size() >= 4 && name.starts_with(word);
    if (distance < least || (begins && nearest.empty())) {
      nearest = name;
      least = std::min(least, distance);
    }
  }
  return nearest;
}

}  // namespace volley::apps
