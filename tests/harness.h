// Helpers of the tests of the whole engine: the pocket pair, prompt sets, and a client that keeps some requests open.
#pragma once

#include <volley/engine.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/sanitized.h"

namespace volley::testing {

// The device of this test program's engines, from the environment: the same tests run on each (tests/CMakeLists.txt).
inline const std::string kTestDevice =
    std::getenv("VOLLEY_TEST_DEVICE") == nullptr ? "cpu" : std::getenv("VOLLEY_TEST_DEVICE");

// Whether kTestDevice is one that can be divided among so many ranks: a GPU for each.
bool has_room_for(int ranks);

// VOLLEY_TEST_MATRIX=full: matrices of tests run whole instead of the part that fits into a suite.
bool full_matrix();

// The embedded default models, from the source tree's root (tests run there); VOLLEY_TEST_DRAFTER: another drafter's
// folder. Steps verify whole blocks, so that how a text falls into steps does not depend on time; with
// VerifyPolicy::Kind::kAuto instead, engines of equal sizes measure the costs of steps once for all tests of a program.
EngineOptions pocket_options();

// Options of a row of a matrix of configurations, which has these fields.
template <typename Configuration>
EngineOptions options_of_row(const Configuration& c, int32_t max_model_len) {
  EngineOptions options = pocket_options();
  options.max_model_len = max_model_len;
  options.speculation = c.block_size == 0 ? Speculation::kOff : Speculation::kOn;
  options.block_size = c.block_size;
  options.prefill_chunk = c.prefill_chunk;
  options.page_size = c.page_size;
  options.threads = c.threads;
  options.prefix_cache = c.prefix_cache;
  options.max_num_seqs = c.concurrency;
  options.graphs = c.graphs;
  // A pool of one full context and a few pages: with several requests open some must wait or be preempted.
  if (c.tight_pool) options.kv_pages = (max_model_len + 16 + c.page_size - 1) / c.page_size + 2;
  return options;
}

// Aborts the test program with the error when the engine cannot be made.
std::unique_ptr<Engine> make_engine(const EngineOptions& options);

struct Output {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<PositionLogprobs> logprobs;
  Finish finish;
  int terminal_events = 0;
};

// Submits all requests in order, at most `concurrency` open at once, and returns their outputs in that order. A request
// that submit() refuses has finish.error set and no terminal event.
// watch, if given, sees each event of request i before it counts in the output; on the engine's thread.
std::vector<Output> run_all(Engine& engine, std::vector<GenerateRequest> requests, int concurrency,
                            const std::function<void(size_t i, const Event&)>& watch = {});

// Calls set_verify() with one of the policies after another, over and over, from a thread of its own.
class ChangingVerify {
 public:
  ChangingVerify(Engine& engine, std::vector<VerifyPolicy> policies);
  ~ChangingVerify();

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

// A request for one user message, greedy, ended by end-of-sequence or max_tokens. With `after_a_turn` the same long
// first turn of a conversation stands before it, so that requests share a prefix of whole pages.
GenerateRequest chat_request(const Engine& engine, const std::string& message, int32_t max_tokens = 160,
                             bool after_a_turn = false);

struct PromptCase {
  std::string task, prompt, expected;           // expected: empty when the answer has no checkable value
  std::vector<TokenId> prompt_ids, output_ids;  // the reference file only
  std::vector<int32_t> tokens_per_step;
};

// tests/data/NAME, one JSON object a line.
std::vector<PromptCase> read_prompts(const std::string& name);
// The same; under sanitizers the first `few` alone.
std::vector<PromptCase> read_prompts(const std::string& name, size_t few);

// The text that follows "####" in an answer, or "".
std::string answer_value(const std::string& text);

}  // namespace volley::testing
