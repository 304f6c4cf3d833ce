// Protects requests of an engine on several nodes against those that are not the first: memory that they refuse, their
// faults, their end. A thread stands for each; they share nothing but connections.
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
#include "engine/dispatcher.h"
#include "engine/follow.h"
#include "engine/node_setup.h"
#include "engine/replica_options.h"
#include "engine/validation.h"
#include "engine/worker_for_test.h"
#include "net/port_for_test.h"
#include "text/grammar.h"

namespace volley::engine {
namespace {

using ::testing::HasSubstr;

class Nodes : public WorkerTest {
 protected:
  // Node 0 of so many, at a port that is free.
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

  // wrap: the last node's devices.
  void start(const WrapDevice& wrap = {}) { start(options_of_two(), wrap); }
  void start(const EngineOptions& options, const WrapDevice& wrap) {
    ended_ = {};
    failed_ = {};
    for (int node = 1; node < options.nnodes; ++node) {
      others_.emplace_back([this, options = EngineOptions(options), node, wrap]() mutable {
        options.node_rank = node;
        const bool last = node == options.nnodes - 1;
        auto models = resolve_models(options);
        ASSERT_TRUE(models.ok()) << models.error().message;
        auto links = meet_nodes(options, *models);
        ASSERT_TRUE(links.ok()) << links.error().message;
        const Status end = follow_links(options, *models, std::move(*links), {}, {}, last ? wrap : WrapDevice());
        if (last) ended_.set_value(end);
      });
    }
    auto models = resolve_models(options);
    ASSERT_TRUE(models.ok()) << models.error().message;
    auto links = meet_nodes(options, *models);
    ASSERT_TRUE(links.ok()) << links.error().message;
    auto replica = Replica::create(options, *models, {}, {}, std::move(*links));
    ASSERT_TRUE(replica.ok()) << replica.error().message;
    EXPECT_EQ((*replica)->ranks(), options.tensor_parallel_size);
    EXPECT_EQ((*replica)->threads(), options.tensor_parallel_size) << "of all nodes";
    auto text = load_text(options.model_dir, options.skip_tokenizer, true);
    ASSERT_TRUE(text.ok()) << text.error().message;
    text_ = std::move(*text);
    WorkerParts parts;
    parts.scheduler = models->scheduler();
    parts.replica = std::move(*replica);
    parts.tokenizer = text_.tokenizer;
    parts.max_queue = 10;
    parts.on_device_failure = [this](const std::string& failure) { failed_.set_value(failure); };
    worker_ = std::make_unique<Worker>(std::move(parts));
  }

  // A folder of the same model but that states take more than all else, as those of large ones do.
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

  // How the last node ended.
  Status end_of_other() { return ended_.get_future().get(); }
  std::string failure() { return failed_.get_future().get(); }

  std::vector<TokenId> tokens_of(GenerateRequest request) {
    std::vector<TokenId> tokens;
    const Finish finish = submit(std::move(request), nullptr, &tokens).get();
    EXPECT_FALSE(finish.error.has_value()) << finish.error->message;
    return tokens;
  }

