#include "harness.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/environment.h"
#include "device/device.h"

namespace volley::testing {
namespace {

using nlohmann::json;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

// Without a GPU the tests for one are skipped, all of them and by name.
class NeedsTheDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    if (kTestDevice == "cpu") return;
    load_gpu_code_early();  // engines with several ranks come later, when CUDA has begun
    if (const auto gpu = examine_cuda_device(0); !gpu.ok()) GTEST_SKIP() << "needs a GPU: " << gpu.error().message;
  }
};
// The file in which this program's engines keep the costs of steps.
class CostFolder : public ::testing::Environment {
 public:
  static std::filesystem::path path() {
    return std::filesystem::temp_directory_path() / ("volley-test-costs-" + std::to_string(::getpid()));
  }
  void TearDown() override { std::filesystem::remove_all(path()); }
};
[[maybe_unused]] const auto* const kCostFolder = ::testing::AddGlobalTestEnvironment(new CostFolder);

[[maybe_unused]] const auto* const kNeedsTheDevice = ::testing::AddGlobalTestEnvironment(new NeedsTheDevice);

}  // namespace

bool has_room_for(int ranks) {
  return kTestDevice == "cpu" || examine_cuda_device(ranks - 1).ok();
}

bool full_matrix() {
  const char* matrix = std::getenv("VOLLEY_TEST_MATRIX");
  return matrix != nullptr && std::string(matrix) == "full";
}

EngineOptions pocket_options() {
  EngineOptions options;
  options.device = kTestDevice;
  options.model_dir = "models/pocket";
  const char* drafter = std::getenv("VOLLEY_TEST_DRAFTER");
  options.draft_dir = drafter != nullptr ? drafter : "models/pocket-dflash";
  options.verify.kind = VerifyPolicy::Kind::kFull;
  options.cost_cache_dir = CostFolder::path().string();
  options.grammar_mask_timeout_ms = 3'600'000;  // a slow machine is no failure
  return options;
}

std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  auto engine = Engine::create(options);
  if (!engine.ok()) die("Engine::create: " + engine.error().message);
  return std::move(engine).value();
}

std::vector<Output> run_all(Engine& engine, std::vector<GenerateRequest> requests, int concurrency,
                            const std::function<void(size_t i, const Event&)>& watch) {
  std::vector<Output> outputs(requests.size());
  std::mutex mutex;
  std::condition_variable changed;
  int open = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return open < concurrency; });
      ++open;
    }
    const auto sink = [&, i](const Event& event) {
      if (watch) watch(i, event);
      Output& out = outputs[i];
      out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
      out.text += event.text;
      out.logprobs.insert(out.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
      if (!event.finish) return;
      std::lock_guard lock(mutex);
      out.finish = *event.finish;
      ++out.terminal_events;
      --open;
      changed.notify_all();
    };
    const auto id = engine.submit(std::move(requests[i]), sink);
    if (id.ok()) continue;
    std::lock_guard lock(mutex);
    outputs[i].finish.reason = FinishReason::kError;
    outputs[i].finish.error = id.error();
    --open;
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return open == 0; });
  return outputs;
}

ChangingVerify::ChangingVerify(Engine& engine, std::vector<VerifyPolicy> policies)
    : thread_([this, &engine, policies = std::move(policies)] {
        for (size_t i = 0; !done_; ++i) {
          if (const Status set = engine.set_verify(policies[i % policies.size()]); !set.ok()) {
            die("set_verify: " + set.error().message);
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
      }) {}

ChangingVerify::~ChangingVerify() {
  done_ = true;
  thread_.join();
}

GenerateRequest chat_request(const Engine& engine, const std::string& message, int32_t max_tokens, bool after_a_turn) {
  json messages = json::array();
  if (after_a_turn) {
    messages.push_back({{"role", "user"}, {"content", "Tell me a story about a dog and a ladder."}});
    messages.push_back({{"role", "assistant"},
                        {"content",
                         "One night, a brave dog named Jack found a yellow ladder near the garden. Jack wanted to know "
                         "who had lost it. Together they carried it back to the garden."}});
  }
  messages.push_back({{"role", "user"}, {"content", message}});
  ChatMessages chat;
  chat.messages_json = messages.dump();
  const auto text = engine.render_chat(chat);
  if (!text.ok()) die("render_chat: " + text.error().message);
  auto ids = engine.encode(*text, false);
  if (!ids.ok()) die("encode: " + ids.error().message);
  GenerateRequest request;
  request.prompt = std::move(ids).value();
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  return request;
}

std::vector<PromptCase> read_prompts(const std::string& name) {
  std::ifstream file("tests/data/" + name);
  if (!file) die("tests/data/" + name + " is missing: run the tests from the root of the source tree");
  std::vector<PromptCase> cases;
  for (std::string line; std::getline(file, line);) {
    const json row = json::parse(line);
    PromptCase c;
    c.task = row.value("task", "");
    c.prompt = row.at("prompt").get<std::string>();
    if (row.contains("expected") && row["expected"].is_string()) c.expected = row["expected"].get<std::string>();
    if (row.contains("prompt_ids")) row["prompt_ids"].get_to(c.prompt_ids);
    if (row.contains("output_ids")) row["output_ids"].get_to(c.output_ids);
    if (row.contains("tokens_per_step")) row["tokens_per_step"].get_to(c.tokens_per_step);
    cases.push_back(std::move(c));
  }
  return cases;
}

std::vector<PromptCase> read_prompts(const std::string& name, size_t few) {
  auto cases = read_prompts(name);
  if (kSanitized) cases.resize(few);
  return cases;
}

std::string answer_value(const std::string& text) {
  const size_t mark = text.rfind("#### ");
  if (mark == std::string::npos) return "";
  const size_t begin = mark + 5, end = text.find_first_not_of("-0123456789", begin);
  return text.substr(begin, end == std::string::npos ? end : end - begin);
}

}  // namespace volley::testing
