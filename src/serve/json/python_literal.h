// Reads values as Python prints them. Chat templates print a call's arguments so, and models copy that.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace volley::serve {

// JSON of a literal: a dict, list, tuple or set, with strings in either quotes, numbers, True, False and None. JSON's
// own words are allowed, too. Tuples and sets become arrays, and keys become strings as in Python's json module.
// No value: there is no such literal, or JSON has no such value.
std::optional<std::string> json_of_python(std::string_view text);

}  // namespace volley::serve