  const net::PortForTest port_;
  std::filesystem::path folder_;  // of a model; empty: there is none
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

// Whoever forgets one option would start a server of its own.
TEST(NodeOptions, ArePointlessWithoutTheNumberOfNodes) {
  EngineOptions options;
  EXPECT_TRUE(check_nodes(options).ok());
  options.master_addr = "10.0.0.1";
  EXPECT_THAT(check_nodes(options).error().message, HasSubstr("say how many there are with --nnodes"));
  options.master_addr.clear();
  options.node_rank = 1;
  EXPECT_THAT(check_nodes(options).error().message, HasSubstr("say how many there are with --nnodes"));
}

// mpirun binds a process to one core unless it is told otherwise.
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

// Slots whose states do not fit on one node are nobody's, whichever node that is.
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
  // What somebody has asked for is as it is, or the start is refused.
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

TEST_F(Nodes, WithoutMemoryForLogprobsOrMasksOnOneOthersGoOn) {
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
    for (auto* end : {&grammar, &logprobs}) {
      const Finish finish = end->get();
      EXPECT_EQ(finish.error.has_value(), !room) << (finish.error ? finish.error->message : "no error");
      if (!room && finish.error) {
        EXPECT_EQ(finish.error->code, ErrorCode::kResourceExhausted);
      }
    }
    EXPECT_FALSE(beside.get().error.has_value());
    EXPECT_EQ(tokens_of(request_of(30)), plain);
  }
  worker_.reset();
  EXPECT_TRUE(end_of_other().ok());
}

// A fault of the other's device in the middle of a step.
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

// Where several nodes hear of a fault only by its consequences, none says so before the one that has it, although
// that one has a rank to wait for.
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
    // What it is asked outside of a step comes from rank 0's thread.
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

// Nobody else may be left to end its process.
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

// A node without memory says so, although its ranks have left the others by then.
TEST_F(Nodes, OneWithoutMemorySaysSo) {
  std::atomic<int64_t> left = -1;
  const std::function<bool(bool)> before = [&left](bool) {
    if (left > 0 && --left == 0) throw std::bad_alloc();
    return true;
  };
  start([&before](std::unique_ptr<Device> made, int) {
    return std::unique_ptr<Device>(std::make_unique<FaultyDevice>(std::move(made), &before));
  });
  EXPECT_EQ(tokens_of(request_of(20)).size(), 4u);
  left = 20;
  GenerateRequest request = request_of(20);
  request.max_tokens = 500;
  const Finish finish = submit(std::move(request), nullptr, nullptr).get();
  EXPECT_TRUE(finish.error.has_value());
  EXPECT_THAT(failure(), HasSubstr("no memory left"));
  EXPECT_THAT(end_of_other().error().message, HasSubstr("no memory left"));
}

// It is loaded and gone before the engine has begun.
TEST_F(Nodes, AnEngineBeginsWithoutTheOther) {
  EngineOptions options = options_of_two();
  std::promise<void> loaded;
  std::thread other([options, all_loaded = loaded.get_future()]() mutable {
    options.node_rank = 1;
    auto models = resolve_models(options);
    ASSERT_TRUE(models.ok());
    auto links = meet_nodes(options, *models);
    ASSERT_TRUE(links.ok());
    nodes::Follower follower(std::move(links->calls.front()), call_limits(*models));
    auto replica = Replica::create(options, *models, {}, {}, std::move(*links));
    ASSERT_TRUE(replica.ok());
    ASSERT_TRUE(follower.reply(nodes::Ready{1, 0, 0, 0}).ok());
    all_loaded.wait();
  });
  auto models = resolve_models(options);
  ASSERT_TRUE(models.ok()) << models.error().message;
  auto links = meet_nodes(options, *models);
  ASSERT_TRUE(links.ok()) << links.error().message;
  auto replica = Replica::create(options, *models, {}, {}, std::move(*links));
  loaded.set_value();
  other.join();
  ASSERT_TRUE(replica.ok()) << replica.error().message;
  std::vector<WorkerParts> parts(1);
  parts[0].scheduler = models->scheduler();
  parts[0].replica = std::move(*replica);
  DispatcherConfig config;
  config.max_queue = 10;
  config.page_size = models->page_size;
  config.on_device_failure = [this](const std::string& failure) { failed_.set_value(failure); };
  const Dispatcher dispatcher(std::move(parts), config);
  EXPECT_THAT(failure(), HasSubstr("Node 1 at 127.0.0.1"));
}

// It has met the others and is gone, whatever they are about to wait for.
TEST_F(Nodes, WhoFollowsSaysThatTheFirstIsGone) {
  EngineOptions options = options_of_two();
  others_.emplace_back([this, options]() mutable {
    options.node_rank = 1;
    auto models = resolve_models(options);
    ASSERT_TRUE(models.ok()) << models.error().message;
    auto links = meet_nodes(options, *models);
    ASSERT_TRUE(links.ok()) << links.error().message;
    ended_.set_value(follow_links(options, *models, std::move(*links), {}, {}));
  });
  auto models = resolve_models(options);
  ASSERT_TRUE(models.ok()) << models.error().message;
  ASSERT_TRUE(meet_nodes(options, *models).ok());  // and its connections end here
  const Status end = end_of_other();
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(end.error().message, HasSubstr("Node 0 at 127.0.0.1"));
}

// Who comes to other tokens has faulted, whatever it says.
TEST_F(Nodes, TheFirstFaultsWhereTokensDiffer) {
  // The other node answers for itself, without models: a digest that nobody has.
  EngineOptions options = options_of_two();
  auto models = resolve_models(options);
  ASSERT_TRUE(models.ok()) << models.error().message;
  others_.emplace_back([this, options]() mutable {
    options.node_rank = 1;
    auto models = resolve_models(options);
    ASSERT_TRUE(models.ok());
    auto links = meet_nodes(options, *models);
    ASSERT_TRUE(links.ok());
    nodes::Follower follower(std::move(links->calls.front()), call_limits(*models));
    auto replica = Replica::create(options, *models, {}, {}, std::move(*links));
    ASSERT_TRUE(replica.ok());
    ASSERT_TRUE(follower.reply(nodes::Ready{1, 0, 0, 0}).ok());
    for (;;) {
      auto call = follower.next();
      if (!call.ok()) return ended_.set_value(call.error());
      if (const auto* start = std::get_if<nodes::StartSlot>(&*call)) {
        ASSERT_TRUE((*replica)->start_slot(start->slot, start->whole()).ok());
        ASSERT_TRUE(follower.reply(nodes::Answer{}).ok());
      }
      if (const auto* page = std::get_if<nodes::SetPage>(&*call)) {
        (*replica)->set_page(page->slot, page->group, page->index, page->page);
      }
      if (const auto* step = std::get_if<nodes::Enqueue>(&*call)) {
        std::vector<spec::RoundResult> results;
        ASSERT_TRUE((*replica)->enqueue(step->of.segments, {step->budget_rows, step->table.get()}).ok());
        (*replica)->wait(results);
        ASSERT_TRUE(follower.reply(nodes::Report{nodes::digest_of(results) + 1, 0}).ok());
      }
    }
  });
  auto links = meet_nodes(options, *models);
  ASSERT_TRUE(links.ok()) << links.error().message;
  auto replica = Replica::create(options, *models, {}, {}, std::move(*links));
  ASSERT_TRUE(replica.ok()) << replica.error().message;
  const std::vector<TokenId> prompt = {1, 2, 3};
  spec::SlotStart start;
  start.prompt = prompt;
  start.sampling.prompt_length = 3;
  start.limits.max_tokens = 5;
  ASSERT_TRUE((*replica)->start_slot(0, start).ok());
  for (size_t group = 0; group < models->kv.groups.size(); ++group) (*replica)->set_page(0, group, 0, PageId(0));
  spec::RoundSegment segment;
  segment.start = 0;
  segment.known = prompt;
  segment.chooses = true;
  ASSERT_TRUE((*replica)->enqueue({&segment, 1}).ok());
  std::vector<spec::RoundResult> results;
  try {
    (*replica)->wait(results);
    ADD_FAILURE() << "it went on";
  } catch (const DeviceFault& fault) {
    EXPECT_THAT(fault.what(), HasSubstr("Nodes 0 and 1 of the tensor-parallel group chose different tokens"));
  }
  replica->reset();
  EXPECT_FALSE(end_of_other().ok());
}

}  // namespace
}  // namespace volley::engine
