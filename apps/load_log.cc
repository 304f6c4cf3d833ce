#include "apps/load_log.h"

#include <array>
#include <cstdio>

namespace volley::apps {
namespace {

std::string format(const char* pattern, double value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), pattern, value);
  return text.data();
}

std::string memory(int64_t bytes) {
  const double gib = static_cast<double>(bytes) / (1 << 30);
  return gib >= 1 ? format("%.1f GiB", gib) : format("%.0f MiB", gib * 1024);
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// "temperature 0.6, top_p 0.95": the settings that are not neutral.
std::string sampling_words(const SamplingParams& sampling) {
  if (sampling.temperature == 0) return "the likeliest tokens";
  std::string words = format("temperature %g", sampling.temperature);
  const std::string alone = words;
  if (sampling.top_p != 1) words += format(", top_p %g", sampling.top_p);
  if (sampling.top_k > 0) words += ", top_k " + std::to_string(sampling.top_k);
  if (sampling.min_p != 0) words += format(", min_p %g", sampling.min_p);
  if (words == alone) words += " over all tokens";
  if (sampling.repetition_penalty != 1) words += format(", repetition_penalty %g", sampling.repetition_penalty);
  return words;
}

}  // namespace

std::string ends_text(std::span<const TokenId> ids, const std::function<std::string(TokenId)>& spelled) {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) text += i + 1 == ids.size() ? " and " : ", ";
    const std::string token = spelled(ids[i]);
    text += token.empty() ? "id " + std::to_string(ids[i]) : token + " (" + std::to_string(ids[i]) + ")";
  }
  return text.empty() ? "no token" : text;
}

std::string start_line(const EngineInfo& info, const ServedModel& served) {
  const int64_t positions = info.kv_pages * info.page_size;
  std::string line =
      "Serving " + served.name + " on " + info.device + " at " + served.url + " (API and page): " + info.dtype + ", ";
  line += served.draft_name.empty()
              ? "no drafter"
              : "drafter " + served.draft_name + " in blocks of " + std::to_string(info.block_size);
  line += ", " + memory(info.kv_bytes) + " of KV memory for " + std::to_string(positions) + " tokens, " +
          std::to_string(info.max_num_seqs) + " requests at once, ";
  if (!served.ends.empty()) line += "answers end with " + served.ends + ", ";
  line += "requests that do not say get " + sampling_words(info.default_sampling);
  if (served.chat_sampling) {
    line += " as the model's makers name nothing (the page and volley chat ask for " +
            sampling_words(*served.chat_sampling) + ")";
  }
  line += ", ";
  return line + (served.api_keys == 0   ? "no API key needed"
                 : served.api_keys == 1 ? "1 API key"
                                        : std::to_string(served.api_keys) + " API keys");
}

std::string agents_text(const ServedModel& served) {
  const std::string key = served.api_keys == 0 ? "none" : "$KEY", name = served.name;
  return "Coding agents: ANTHROPIC_BASE_URL=" + served.url + " ANTHROPIC_AUTH_TOKEN=" + key +
         " ANTHROPIC_MODEL=" + name + " ANTHROPIC_DEFAULT_HAIKU_MODEL=" + name +
         " claude\n               OPENAI_API_BASE=" + served.url + "/v1 OPENAI_API_KEY=" + key +
         " aider --model openai/" + name + "\n               Others: docs/agents.md";
}

std::string load_line(const EngineStats& before, const EngineStats& now, double seconds) {
  const int64_t generated = now.generated_tokens - before.generated_tokens;
  const int64_t prompts = now.prompt_tokens - before.prompt_tokens;
  if (generated == 0 && prompts == 0 && now.requests_running + now.requests_waiting == 0) return "";
  std::string line = format("%.1f tok/s", static_cast<double>(generated) / seconds) +
                     format(" and %.1f of prompts, ", static_cast<double>(prompts) / seconds) +
                     std::to_string(now.requests_running) + " running, " + std::to_string(now.requests_waiting) +
                     " waiting, KV " + format("%.0f %%", share(now.pages_used, now.pages_total)) +
                     format(" (%.0f %% cached prefixes alone)", share(now.pages_cached, now.pages_total));
  const int64_t drafted = now.drafted_tokens - before.drafted_tokens;
  const int64_t steps = now.verify_steps - before.verify_steps;
  if (drafted == 0 || steps == 0) return line;
  const int64_t accepted = now.accepted_tokens - before.accepted_tokens;
  return line + format(", %.2f tokens a step", static_cast<double>(accepted + steps) / static_cast<double>(steps)) +
         format(", %.0f %% of the drafted accepted", share(accepted, drafted));
}

LoadLog::LoadLog(const Engine& engine, std::chrono::milliseconds interval, Say say)
    : engine_(engine),
      say_(std::move(say)),
      before_(engine.stats()),
      last_(std::chrono::steady_clock::now()),
      ticker_(interval, [this] { tick(); }) {}

void LoadLog::tick() {
  EngineStats now = engine_.stats();
  const auto time = std::chrono::steady_clock::now();
  const std::string line = load_line(before_, now, std::chrono::duration<double>(time - last_).count());
  before_ = std::move(now);
  last_ = time;
  if (!line.empty()) say_(line);
}

}  // namespace volley::apps
