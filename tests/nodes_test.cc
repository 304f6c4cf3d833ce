// Protects: an engine with ranks in several processes gives the tokens of one process, for all kinds of requests, and
// refuses unsupported ones. Threads stand for processes; they share only connections. On GPUs each rank has one of its
// own, and they sum over NCCL: without it, or with fewer GPUs, tests are skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "comm/comm.h"
#include "harness.h"
#include "net/port_for_test.h"
#include "request_kinds.h"

namespace volley::testing {
namespace {

using ::testing::HasSubstr;

const bool kOnCpu = kTestDevice == "cpu";

// Why so many ranks in several processes cannot be here; empty: they can.
std::string missing(int ranks) {
  if (kOnCpu) return "";
  if (!has_room_for(ranks)) return "needs " + std::to_string(ranks) + " GPUs";
  const auto nccl = comm::nccl_version();
  return nccl.ok() ? "" : nccl.error().message;
}

// The processes of one machine share out its GPUs.
std::string device_of(int ranks, int nodes, int node) {
  return kOnCpu ? "cpu" : "cuda:" + std::to_string(node * (ranks / nodes));
}

// Node 0's options.
EngineOptions on_nodes(int ranks, int nodes) {
  EngineOptions options = pocket_options();
  options.device = device_of(ranks, nodes, 0);
  options.threads = 1;
  options.max_num_seqs = 4;
  options.kv_pages = 400;
  options.tensor_parallel_size = ranks;
  options.nnodes = nodes;
  if (nodes == 1) return options;
  options.master_addr = "127.0.0.1";
  // Held to the end, so that no other process or test gets one of these ports meanwhile.
  static std::deque<net::PortForTest> ports;
  options.master_port = ports.emplace_back().number();
  return options;
}

// The engine of node 0, and threads that follow it; when the engine is destroyed, they must have ended in order.
class Cluster {
 public:
  explicit Cluster(const EngineOptions& options) {
    for (int node = 1; node < options.nnodes; ++node) {
      followers_.emplace_back([options = EngineOptions(options), node]() mutable {
        options.node_rank = node;
        options.device = device_of(options.tensor_parallel_size, options.nnodes, node);
        bool started = false;
        const Status end = Engine::follow(options, {}, [&started] { started = true; });
        EXPECT_TRUE(end.ok()) << end.error().message;
        EXPECT_TRUE(started);
      });
    }
    engine = make_engine(options);
  }
  ~Cluster() {
    engine.reset();
    for (std::thread& follower : followers_) follower.join();
  }

  std::unique_ptr<Engine> engine;

 private:
  std::vector<std::thread> followers_;
};

TEST(Nodes, GiveTheTokensOfOneProcess) {
  if (const std::string what = missing(2); !what.empty()) GTEST_SKIP() << what;
  const auto alone = make_engine(on_nodes(2, 1));
  const auto expected = run_all(*alone, all_kinds(*alone), 4);
  const Cluster two(on_nodes(2, 2));
  EXPECT_EQ(two.engine->info().tensor_parallel_size, 2);
  EXPECT_EQ(two.engine->info().weight_bytes, alone->info().weight_bytes);
  EXPECT_EQ(two.engine->info().kv_bytes_per_token, alone->info().kv_bytes_per_token);
  EXPECT_EQ(two.engine->info().kv_pages, alone->info().kv_pages);
  for (int run = 0; run < 2; ++run) {  // the second finds prefixes in the cache
    expect_the_same(run_all(*two.engine, all_kinds(*two.engine), 4), expected, run == 0 ? "first" : "second");
  }
}

// The costs of a step are measured on all nodes, and differ from run to run; the tokens do not.
TEST(Nodes, MeasureWhatAStepCosts) {
  if (const std::string what = missing(2); !what.empty()) GTEST_SKIP() << what;
  const auto alone = make_engine(on_nodes(2, 1));
  const auto expected = run_all(*alone, all_kinds(*alone), 4);
  EngineOptions options = on_nodes(2, 2);
  options.verify.kind = VerifyPolicy::Kind::kAuto;
  options.cost_cache_dir.clear();
  const Cluster two(options);
  const auto outputs = run_all(*two.engine, all_kinds(*two.engine), 4);
  for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i].tokens, expected[i].tokens) << i;
}

// A model of tests/data/targets, without a drafter.
EngineOptions tiny_on_nodes(const std::string& folder, int ranks, int nodes) {
  EngineOptions options = on_nodes(ranks, nodes);
  options.model_dir = "tests/data/targets/" + folder;
  options.draft_dir.clear();
  options.speculation = Speculation::kOff;
  options.verify = {};
  options.skip_tokenizer = true;
  options.max_model_len = 200;
  options.prefill_chunk = 16;
  options.page_size = 16;  // so that prompts have pages in common
  return options;
}

