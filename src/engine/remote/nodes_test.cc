// Protects requests of an engine on several nodes against the other nodes: refused memory, faults and ends. Each node
// is a thread that shares only connections with the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <new>
#include <optional>
#include <thread>

#include "device/fault.h"
#include "engine/device_testing.h"
#include "engine/remote/follow.h"
#include "engine/remote/node_setup.h"
#include "engine/run/dispatcher.h"
#include "engine/run/validation.h"
#include "engine/run/worker_for_test.h"
#include "engine/start/replica_options.h"
#include "net/port_for_test.h"
#include "text/grammar.h"

namespace volley::engine {
namespace {

using ::testing::HasSubstr;

// A node that has met the others.
struct Member {
  explicit Member(const EngineOptions& of_all, int node = 0) : options(of_all) {
    options.node_rank = node;
    auto resolved = resolve_models(options);
    VOLLEY_CHECK_MSG(resolved.ok(), resolved.ok() ? "" : resolved.error().message);
    models = std::make_unique<ResolvedModels>(std::move(*resolved));
    auto met = meet_nodes(options, *models);
    VOLLEY_CHECK_MSG(met.ok(), met.ok() ? "" : met.error().message);
    links = std::move(*met);
  }
  std::unique_ptr<Replica> load() {
    auto replica = Replica::create(options, *models, {}, {}, std::move(links));
    VOLLEY_CHECK_MSG(replica.ok(), replica.ok() ? "" : replica.error().message);
    return std::move(*replica);
  }

  EngineOptions options;
  std::unique_ptr<ResolvedModels> models;
  nodes::Links links;
};

// Node 1, ready to answer calls as the test says.
struct OtherNode : Member {
  explicit OtherNode(const EngineOptions& of_all)
      : Member(of_all, 1), follower(std::move(links.calls.front()), call_limits(*models)), replica(load()) {
    EXPECT_TRUE(follower.reply(nodes::Ready{1, 0, 0, 0, {}, {}}).ok());
  }

  nodes::Follower follower;
  std::unique_ptr<Replica> replica;
};

class Nodes : public WorkerTest {
 protected:
  // Options of node 0 of this many nodes, at a free port.
  EngineOptions options_of(int nodes, int ranks) {
    EngineOptions options = plain_options();
    options.nnodes = nodes;
    options.tensor_parallel_size = ranks;
    options.master_addr = "127.0.0.1";
    options.master_port = port_.number();
    return options;
  }

  EngineOptions options_of_two() { return options_of(2, 2); }

