#include "nodes/facts.h"

#include <algorithm>

namespace volley::nodes {

void fields(net::Fields& f, std::vector<Fact>& facts) {
  f.list(facts, kMostFacts, "the number of facts", [&f](Fact& fact) {
    f.text(fact.name, kMostFactText, "a name");
    f.text(fact.value, kMostFactText, "a value");
  });
}

std::optional<Difference> first_difference(const std::vector<Fact>& here, const std::vector<Fact>& there) {
  for (const Fact& fact : here) {
    const auto same = std::ranges::find(there, fact.name, &Fact::name);
    if (same == there.end()) return Difference{fact.name, fact.value, "nothing"};
    if (same->value != fact.value) return Difference{fact.name, fact.value, same->value};
  }
  for (const Fact& fact : there) {
    if (std::ranges::find(here, fact.name, &Fact::name) == here.end()) {
      return Difference{fact.name, "nothing", fact.value};
    }
  }
  return std::nullopt;
}

}  // namespace volley::nodes
