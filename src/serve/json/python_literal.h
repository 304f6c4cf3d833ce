// Values as Python prints them. Chat templates print a call's arguments so, and models then write theirs the same way.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace volley::serve {

// JSON of a literal: of a dict, list, tuple or set, with strings in either quotes, numbers, True, False and None in it.
// JSON's own words count too. Tuples and sets become arrays, and keys strings as Python's json module makes them.
// Nothing: the text is no such literal, or JSON has no such value.
std::optional<std::string> json_of_python(std::string_view text);

}  // namespace volley::serve
