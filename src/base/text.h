// Operations on any text.
#pragma once

#include <string_view>

namespace volley {

// `text` without spaces, tabs and line ends at both ends: a view of `text`, which must outlive the result.
inline std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace volley
