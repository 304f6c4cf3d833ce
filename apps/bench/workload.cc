#include "apps/bench/workload.h"

#include <string>
#include <utility>

#include "apps/generate/request_line.h"
#include "base/line_reader.h"
#include "base/mix.h"

namespace volley::apps {
namespace {

// SplitMix64 has one state, takes any seed, and does not correlate neighbours.
uint64_t split_mix(uint64_t* state) {
  return mix_bits(*state += kSplitMixStep);
}

RequestSettings bench_settings(const BenchCommand& command, int index) {
  RequestSettings settings = command.settings;
  settings.max_tokens = command.output_tokens;
  if (!settings.temperature) settings.temperature = 0.0f;
  if (!settings.seed) settings.seed = static_cast<uint64_t>(index);
  return settings;
}

GenerateRequest random_request(const Engine& engine, const BenchCommand& command, int index) {
  GenerateRequest request;
  request.ignore_eos = true;
  uint64_t state = command.prompt_seed * 1000003u + static_cast<uint64_t>(index);
  const auto vocab = static_cast<uint64_t>(engine.info().vocab_size);
  for (int i = 0; i < command.prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<TokenId>(split_mix(&state) % vocab));
  }
  request.sampling = engine.info().default_sampling;
  apply_settings(bench_settings(command, index), &request);
  return request;
}

void simulate(const Simulation& simulation, double confidence_odds, std::vector<GenerateRequest>* requests) {
  for (size_t i = 0; i < requests->size(); ++i) {
    auto& acceptance = (*requests)[i].simulate_acceptance;
    acceptance = simulation.of(static_cast<int64_t>(i));
    acceptance->confidence_odds = confidence_odds;
  }
}

Result<std::vector<GenerateRequest>> read_requests(const Engine& engine, const BenchCommand& command, int count) {
  VOLLEY_ASSIGN(LineReader reader, LineReader::open(*command.input));
  std::vector<GenerateRequest> requests;
  LineReader::Line line;
  while (static_cast<int>(requests.size()) < count) {
    VOLLEY_ASSIGN(const LineReader::State state, reader.next(&line, 1000));
    if (state == LineReader::State::kEnd) break;
    if (state == LineReader::State::kNotYet || line.text.find_first_not_of(" \t\r") == std::string::npos) continue;
    RequestLine parsed = parse_request_line(line.text);
    auto request = parsed.prompt.ok() ? build_request(engine, *parsed.prompt, bench_settings(command, requests.size()),
                                                      parsed.settings)
                                      : Result<GenerateRequest>(parsed.prompt.error());
    if (!request.ok()) {
      return invalid_argument(*command.input + " line " + std::to_string(line.number) + ": " + request.error().message);
    }
    requests.push_back(std::move(request).value());
  }
  if (requests.empty()) return invalid_argument(*command.input + " holds no requests.");
  const size_t distinct = requests.size();
  for (size_t i = distinct; i < static_cast<size_t>(count); ++i) requests.push_back(requests[i % distinct]);
  return requests;
}

}  // namespace

Result<std::vector<GenerateRequest>> make_workload(const Engine& engine, const BenchCommand& command, int count) {
  std::vector<GenerateRequest> requests;
  if (command.input) {
    VOLLEY_ASSIGN(requests, read_requests(engine, command, count));
  } else {
    for (int i = 0; i < count; ++i) requests.push_back(random_request(engine, command, i));
  }
  const bool simulated = !command.engine.simulations.empty() && engine.info().block_size > 1;
  if (simulated) simulate(command.engine.simulations.front(), command.engine.confidence_odds, &requests);
  return requests;
}

std::vector<GenerateRequest> rounds_workload(const Engine& engine, const BenchCommand& command,
                                             const Simulation* simulation, int count) {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back(random_request(engine, command, i));
  for (GenerateRequest& request : requests) request.max_tokens = -1;
  if (simulation != nullptr) simulate(*simulation, command.engine.confidence_odds, &requests);
  return requests;
}

}  // namespace volley::apps