  void TearDown() override {
    stop();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  void stop() {
    worker_.reset();
    for (std::thread& other : others_) other.join();
    others_.clear();
  }

  // wrap: wraps the last node's devices.
  void start(const WrapDevice& wrap = {}) { start(options_of_two(), wrap); }
  void start(const EngineOptions& options, const WrapDevice& wrap) {
    ended_ = {};
    failed_ = {};
    for (int node = 1; node < options.nnodes; ++node) {
      others_.emplace_back([this, options = EngineOptions(options), node, wrap] {
        const bool last = node == options.nnodes - 1;
        Member member(options, node);
        const Status end =
            follow_links(member.options, *member.models, std::move(member.links), {}, {}, last ? wrap : WrapDevice());
        if (last) ended_.set_value(end);
      });
    }
    Member first(options);
    auto replica = first.load();
    EXPECT_EQ(replica->ranks(), options.tensor_parallel_size);
    EXPECT_EQ(replica->ready().threads, options.tensor_parallel_size) << "of all nodes";
    auto text = load_text(options, true);
    ASSERT_TRUE(text.ok()) << text.error().message;
    text_ = std::move(*text);
    WorkerParts parts;
    parts.scheduler = first.models->scheduler();
    parts.replica = std::move(replica);
    parts.tokenizer = text_.tokenizer;
    parts.max_queue = 10;
    parts.on_device_failure = [this](const std::string& failure) { failed_.set_value(failure); };
    worker_ = std::make_unique<Worker>(std::move(parts));
  }

  // Copies the model into a folder, with states that take more memory than all else, as those of large models do.
  std::string with_wide_states(const std::string& model) {
    folder_ = std::filesystem::temp_directory_path() / ("volley-nodes-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ifstream from(model + "/config.json");
    std::string config{std::istreambuf_iterator<char>(from), {}};
    for (const std::string name : {"linear_key_head_dim", "linear_value_head_dim"}) {
      const size_t begin = config.find(": ", config.find('"' + name + '"')) + 2;
      config.replace(begin, config.find(',', begin) - begin, "128");
    }
    std::ofstream(folder_ / "config.json") << config;
    return folder_.string();
  }

  // Waits for the last node's end.
  Status end_of_other() { return ended_.get_future().get(); }
  std::string failure() { return failed_.get_future().get(); }

  std::vector<TokenId> tokens_of(GenerateRequest request) {
    std::vector<TokenId> tokens;
    const Finish finish = submit(std::move(request), nullptr, &tokens).get();
    EXPECT_FALSE(finish.error.has_value()) << finish.error->message;
    return tokens;
  }

  const net::PortForTest port_;
  std::filesystem::path folder_;  // a model's folder; empty: none
  std::vector<std::thread> others_;
  std::promise<Status> ended_;
  std::promise<std::string> failed_;
};

TEST_F(Nodes, EndTogether) {
  start();
  EXPECT_EQ(tokens_of(request_of(20)).size(), 4u);
  worker_.reset();
  const Status end = end_of_other();
  EXPECT_TRUE(end.ok()) << end.error().message;
}

// A user who forgets one option would start a server of its own.
TEST(NodeOptions, ArePointlessWithoutTheNumberOfNodes) {
  EngineOptions options;
  EXPECT_TRUE(check_nodes(options).ok());
  options.master_addr = "10.0.0.1";
  EXPECT_THAT(check_nodes(options).error().message, HasSubstr("say how many there are with --nnodes"));
  options.master_addr.clear();
  options.node_rank = 1;
  EXPECT_THAT(check_nodes(options).error().message, HasSubstr("say how many there are with --nnodes"));
}

// mpirun binds a process to one core by default.
TEST(NodeOptions, SayWhereAProcessIsBoundToFewCores) {
  EngineOptions options;
  options.nnodes = 2;
  const auto said = [&](int may_run_on, int of_machine) {
    return bound_to_few_cores(options, DeviceKind::kCpu, may_run_on, of_machine).value_or("");
  };
  EXPECT_THAT(said(1, 64), HasSubstr("may run on 1 of 64 cores"));
  EXPECT_THAT(said(15, 64), HasSubstr("--bind-to none"));
  EXPECT_EQ(said(16, 64), "");
  EXPECT_EQ(said(1, 4), "");
  EXPECT_FALSE(bound_to_few_cores(options, DeviceKind::kCuda, 1, 64));
  options.threads = 1;
  EXPECT_EQ(said(1, 64), "") << "somebody has said so";
  options.threads = 0;
  options.nnodes = 1;
  EXPECT_EQ(said(1, 64), "");
}

// A slot whose states do not fit on one node exists on none.
TEST_F(Nodes, RunAsManyRequestsAsTheOneWithLeastMemory) {
  EngineOptions options = options_of_two();
  options.model_dir = with_wide_states("tests/data/targets/hybrid_tied");
  options.skip_tokenizer = true;
  options.max_model_len = 64;
  options.prefill_chunk = 16;
  options.max_num_seqs = options.max_num_batched_tokens = 0;
  options.kv_pages = 0;
  const auto roomy = resolve_models(options);
  ASSERT_TRUE(roomy.ok()) << roomy.error().message;
  auto scarce = roomy;
  for (EngineOptions less = options; scarce->max_num_batched_tokens == roomy->max_num_batched_tokens;) {
    less.memory_fraction = (less.memory_fraction > 0 ? less.memory_fraction : 1) * 0.95;
    scarce = resolve_models(less);
    ASSERT_TRUE(scarce.ok()) << scarce.error().message;
  }
  ASSERT_LT(scarce->max_num_seqs, roomy->max_num_seqs);
  for (const int with_less : {0, 1}) {
    std::vector<ResolvedModels> models;
    for (const int node : {0, 1}) {
      models.push_back(node == with_less ? *scarce : *roomy);
      models.back().node = node;
    }
    std::array<std::optional<Result<nodes::Links>>, 2> met;
    std::thread other([&] {
      EngineOptions second = options;
      second.node_rank = 1;
      met[1] = meet_nodes(second, models[1]);
    });
    met[0] = meet_nodes(options, models[0]);
    other.join();
    for (size_t node = 0; node < 2; ++node) {
      ASSERT_TRUE(met[node]->ok()) << met[node]->error().message;
      EXPECT_EQ(models[node].max_num_seqs, scarce->max_num_seqs);
      EXPECT_EQ(models[node].kv.slots, scarce->max_num_seqs);
      EXPECT_EQ(models[node].memory.state_bytes, scarce->memory.state_bytes);
      EXPECT_EQ(models[node].max_num_batched_tokens, scarce->max_num_batched_tokens);
      EXPECT_EQ(call_limits(models[node]).slots, scarce->max_num_seqs);
    }
  }
  // A number that a user asked for stays, or the start is refused.
  ResolvedModels first = *roomy, second = *roomy;
  second.node = 1;
  std::thread other([&] {
    EngineOptions asked = options;
    asked.node_rank = 1;
    asked.max_num_seqs = second.max_num_seqs;
    EXPECT_THAT(meet_nodes(asked, second).error().message, HasSubstr(" there, as memory allows on node 0"));
  });
  EXPECT_THAT(meet_nodes(options, first).error().message, HasSubstr("--max-num-seqs: "));
  other.join();
}

TEST_F(Nodes, WithoutMemoryForLogprobsOnOneOthersGoOn) {
  std::atomic<WatchedDevice*> device = nullptr;
  start([&](std::unique_ptr<Device> made, int) {
    auto watched = std::make_unique<WatchedDevice>(std::move(made));
    device = watched.get();
    return std::unique_ptr<Device>(std::move(watched));
  });
  std::atomic<bool> refuses = true;
  device.load()->refuse = [&](size_t) { return refuses.load(); };
  const auto plain = tokens_of(request_of(30));
  GenerateRequest constrained = request_of(3);
  constrained.grammar = GrammarSpec{.kind = GrammarSpec::Kind::kRegex, .text = "[a-z]{20}", .choices = {}};
  GenerateRequest scored = request_of(300);
  scored.prompt_logprobs = 2;
  for (const bool room : {false, true, true}) {
    refuses = !room;
    auto beside = submit(request_of(30));
    auto grammar = submit(constrained);
    auto logprobs = submit(scored);
    const Finish scores = logprobs.get();
    EXPECT_EQ(scores.error.has_value(), !room) << (scores.error ? scores.error->message : "no error");
    if (!room && scores.error) {
      EXPECT_EQ(scores.error->code, ErrorCode::kResourceExhausted);
    }
    EXPECT_FALSE(grammar.get().error.has_value());
    EXPECT_FALSE(beside.get().error.has_value());
    EXPECT_EQ(tokens_of(request_of(30)), plain);
  }
  worker_.reset();
  EXPECT_TRUE(end_of_other().ok());
}

// The other node's device fails in the middle of a step.
TEST_F(Nodes, AFaultOfOneEndsEveryRequest) {
  std::atomic<int64_t> left = -1;
  const std::function<bool(bool)> before = [&left](bool) {
    if (left > 0 && --left == 0) throw DeviceFault("the device fell over");
    return true;
  };
  start([&before](std::unique_ptr<Device> made, int) {
    return std::unique_ptr<Device>(std::make_unique<FaultyDevice>(std::move(made), &before));
  });
  EXPECT_EQ(tokens_of(request_of(20)).size(), 4u);
  left = 40;
  std::vector<std::future<Finish>> open;
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request = request_of(20 + i);
    request.max_tokens = 500;
    open.push_back(submit(std::move(request)));
  }
  for (auto& each : open) {
    const Finish finish = each.get();
    ASSERT_TRUE(finish.error.has_value());
    EXPECT_EQ(finish.error->code, ErrorCode::kUnavailable);
  }
  EXPECT_THAT(failure(), HasSubstr("the device fell over")) << "the cause, and not its consequences";
  const Status end = end_of_other();
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().message, "the device fell over");
}

// Several nodes see a consequence of the fault. None reports it before the node that has the fault, although that one
// must wait for a rank.
TEST_F(Nodes, TheCauseIsToldWhoeverHearsOfItFirst) {
  using namespace std::chrono_literals;
  std::atomic<bool> armed = false;
  std::promise<void> fell;
  const std::shared_future<void> fallen = fell.get_future().share();
  std::atomic<std::thread::id> of_rank_1;
  std::atomic<bool> slept = false;
  const std::function<bool(bool)> slow = [&](bool) {
    if (armed && fallen.wait_for(300ms) == std::future_status::ready && !slept.exchange(true)) {
      std::this_thread::sleep_for(100ms);
    }
    return true;
  };
  const std::function<bool(bool)> before = [&](bool) {
    // Device calls outside of a step come from rank 0's thread.
    if (std::this_thread::get_id() != of_rank_1.load() || !armed) return true;
    fell.set_value();
    throw DeviceFault("the device fell over");
  };
  EngineOptions options = options_of(4, 8);
  options.model_dir = "tests/data/targets/oss_many_experts";
  options.skip_tokenizer = true;
  options.max_model_len = 128;
  start(options, [&](std::unique_ptr<Device> made, int rank) {
    if (rank == 1) of_rank_1 = std::this_thread::get_id();
    return std::make_unique<FaultyDevice>(std::move(made), rank == 0 ? &slow : &before);
  });
  EXPECT_EQ(tokens_of(request_of(20)).size(), 4u);
  armed = true;
  GenerateRequest request = request_of(20);
  request.max_tokens = 100;
  const Finish finish = submit(std::move(request), nullptr, nullptr).get();
  EXPECT_TRUE(finish.error.has_value());
  const std::string why = failure();
  EXPECT_THAT(why, HasSubstr("Node 3 at "));
  EXPECT_THAT(why, HasSubstr("the device fell over"));
  stop();
  EXPECT_EQ(end_of_other().error().message, "the device fell over");
}

// The node itself must report the hang, because its process then ends.
TEST_F(Nodes, AStepThatHangsIsSaidOnItsNode) {
  std::atomic<bool> armed = false;
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  const std::function<bool(bool)> hang = [&](bool) {
    if (armed) released.wait();
    return true;
  };
  std::promise<std::string> said;
  EngineOptions options = options_of_two();
  options.step_timeout_s = 1;
  options.on_device_failure = [&](const std::string& failure) { said.set_value(failure); };
  start(options,
        [&](std::unique_ptr<Device> made, int) { return std::make_unique<FaultyDevice>(std::move(made), &hang); });
  EXPECT_EQ(tokens_of(request_of(20)).size(), 4u);
  armed = true;
  auto finish = submit(request_of(20), nullptr, nullptr);
  EXPECT_THAT(said.get_future().get(), HasSubstr("--step-timeout"));
  release.set_value();
  EXPECT_FALSE(finish.get().error.has_value()) << "who does not end the process may go on";
  stop();  // the devices go before what they wait for
}

// The other node loads and leaves before the engine has begun.
TEST_F(Nodes, AnEngineBeginsWithoutTheOther) {
  const EngineOptions options = options_of_two();
  std::promise<void> loaded;
  std::thread other([options, all_loaded = loaded.get_future()] {
    const OtherNode node(options);
    all_loaded.wait();
  });
  Member first(options);
  auto replica = first.load();
  loaded.set_value();
  other.join();
  std::vector<WorkerParts> parts(1);
  parts[0].scheduler = first.models->scheduler();
  parts[0].replica = std::move(replica);
  DispatcherConfig config;
  config.max_queue = 10;
  config.page_size = first.models->page_size;
  config.on_device_failure = [this](const std::string& failure) { failed_.set_value(failure); };
  const Dispatcher dispatcher(std::move(parts), config);
  EXPECT_THAT(failure(), HasSubstr("Node 1 at 127.0.0.1"));
}

// Node 0 meets the others and leaves, whatever they wait for next.
TEST_F(Nodes, WhoFollowsSaysThatTheFirstIsGone) {
  const EngineOptions options = options_of_two();
  others_.emplace_back([this, options] {
    Member member(options, 1);
    ended_.set_value(follow_links(member.options, *member.models, std::move(member.links), {}, {}));
  });
  Member{options};  // its connections end here
  const Status end = end_of_other();
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(end.error().message, HasSubstr("Node 0 at 127.0.0.1"));
}

// A node with other tokens has a fault, even if it reports none.
TEST_F(Nodes, TheFirstFaultsWhereTokensDiffer) {
  // The other node here has no models, and answers with a wrong digest.
  const EngineOptions options = options_of_two();
  others_.emplace_back([this, options] {
    OtherNode node(options);
    for (;;) {
      auto call = node.follower.next();
      if (!call.ok()) return ended_.set_value(call.error());
      const auto* command = std::get_if<decode::Command>(&call->message);
      ASSERT_NE(command, nullptr);
      decode::Answer answer = node.replica->perform(*command);
      ASSERT_FALSE(decode::is_refusal(answer));
      if (!decode::is_answered(*command)) continue;
      nodes::Reply reply = nodes::Answer{answer};
      if (const auto* step = std::get_if<decode::StepResults>(&answer)) {
        reply = nodes::Report{nodes::digest_of(step->results) + 1, 0};
      }
      ASSERT_TRUE(node.follower.reply(reply).ok());
    }
  });
  Member first(options);
  auto replica = first.load();
  const std::vector<TokenId> prompt = {1, 2, 3};
  decode::SlotStart start;
  start.prompt = prompt;
  start.sampling.prompt_length = 3;
  start.limits.max_tokens = 5;
  ASSERT_TRUE(replica->execute(decode::StartSlot{0, start}).ok());
  for (int32_t group = 0; group < std::ssize(first.models->kv.groups); ++group) {
    replica->execute(decode::SetPage{0, group, 0, PageId(0)});
  }
  decode::RoundSegment segment;
  segment.start = 0;
  segment.known = prompt;
  segment.chooses = true;
  ASSERT_TRUE(replica->enqueue({&segment, 1}).ok());
  std::vector<decode::RoundResult> results;
  try {
    replica->wait(results);
    ADD_FAILURE() << "it went on";
  } catch (const DeviceFault& fault) {
    EXPECT_THAT(fault.what(), HasSubstr("Nodes 0 and 1 of the tensor-parallel group chose different tokens"));
  }
  replica.reset();
  EXPECT_FALSE(end_of_other().ok());
}

}  // namespace
}  // namespace volley::engine
