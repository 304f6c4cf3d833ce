// Several replicas in one engine: tokens do not depend on the replica that runs a request, and cached prefixes are
// found again.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "harness.h"
#include "kv/cache_index.h"

namespace volley::testing {
namespace {

EngineOptions options_of(int replicas) {
  EngineOptions options = pocket_options();
  options.data_parallel_size = replicas;
  options.max_model_len = 1024;
  options.page_size = 16;
  options.kv_pages = 400;  // of each replica
  options.max_num_seqs = 8;
  options.threads = 2;
  return options;
}

std::vector<GenerateRequest> make_requests(const Engine& engine, float temperature) {
  std::vector<GenerateRequest> requests;
  auto cases = read_prompts("mixed_prompts.jsonl", 24);
  cases.resize(std::min<size_t>(cases.size(), full_matrix() ? 300 : 60));
  for (size_t i = 0; i < cases.size(); ++i) {
    GenerateRequest request = chat_request(engine, cases[i].prompt, 100, /*after_a_turn=*/i % 3 == 2);
    request.sampling.temperature = temperature;
    request.sampling.seed = 1000 + i;
    if (i % 5 == 1) request.sampling.top_p = 0.9f;
    if (i % 7 == 3) request.sampling.repetition_penalty = 1.1f;
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST(DataParallel, TheReplicaIsInvisible) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  for (const float temperature : {0.0f, 0.8f}) {
    EngineOptions plain_options = options_of(1);
    plain_options.speculation = Speculation::kOff;
    plain_options.prefix_cache = false;
    std::vector<Output> plain;
    {
      const auto engine = make_engine(plain_options);
      plain = run_all(*engine, make_requests(*engine, temperature), 1);
    }
    for (const int replicas : {2, 3}) {
      if (!has_room_for(replicas)) continue;
      EngineOptions options = options_of(replicas);
      if (replicas == 3) {  // some are preempted
        options.max_model_len = 384;
        options.kv_pages = (384 + 16) / 16 + 4;
      }
      const auto engine = make_engine(options);
      EXPECT_EQ(engine->info().data_parallel_size, replicas);
      EXPECT_EQ(engine->info().max_num_seqs, 8 * replicas);
      const auto outputs = run_all(*engine, make_requests(*engine, temperature), 20);
      int different = 0;
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(outputs[i].terminal_events, 1);
        different += outputs[i].tokens == plain[i].tokens && outputs[i].text == plain[i].text ? 0 : 1;
      }
      const EngineStats stats = engine->stats();
      ASSERT_EQ(std::ssize(stats.replicas), replicas);
      std::printf("T %.1f, %d replicas: %d of %zu differ;", temperature, replicas, different, plain.size());
      for (const EngineStats& replica : stats.replicas) {
        std::printf(" %lld tokens", static_cast<long long>(replica.generated_tokens));
        EXPECT_GT(replica.generated_tokens, 0) << "nobody was sent there";
      }
      std::printf(", %lld cached, %lld preemptions\n", static_cast<long long>(stats.cached_tokens),
                  static_cast<long long>(stats.preemptions));
      EXPECT_EQ(different, 0);
      if (replicas == 3 && !kSanitized) EXPECT_GT(stats.preemptions, 0);
    }
  }
}

// A load of conversations, some of them at once. Returns the cached tokens of all turns.
int64_t converse(Engine& engine, size_t conversations, int turns) {
  const auto cases = read_prompts("mixed_prompts.jsonl");
  std::vector<std::vector<TokenId>> said(conversations);
  int64_t cached = 0;
  for (int turn = 0; turn < turns; ++turn) {
    std::vector<GenerateRequest> requests;
    for (size_t i = 0; i < conversations; ++i) {
      GenerateRequest request = chat_request(engine, cases[i * 10 + static_cast<size_t>(turn)].prompt, 24);
      request.prompt.insert(request.prompt.begin(), said[i].begin(), said[i].end());
      said[i] = request.prompt;
      request.sampling.seed = i;
      requests.push_back(std::move(request));
    }
    const auto outputs = run_all(engine, std::move(requests), 6);
    for (size_t i = 0; i < conversations; ++i) {
      EXPECT_FALSE(outputs[i].finish.error);
      said[i].insert(said[i].end(), outputs[i].tokens.begin(), outputs[i].tokens.end());
      cached += outputs[i].finish.usage.cached_tokens;
    }
  }
  return cached;
}

TEST(DataParallel, ConversationsFindWhatWasSaid) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  const size_t conversations = kSanitized ? 6 : 18;
  const int turns = kSanitized ? 3 : 6;
  EngineOptions options = options_of(1);
  options.kv_pages = 2000;  // nothing is evicted
  std::optional<int64_t> alone;
  for (const int replicas : {1, 2, 3}) {
    if (!has_room_for(replicas)) continue;
    options.data_parallel_size = replicas;
    const auto engine = make_engine(options);
    const int64_t cached = converse(*engine, conversations, turns);
    if (!alone) alone = cached;
    // A client may hear of its end before it is counted.
    const auto all = static_cast<int64_t>(conversations) * turns;
    for (int i = 0; i < 60'000 && engine->stats().requests_finished < all; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const EngineStats stats = engine->stats();
    std::printf("%d replicas: %lld of %lld prompt tokens cached\n", replicas, static_cast<long long>(cached),
                static_cast<long long>(stats.prompt_tokens));
    EXPECT_GT(static_cast<double>(cached), 0.97 * static_cast<double>(*alone));
    EXPECT_EQ(stats.cached_tokens, cached);
    // A conversation stays on its replica. How many conversations a replica gets depends on its current speed.
    for (const EngineStats& replica : stats.replicas) {
      EXPECT_GE(replica.requests_finished, turns) << "the load is shared out";
    }
  }
  EXPECT_GT(*alone, 1000);
}

TEST(DataParallel, EventsAndCallsAreOfAllReplicas) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  EngineOptions options = options_of(2);
  std::mutex mutex;
  std::map<int, kv::CacheIndex> index;
  options.on_cache_events = [&](int replica, std::span<const CacheEvent> events) {
    const std::lock_guard lock(mutex);
    index[replica].apply(events);
  };
  const auto engine = make_engine(options);
  run_all(*engine, make_requests(*engine, 0), 16);
  const auto agrees = [&](bool empty) {
    const EngineStats stats = engine->stats();
    const std::lock_guard lock(mutex);
    for (int i = 0; i < 2; ++i) {
      const EngineStats& replica = stats.replicas[static_cast<size_t>(i)];
      if (replica.pages_cached != replica.pages_used) return false;
      if (replica.pages_cached != static_cast<int64_t>(index[i].size()) || (replica.pages_used == 0) != empty) {
        return false;
      }
    }
    return true;
  };
  const auto soon = [](const auto& done) {
    for (int i = 0; i < 60'000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return done();
  };
  EXPECT_TRUE(soon([&] { return agrees(false); }));
  engine->drop_prefix_cache();
  EXPECT_TRUE(soon([&] { return agrees(true); }));

  ASSERT_TRUE(engine->set_verify({VerifyPolicy::Kind::kFixed, 0}).ok());
  const int64_t drafted = engine->stats().drafted_tokens;
  run_all(*engine, make_requests(*engine, 0), 16);
  EXPECT_EQ(engine->stats().drafted_tokens, drafted) << "both decode plainly";
}

TEST(DataParallel, ReplicasOnTheCpuShareTheTarget) {
  if (kTestDevice != "cpu") GTEST_SKIP() << "a GPU has a copy of its own";
  EngineOptions options = options_of(1);
  options.speculation = Speculation::kOff;
  options.draft_dir.clear();
  const int64_t one = make_engine(options)->info().weight_bytes;
  options.data_parallel_size = 3;
  const auto engine = make_engine(options);
  EXPECT_EQ(engine->info().weight_bytes, one);
  EXPECT_EQ(engine->info().kv_pages, 3 * 400);
  EXPECT_EQ(engine->info().threads, 3) << "one each, though two were asked for";
}

TEST(DataParallel, ASizeThatMeansNothingIsRefused) {
  for (const int size : {0, -1, 257}) {
    const auto engine = Engine::create(options_of(size));
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(engine.error().message.find("--data-parallel-size"), std::string::npos);
  }
}

// Ranks that divide a mixture's experts.
EngineOptions experts_options(int ranks, bool by_expert) {
  EngineOptions options = options_of(1);
  options.model_dir = "tests/data/targets/moe_single";
  options.draft_dir.clear();
  options.speculation = Speculation::kOff;
  options.skip_tokenizer = true;
  options.max_model_len = 128;
  options.tensor_parallel_size = ranks;
  options.enable_expert_parallel = by_expert;
  return options;
}

std::vector<GenerateRequest> expert_requests() {
  std::vector<GenerateRequest> requests(12);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t j = 0; j < 3 + i; ++j) requests[i].prompt.push_back(static_cast<TokenId>((7 * i + 13 * j) % 73));
    requests[i].sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    requests[i].sampling.seed = i;
    requests[i].max_tokens = 24;
    requests[i].ignore_eos = true;
  }
  return requests;
}

