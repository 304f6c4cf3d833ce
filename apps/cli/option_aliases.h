// Other servers' names for this program's options, and nearly right names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace volley::apps {

// Replaces vLLM's and SGLang's option names by ours. Options for this program's normal behaviour are removed, or turned
// off by "=false" where possible. `words`: without the program's name.
std::vector<std::string> translate_aliases(std::vector<std::string> words);

// SGLang's option that stands for two of ours, also as "--dist-init-addr=gpu-1:29501".
inline constexpr std::string_view kDistInitAddr = "--dist-init-addr";
// Splits "gpu-1:29501" or "[::1]:29501" into --master-addr and --master-port; nothing if it is neither.
std::optional<std::pair<std::string, std::string>> split_address(std::string_view text);

// "true", "yes", "on" and "1", or the opposite, in any case; nothing: neither.
std::optional<bool> truth(std::string word);

// Says what to do instead of an option without a counterpart; empty: unknown option.
std::string_view instead_of(std::string_view option);

// The most likely of `names` for `word`; empty if none is near.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace volley::apps
