// Names that other servers have for options of this program, and names that are nearly right.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace volley::apps {

// The words of a command line with vLLM's and SGLang's names of the same options replaced by ours; what is on here
// anyway is taken out, and turned off by "=false" where it can be. `words`: without the program's name.
std::vector<std::string> translate_aliases(std::vector<std::string> words);

// SGLang's option for two of ours, in words "--dist-init-addr=gpu-1:29501" too.
inline constexpr std::string_view kDistInitAddr = "--dist-init-addr";
// "gpu-1:29501" and "[::1]:29501" as values of --master-addr and --master-port; nothing: it is no such text.
std::optional<std::pair<std::string, std::string>> split_address(std::string_view text);

// "true", "yes", "on" and "1", or the opposite, whatever the case; nothing: neither.
std::optional<bool> truth(std::string word);

// What to do instead of an option of theirs that has no name here, in words; empty: nothing is known of it.
std::string_view instead_of(std::string_view option);

// The one of `names` that `word` is most likely meant to be; empty if none is near.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace volley::apps