// Each replica divides its own among its ranks.
TEST(DataParallel, ReplicasDivideTheirExperts) {
  if (!has_room_for(4)) GTEST_SKIP() << "needs 4 GPUs";
  EngineOptions options = experts_options(2, true);
  auto engine = make_engine(options);
  EXPECT_TRUE(engine->info().expert_parallel);
  const auto wanted = run_all(*engine, expert_requests(), 1);
  engine.reset();  // a GPU is in one group of ranks
  options.data_parallel_size = 2;
  engine = make_engine(options);
  EXPECT_TRUE(engine->info().expert_parallel);
  const auto got = run_all(*engine, expert_requests(), 6);
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(wanted[i].tokens.size(), 24u);
    EXPECT_EQ(got[i].tokens, wanted[i].tokens) << "request " << i;
  }
}

// Figures about experts are for the whole target, however ranks divide the experts.
TEST(DataParallel, ExpertsOfAllRanksAreCounted) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  std::vector<int64_t> touched;
  for (const auto& [ranks, by_expert] : {std::pair{1, false}, {2, false}, {2, true}}) {
    EngineOptions options = experts_options(ranks, by_expert);
    options.simulate_routing = true;  // goes by slots and positions alone
    const auto engine = make_engine(options);
    run_all(*engine, expert_requests(), 1);
    while (engine->stats().requests_running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    touched.push_back(engine->stats().experts_touched);
  }
  EXPECT_GT(touched[0], 1000);
  EXPECT_EQ(touched[1], touched[0]);
  EXPECT_EQ(touched[2], touched[0]);
}

