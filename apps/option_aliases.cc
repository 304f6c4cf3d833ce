#include "apps/option_aliases.h"

#include <algorithm>
#include <numeric>

namespace volley::apps {
namespace {

struct Alias {
  std::string_view theirs, ours;  // ours is empty where it is how this program works anyway
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

// SGLang's: a number of ranks, which none has here.
constexpr std::string_view kExpertSizes[] = {"--ep-size", "--ep", "--expert-parallel-size"};

// Letters to insert, delete, replace or swap with the next (optimal string alignment).
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

}  // namespace

std::vector<std::string> translate_aliases(std::vector<std::string> words) {
  for (auto word = words.begin(); word != words.end();) {
    const std::string name = word->substr(0, word->find('='));
    const auto alias = std::ranges::find(kAliases, name, &Alias::theirs);
    if (alias == std::end(kAliases)) {
      ++word;
    } else if (alias->ours.empty() && word->size() == name.size()) {
      word = words.erase(word);
    } else {
      word->replace(0, name.size(), alias->ours);
      ++word;
    }
  }
  return words;
}

std::string_view instead_of(std::string_view option) {
  if (std::ranges::count(kExpertSizes, option) == 0) return {};
  return "use --enable-expert-parallel, which divides experts among all ranks of --tensor-parallel-size, or for 1 "
         "nothing";
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
