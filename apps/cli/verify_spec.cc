#include "apps/cli/verify_spec.h"

#include <charconv>
#include <optional>
#include <string_view>

namespace volley::apps {
namespace {

constexpr int kMostTokens = 1023;  // the largest block without its known token

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::optional<double> chance_of(std::string_view text) {
  const auto p = number_of<double>(text);
  return p && *p >= 0 && *p <= 1 ? p : std::nullopt;
}

std::optional<SimulatedAcceptance> parse_entry(std::string_view text) {
  SimulatedAcceptance entry;
  for (std::string_view part : split(text, '+')) {
    SimulatedAcceptance::Phase phase;
    if (!entry.phases.empty()) {
      const size_t colon = part.find(':');
      if (colon == std::string_view::npos) return std::nullopt;
      const auto step = number_of<int64_t>(part.substr(0, colon));
      if (!step || *step <= entry.phases.back().from_step) return std::nullopt;
      phase.from_step = *step;
      part.remove_prefix(colon + 1);
    }
    const std::vector<std::string_view> drafters = split(part, '/');
    const auto p = chance_of(drafters[0]);
    if (!p || drafters.size() > 2) return std::nullopt;
    phase.p = *p;
    if (drafters.size() > 1 && !(phase.second = chance_of(drafters[1]))) return std::nullopt;
    entry.phases.push_back(phase);
  }
  return entry;
}

}  // namespace

Result<VerifyPolicy> parse_verify(const std::string& text) {
  if (text == "auto") return VerifyPolicy{VerifyPolicy::Kind::kAuto, 0};
  if (text == "full") return VerifyPolicy{VerifyPolicy::Kind::kFull, 0};
  const auto tokens = number_of<int>(text);
  if (tokens && *tokens >= 0 && *tokens <= kMostTokens) return VerifyPolicy{VerifyPolicy::Kind::kFixed, *tokens};
  return invalid_argument(text + " is not auto, full or a number of drafted tokens from 0 to " +
                          std::to_string(kMostTokens));
}

std::string verify_name(const VerifyPolicy& policy) {
  switch (policy.kind) {
    case VerifyPolicy::Kind::kAuto:
      return "auto";
    case VerifyPolicy::Kind::kFull:
      return "full";
    case VerifyPolicy::Kind::kFixed:
      return std::to_string(policy.tokens);
  }
  return "";
}

Result<Simulation> parse_simulation(const std::string& text) {
  constexpr std::string_view kPrefix = "geometric:";
  Simulation simulation{text, {}};
  if (text.starts_with(kPrefix)) {
    for (const std::string_view part : split(std::string_view(text).substr(kPrefix.size()), ',')) {
      auto entry = parse_entry(part);
      if (!entry) {
        return invalid_argument(
            "\"" + std::string(part) + "\" in " + text +
            " is neither P nor P+STEP:P, with P from 0 to 1, or P/P of two drafters, and steps that rise");
      }
      simulation.of_requests.push_back(std::move(*entry));
    }
    return simulation;
  }
  return invalid_argument(text + " is not geometric:P, or geometric: and a list of P and P+STEP:P");
}

}  // namespace volley::apps