std::vector<GenerateRequest> tiny_requests() {
  std::vector<GenerateRequest> all(6);
  for (size_t i = 0; i < all.size(); ++i) {
    for (int j = 0; j < 70; ++j) all[i].prompt.push_back(static_cast<TokenId>(2 + (j * 7 + (j > 40 ? i : 0)) % 40));
    all[i].sampling.seed = i;
    all[i].max_tokens = 20;
    all[i].ignore_eos = true;
  }
  return all;
}

// Two of them have no row of the output head.
TEST(Nodes, HaveSeveralRanksEach) {
  if (const std::string what = missing(4); !what.empty()) GTEST_SKIP() << what;
  auto alone = make_engine(tiny_on_nodes("plain", 4, 1));
  const auto expected = run_all(*alone, tiny_requests(), 4);
  alone.reset();  // no two groups have several GPUs in common
  const Cluster two(tiny_on_nodes("plain", 4, 2));
  expect_the_same(run_all(*two.engine, tiny_requests(), 4), expected, "two nodes of two ranks");
}

// Recurrent layers, whose states are saved and restored; and experts, whole ones on each node.
TEST(Nodes, KeepStatesAndDivideExperts) {
  if (const std::string what = missing(2); !what.empty()) GTEST_SKIP() << what;
  const auto tiny = [](int nodes) {
    EngineOptions options = tiny_on_nodes("next_experts", 2, nodes);
    options.enable_expert_parallel = true;
    return options;
  };
  const auto alone = make_engine(tiny(1));
  // One after the other, so that steps and their experts are the same; counted when the last step's are in.
  const auto stats_of = [&](const Engine& engine) {
    while (engine.stats().requests_finished < std::ssize(tiny_requests())) std::this_thread::yield();
    return engine.stats();
  };
  const auto expected = run_all(*alone, tiny_requests(), 1);
  const Cluster two(tiny(2));
  expect_the_same(run_all(*two.engine, tiny_requests(), 1), expected, "one at a time");
  EXPECT_GT(stats_of(*two.engine).cached_tokens, 0);
  EXPECT_EQ(stats_of(*two.engine).experts_touched, stats_of(*alone).experts_touched);
  expect_the_same(run_all(*two.engine, tiny_requests(), 4), expected, "together");
}

// Node 0's first rank computes them.
TEST(Nodes, SeePictures) {
  if (const std::string what = missing(2); !what.empty()) GTEST_SKIP() << what;
  const auto seeing = [](int nodes) {
    EngineOptions options = tiny_on_nodes("", 2, nodes);
    options.model_dir = "tests/data/seen/qwen3_vl";
    return options;
  };
  auto requests = tiny_requests();
  for (size_t i = 0; i < requests.size(); ++i) {
    constexpr TokenId kToken = 7, kText = 11;
    for (TokenId& token : requests[i].prompt) token += kText;
    std::vector<uint8_t> rgb(size_t{3} * 24 * 16);
    for (size_t at = 0; at < rgb.size(); ++at) rgb[at] = static_cast<uint8_t>(at * at * (i / 2 + 3));
    std::fill_n(requests[i].prompt.begin() + 20, 6, kToken);
    requests[i].pictures = {{20, 24, 16, std::make_shared<std::vector<uint8_t>>(std::move(rgb))}};
  }
  const auto alone = make_engine(seeing(1));
  const auto expected = run_all(*alone, requests, 4);
  const Cluster two(seeing(2));
  expect_the_same(run_all(*two.engine, requests, 4), expected, "pictures");
  EXPECT_EQ(two.engine->stats().pictures, 3);
}

constexpr const char* kPortVariable = "VOLLEY_TEST_NODES_PORT";

EngineOptions with_process(int port) {
  EngineOptions options = on_nodes(2, 2);
  options.master_port = port;
  return options;
}

// The body of the process started below; run as a test of its own it has no engine to follow.
TEST(NodeProcess, DISABLED_Follows) {
  const char* port = std::getenv(kPortVariable);
  ASSERT_NE(port, nullptr);
  EngineOptions options = with_process(std::atoi(port));
  options.node_rank = 1;
  options.device = device_of(2, 2, 1);
  const Status end = Engine::follow(options);
  EXPECT_TRUE(end.ok()) << end.error().message;
}

