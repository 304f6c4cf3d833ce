// Names that other servers have for options of this program, and names that are nearly right.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace volley::apps {

// The words of a command line with vLLM's and SGLang's names of the same options replaced by ours; what is on here
// anyway is taken out. `words`: without the program's name.
std::vector<std::string> translate_aliases(std::vector<std::string> words);

// What to do instead of an option of theirs that has no name here, in words; empty: nothing is known of it.
std::string_view instead_of(std::string_view option);

// The one of `names` that `word` is most likely meant to be; empty if none is near.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace volley::apps