// Replicas of one rank that divide the experts among them.
EngineOptions lockstep_options(int replicas, const std::string& target) {
  EngineOptions options = experts_options(1, replicas > 1);
  options.model_dir = "tests/data/targets/" + target;
  options.data_parallel_size = replicas;
  return options;
}

// Tokens are those of one replica with all experts, whichever replicas have work: one request at a time leaves the
// other replicas idle; more requests than slots leave none idle.
TEST(DataParallel, ReplicasOfOneRankDivideTheExperts) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  const bool cpu = kTestDevice == "cpu";
  for (const char* target : {"moe_single", "hybrid_experts", "next_experts"}) {
    const auto one = make_engine(lockstep_options(1, target));
    EXPECT_FALSE(one->info().expert_parallel);
    const auto wanted = run_all(*one, expert_requests(), 1);
    for (const int replicas : {2, 4}) {
      if (!has_room_for(replicas)) continue;
      const auto engine = make_engine(lockstep_options(replicas, target));
      EXPECT_TRUE(engine->info().expert_parallel);
      EXPECT_EQ(engine->info().data_parallel_size, replicas);
      if (cpu) {
        EXPECT_EQ(engine->info().weight_bytes, one->info().weight_bytes) << "all compute from the same memory";
      } else {
        EXPECT_LT(engine->info().weight_bytes, replicas * one->info().weight_bytes) << "no expert is there twice";
      }
      for (const int concurrency : {1, 3, 12}) {
        const auto got = run_all(*engine, expert_requests(), concurrency);
        for (size_t i = 0; i < wanted.size(); ++i) {
          ASSERT_EQ(wanted[i].tokens.size(), 24u);
          EXPECT_EQ(got[i].tokens, wanted[i].tokens) << target << ", " << replicas << " replicas, request " << i;
        }
      }
      for (const EngineStats& replica : engine->stats().replicas) EXPECT_GT(replica.generated_tokens, 0);
    }
  }
}