// Node 0 here, and node 1 in a process of its own, which is this program.
class WithProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string what = missing(2); !what.empty()) GTEST_SKIP() << what;
    EngineOptions options = on_nodes(2, 2);
    const std::string port = std::string(kPortVariable) + "=" + std::to_string(options.master_port);
    std::string name = "nodes", filter = "--gtest_filter=NodeProcess.*", disabled = "--gtest_also_run_disabled_tests";
    char* arguments[] = {name.data(), filter.data(), disabled.data(), nullptr};
    std::vector<char*> variables;
    for (char** each = environ; *each != nullptr; ++each) variables.push_back(*each);
    std::string mutable_port = port;
    variables.push_back(mutable_port.data());
    variables.push_back(nullptr);
    ASSERT_EQ(::posix_spawn(&other_, "/proc/self/exe", nullptr, nullptr, arguments, variables.data()), 0);
    options.on_device_failure = [this](const std::string& failure) { failed_.set_value(failure); };
    engine_ = make_engine(options);
  }
  void TearDown() override {
    engine_.reset();
    if (other_ > 0) {
      ::kill(other_, SIGKILL);
      status_of_other();
    }
  }

  int status_of_other() {
    int status = -1;
    ::waitpid(std::exchange(other_, 0), &status, 0);
    return status;
  }
  GenerateRequest endless() const {
    GenerateRequest request = chat_request(*engine_, "Tell me a story.", 2000);
    request.ignore_eos = true;
    return request;
  }

  pid_t other_ = 0;
  std::unique_ptr<Engine> engine_;
  std::promise<std::string> failed_;
};

TEST_F(WithProcess, EndsInOrder) {
  const auto outputs = run_all(*engine_, all_kinds(*engine_), 4);
  for (const Output& output : outputs) EXPECT_FALSE(output.finish.error.has_value());
  engine_.reset();
  EXPECT_EQ(status_of_other(), 0);
}

TEST_F(WithProcess, ThatIsKilledEndsEveryRequest) {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(endless());
  std::optional<std::chrono::steady_clock::time_point> killed;
  const auto outputs = run_all(*engine_, std::move(requests), 6, [&](size_t, const Event& event) {
    if (event.tokens.empty() || killed) return;
    killed = std::chrono::steady_clock::now();
    ::kill(other_, SIGKILL);
  });
  if (!kSanitized) EXPECT_LT(std::chrono::steady_clock::now() - *killed, std::chrono::seconds(5));
  for (const Output& output : outputs) {
    EXPECT_LE(output.terminal_events, 1);
    ASSERT_TRUE(output.finish.error.has_value());
    EXPECT_EQ(output.finish.error->code, ErrorCode::kUnavailable);
  }
  EXPECT_THAT(failed_.get_future().get(), HasSubstr(" is gone"));
  EXPECT_TRUE(WIFSIGNALED(status_of_other()));
}

// No request is open and no step runs.
TEST_F(WithProcess, ThatIsKilledIsMissedAtOnce) {
  ::kill(other_, SIGKILL);
  EXPECT_THAT(failed_.get_future().get(), HasSubstr("Node 1 at 127.0.0.1:"));
  const auto refused = engine_->submit(endless(), [](const Event&) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
}

std::string refusal(const EngineOptions& options) {
  const auto engine = Engine::create(options);
  return engine.ok() ? "" : engine.error().message;
}

TEST(Nodes, RefuseWhatIsNotBuilt) {
  if (const std::string what = missing(2); !what.empty()) GTEST_SKIP() << what;
  EngineOptions options = on_nodes(2, 3);
  EXPECT_THAT(refusal(options), HasSubstr("--tensor-parallel-size 2 cannot be divided among --nnodes 3"));
  options = on_nodes(2, 2);
  options.master_addr.clear();
  EXPECT_THAT(refusal(options), HasSubstr("needs --master-addr"));
  options = on_nodes(2, 2);
  options.master_port = 0;
  EXPECT_THAT(refusal(options), HasSubstr("--master-port is 0"));
  options = on_nodes(2, 2);
  options.data_parallel_size = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--data-parallel-size is not built with --nnodes"));
  options = on_nodes(2, 2);
  options.restart_on_device_error = true;
  EXPECT_THAT(refusal(options), HasSubstr("--restart-on-device-error is not built with --nnodes"));
  options = on_nodes(2, 2);
  options.node_rank = 1;
  EXPECT_THAT(refusal(options), HasSubstr("has no engine of its own"));
  options.node_rank = 2;
  const Status beyond = Engine::follow(options);
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(beyond.error().message, HasSubstr("--node-rank is 2: of --nnodes 2 it is from 0 to 1."));
  options.node_rank = 0;
  EXPECT_THAT(Engine::follow(options).error().message, HasSubstr("only nodes after it follow"));
  EXPECT_EQ(refusal(on_nodes(2, 1)), "");
}

TEST(Nodes, ThatDifferSayInWhat) {
  if (const std::string what = missing(2); !what.empty()) GTEST_SKIP() << what;
  EngineOptions options = on_nodes(2, 2);
  std::thread other([options]() mutable {
    options.node_rank = 1;
    options.device = device_of(2, 2, 1);
    options.page_size = 32;
    const Status end = Engine::follow(options);
    ASSERT_FALSE(end.ok());
    EXPECT_THAT(end.error().message, HasSubstr("Node 1 differs from node 0 in --page-size: 32 there, " +
                                               std::string(kOnCpu ? "16" : "64") + " on node 0"));
  });
  EXPECT_THAT(refusal(options), HasSubstr("Node 1 differs from node 0 in --page-size"));
  other.join();
}

}  // namespace
}  // namespace volley::testing
