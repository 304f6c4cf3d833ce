// Facts that must be the same in all processes of an engine; an error names the one that differs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "net/fields.h"

namespace volley::nodes {

inline constexpr size_t kMostFacts = 256, kMostFactText = 8 << 10;

struct Fact {
  std::string name, value;
};

void fields(net::Fields& f, std::vector<Fact>& facts);

struct Difference {
  std::string name, here, there;  // "nothing": it is not there at all
};
// The first difference; no value if the facts are the same, in any order.
std::optional<Difference> first_difference(const std::vector<Fact>& here, const std::vector<Fact>& there);

}  // namespace volley::nodes
