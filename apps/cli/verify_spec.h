// Parses --verify and --simulate-acceptance.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <string>
#include <vector>

namespace volley::apps {

// "auto", "full", or a number of drafted tokens.
Result<VerifyPolicy> parse_verify(const std::string& text);
std::string verify_name(const VerifyPolicy& policy);

// Simulated acceptance, dealt to the requests of a run in turn.
struct Simulation {
  std::string text;                              // as given
  std::vector<SimulatedAcceptance> of_requests;  // at least one

  const SimulatedAcceptance& of(int64_t index) const {
    return of_requests[static_cast<size_t>(index) % of_requests.size()];
  }
};

// "geometric:ENTRY,ENTRY,…": request i takes entry i modulo their number. An entry is P, or P+STEP:P+STEP:P, where each
// STEP is the request's decoding step from which the next P holds. P/P is the first drafter's and the second's.
Result<Simulation> parse_simulation(const std::string& text);

}  // namespace volley::apps