// The experts that all replicas use together are those that one replica uses: every expert of a pass is read once.
TEST(DataParallel, ExpertsOfAllReplicasAreCountedOnce) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  std::vector<int64_t> touched;
  for (const int replicas : {1, has_room_for(3) ? 3 : 2}) {
    EngineOptions options = lockstep_options(replicas, "moe_single");
    options.simulate_routing = true;
    const auto engine = make_engine(options);
    run_all(*engine, expert_requests(), 1);
    // A replica says it when its pass is over, which may be after the answer.
    const auto now = [&] { return engine->stats().experts_touched; };
    for (int i = 0; i < 2000 && !touched.empty() && now() != touched[0]; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    while (engine->stats().requests_running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    touched.push_back(now());
    for (const EngineStats& replica : engine->stats().replicas) EXPECT_GT(replica.experts_touched, 0);
  }
  EXPECT_GT(touched[0], 1000);
  EXPECT_EQ(touched[1], touched[0]);
}

// Requests end at any moment on either replica, while the others go on.
TEST(DataParallel, ReplicasThatDivideTheExpertsGoOnWhileRequestsEnd) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  const auto wanted = run_all(*make_engine(lockstep_options(1, "moe_single")), expert_requests(), 1);
  const auto engine = make_engine(lockstep_options(2, "moe_single"));
  const int rounds = kSanitized ? 5 : 60;
  for (int round = 0; round < rounds; ++round) {
    std::vector<GenerateRequest> requests = expert_requests();
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i % 3 == 1) requests[i].max_tokens = 100;  // to be cancelled
      if (i % 3 == 2) requests[i].timeout_s = 1e-4 * static_cast<double>(1 + (round + i) % 40);
    }
    const auto outputs = run_all(*engine, std::move(requests), 1 + round % 12, [&](size_t i, const Event& event) {
      if (i % 3 == 1 && !event.finish && static_cast<int>(i) <= round % 13) engine->cancel(event.id);
    });
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i].terminal_events, 1);
      const size_t length = std::min(outputs[i].tokens.size(), wanted[i].tokens.size());
      EXPECT_TRUE(std::equal(wanted[i].tokens.begin(), wanted[i].tokens.begin() + static_cast<int64_t>(length),
                             outputs[i].tokens.begin()))
          << "request " << i;
      if (i % 3 == 0) EXPECT_EQ(outputs[i].tokens, wanted[i].tokens) << "request " << i;
    }
  }
}

TEST(DataParallel, WhatIsNotBuiltWithDividedExpertsIsRefused) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  EngineOptions options = lockstep_options(2, "moe_single");
  options.restart_on_device_error = true;
  const auto restarts = Engine::create(options);
  ASSERT_FALSE(restarts.ok());
  EXPECT_EQ(restarts.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(restarts.error().message.find("--restart-on-device-error"), std::string::npos);
  const auto dense = Engine::create(lockstep_options(2, "plain"));
  ASSERT_FALSE(dense.ok());
  EXPECT_EQ(dense.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(dense.error().message.find("--enable-expert-parallel"), std::string::npos);
}

}  // namespace
}  // namespace volley::testing
