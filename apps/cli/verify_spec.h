// What --verify and --simulate-acceptance say, as text and as the engine's values.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <string>
#include <vector>

namespace volley::apps {

// "auto", "full", or a number of drafted tokens.
Result<VerifyPolicy> parse_verify(const std::string& text);
std::string verify_name(const VerifyPolicy& policy);

// Simulated acceptance of the requests of a run, in turn.
struct Simulation {
  std::string text;                              // as it was given
  std::vector<SimulatedAcceptance> of_requests;  // at least one

  // The acceptance of the request with this index.
  const SimulatedAcceptance& of(int64_t index) const {
    return of_requests[static_cast<size_t>(index) % of_requests.size()];
  }
};

// "geometric:ENTRY,ENTRY,…": request i takes entry i modulo their number. An entry is P, or P+STEP:P+STEP:P, another P
// from each of these decoding steps of the request on.
Result<Simulation> parse_simulation(const std::string& text);

}  // namespace volley::apps
