#include "nodes/facts.h"

#include <algorithm>
#include <utility>

namespace volley::nodes {

void put_facts(net::ByteWriter& w, const std::vector<Fact>& facts) {
  w.put(static_cast<uint32_t>(facts.size()));
  for (const Fact& fact : facts) {
    w.put_string(fact.name);
    w.put_string(fact.value);
  }
}

std::vector<Fact> take_facts(net::ByteReader& r) {
  std::vector<Fact> facts;
  const auto count = r.take_within<uint32_t>(0, kMostFacts, "the number of facts");
  for (uint32_t i = 0; i < count && !r.failed(); ++i) {
    Fact fact;
    fact.name = r.take_string(kMostFactText, "a name");
    fact.value = r.take_string(kMostFactText, "a value");
    facts.push_back(std::move(fact));
  }
  return facts;
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
