// Invariants 2 and 4: exactly one terminal event for each request, and everything that a request owned is returned,
// however it ended.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "base/temp_folder_for_test.h"
#include "harness.h"
#include "kv/cache_index.h"
#include "kv/page_hash.h"

namespace volley::testing {
namespace {

// The engine publishes its counters between steps: waits until `done` holds for them.
template <typename F>
EngineStats wait_for(const Engine& engine, F&& done) {
  for (int i = 0; i < 60'000; ++i) {
    const EngineStats stats = engine.stats();
    if (done(stats)) return stats;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << "the engine's counters did not get there";
  return engine.stats();
}

TEST(Lifecycle, NothingLeaksOverThousandsOfRequestsAThirdCancelled) {
  const bool kGpu = kTestDevice != "cpu";
  constexpr int kOpen = 24;
  const int kRequests = kSanitized ? 150 : kGpu ? 10'000 : full_matrix() ? 2000 : 600;
  EngineOptions options = pocket_options();
  options.max_model_len = 384;
  options.max_num_seqs = 16;
  options.kv_pages = 120;  // small enough for evictions and preemptions
  const auto engine = make_engine(options);
  const auto cases = read_prompts("mixed_prompts.jsonl");
  std::mt19937 random(7);
  std::mutex mutex;
  std::condition_variable changed;
  int open = 0;
  std::vector<int> terminals(kRequests, 0);
  std::vector<FinishReason> reasons(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return open < kOpen; });
      ++open;
    }
    GenerateRequest request = chat_request(*engine, cases[random() % cases.size()].prompt, 120);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = i;
    // Every third request is cancelled: at once, or from its own events after some tokens.
    const int cancel_after = i % 3 != 0 ? -1 : static_cast<int>(random() % 40);
    auto produced = std::make_shared<int>(0);
    Engine* const raw = engine.get();
    const auto id = engine->submit(std::move(request), [&, i, cancel_after, produced, raw](const Event& event) {
      *produced += static_cast<int>(event.tokens.size());
      if (cancel_after >= 0 && *produced >= cancel_after && !event.finish) raw->cancel(event.id);
      if (!event.finish) return;
      std::lock_guard lock(mutex);
      ++terminals[i];
      reasons[i] = event.finish->reason;
      --open;
      changed.notify_all();
    });
    ASSERT_TRUE(id.ok()) << id.error().message;
    if (cancel_after == 0) engine->cancel(*id);
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return open == 0; });
  }
  int cancelled = 0;
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(terminals[i], 1) << "request " << i;
    ASSERT_NE(reasons[i], FinishReason::kError);
    cancelled += reasons[i] == FinishReason::kCancelled;
  }
  EXPECT_GT(cancelled, kRequests / 7);
  const EngineStats after =
      wait_for(*engine, [](const EngineStats& s) { return s.requests_running + s.requests_waiting == 0; });
  EXPECT_EQ(after.pages_used, after.pages_cached) << "pages in use are exactly those of the prefix cache";
  EXPECT_EQ(after.requests_finished + after.requests_cancelled, kRequests);
  engine->drop_prefix_cache();
  wait_for(*engine, [](const EngineStats& s) { return s.pages_used == 0; });
}

TEST(Lifecycle, EndingTheEngineEndsItsRequests) {
  std::atomic<int> terminals = 0;
  {
    const auto engine = make_engine(pocket_options());
    for (int i = 0; i < 50; ++i) {
      GenerateRequest request = chat_request(*engine, "Tell me a story about a dog and a ladder.", 400);
      request.ignore_eos = true;
      ASSERT_TRUE(engine->submit(std::move(request), [&](const Event& e) { terminals += e.finish ? 1 : 0; }).ok());
    }
  }
  EXPECT_EQ(terminals, 50);
}

TEST(Lifecycle, ASecondRequestOnASlotSeesNothingOfTheFirst) {
  EngineOptions options = pocket_options();
  options.max_num_seqs = 1;
  options.prefix_cache = false;
  const auto engine = make_engine(options);
  const auto cases = read_prompts("mixed_prompts.jsonl");
  std::vector<GenerateRequest> forward, backward;
  for (int i = 0; i < 20; ++i) forward.push_back(chat_request(*engine, cases[i].prompt));
  for (int i = 19; i >= 0; --i) backward.push_back(chat_request(*engine, cases[i].prompt));
  const auto a = run_all(*engine, std::move(forward), 20), b = run_all(*engine, std::move(backward), 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(a[i].tokens, b[19 - i].tokens);
    EXPECT_EQ(a[i].finish.tokens_per_step, b[19 - i].finish.tokens_per_step)
        << "drafts depend on the request alone too";
  }
}

TEST(Lifecycle, PrefixHitsAreCountedAndChangeNothing) {
  EngineOptions options = pocket_options();
  options.page_size = 16;  // the prompt is shorter than a page of 64
  const auto engine = make_engine(options);
  const std::string prompt = "Write these words in capital letters: river, stone, cloud, apple, tiger, window, garden.";
  const auto first = run_all(*engine, {chat_request(*engine, prompt)}, 1);
  const auto again = run_all(*engine, {chat_request(*engine, prompt)}, 1);
  EXPECT_EQ(first[0].finish.usage.cached_tokens, 0);
  EXPECT_GE(again[0].finish.usage.cached_tokens, 16);
  EXPECT_EQ(again[0].tokens, first[0].tokens);
  EXPECT_EQ(again[0].finish.tokens_per_step, first[0].finish.tokens_per_step);
  GenerateRequest elsewhere = chat_request(*engine, prompt);
  elsewhere.cache_namespace = "another tenant";
  EXPECT_EQ(run_all(*engine, {elsewhere}, 1)[0].finish.usage.cached_tokens, 0);
  GenerateRequest keyed = chat_request(*engine, prompt);
  for (const TokenId id : keyed.prompt) keyed.prompt_keys.push_back(-1 - id);
  for (int i = 0; i < 2; ++i) {
    const auto result = run_all(*engine, {keyed}, 1);
    EXPECT_EQ(result[0].finish.usage.cached_tokens >= 16, i == 1) << "it is known by its keys alone";
    EXPECT_EQ(result[0].tokens, first[0].tokens);
  }
}

// Events and counters agree about the cached pages, until the cache is cleared.
TEST(Lifecycle, CacheEventsSayWhatIsCached) {
  EngineOptions options = pocket_options();
  options.page_size = 16;
  options.kv_pages = 200;  // some prefixes are evicted
  options.max_model_len = 384;
  std::mutex mutex;
  kv::CacheIndex index;
  int64_t removed = 0;
  options.on_cache_events = [&](int replica, std::span<const CacheEvent> events) {
    EXPECT_EQ(replica, 0);
    const std::lock_guard lock(mutex);
    index.apply(events);
    for (const CacheEvent& event : events) removed += event.kind == CacheEvent::Kind::kRemoved ? 1 : 0;
  };
  const auto indexed = [&] {
    const std::lock_guard lock(mutex);
    return static_cast<int64_t>(index.size());
  };
  const auto engine = make_engine(options);
  const auto cases = read_prompts("mixed_prompts.jsonl", 40);
  std::vector<GenerateRequest> requests;
  for (const PromptCase& c : cases) requests.push_back(chat_request(*engine, c.prompt, 40));
  const GenerateRequest last = requests.back();
  run_all(*engine, std::move(requests), 8);
  const EngineStats stats = wait_for(*engine, [&](const EngineStats& now) {
    return now.requests_running == 0 && now.pages_cached == now.pages_used && now.pages_cached == indexed();
  });
  EXPECT_GT(stats.pages_cached, 50);
  if (!kSanitized) EXPECT_GT(removed, 0);
  {
    const std::lock_guard lock(mutex);
    const auto pages = kv::page_hashes("", last.prompt, 16);
    EXPECT_EQ(index.leading(pages), pages.size()) << "the last one's prompt is there";
    EXPECT_EQ(index.leading(kv::page_hashes("salt", last.prompt, 16)), 0u);
  }
  engine->drop_prefix_cache();
  wait_for(*engine, [&](const EngineStats& now) { return now.pages_used == 0 && indexed() == 0; });
}

TEST(Lifecycle, UsageAddsUp) {
  const auto engine = make_engine(pocket_options());
  const auto cases = read_prompts("mixed_prompts.jsonl");
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 30; ++i) requests.push_back(chat_request(*engine, cases[i].prompt, i % 3 == 0 ? 7 : 160));
  for (const Output& out : run_all(*engine, std::move(requests), 4)) {
    int committed = 0;
    for (int32_t n : out.finish.tokens_per_step) committed += n;
    EXPECT_EQ(committed + 1, static_cast<int>(out.tokens.size())) << "the first token comes from the prefill";
    EXPECT_EQ(out.finish.usage.completion_tokens, static_cast<int32_t>(out.tokens.size()));
    EXPECT_LE(out.finish.usage.accepted_tokens, out.finish.usage.drafted_tokens);
    EXPECT_EQ(out.terminal_events, 1);
  }
}

TEST(Lifecycle, RequestsThatCannotRunAreRefusedWithASentence) {
  EngineOptions options = pocket_options();
  options.max_model_len = 128;
  const auto engine = make_engine(options);
  const auto refused = [&](auto&& change) {
    GenerateRequest request = chat_request(*engine, "Hello!");
    change(request);
    const auto out = run_all(*engine, {request}, 1);
    EXPECT_TRUE(out[0].finish.error.has_value());
    return out[0].finish.error ? out[0].finish.error->message : "";
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(refused([](auto& r) { r.prompt.clear(); }).find("empty"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.prompt.assign(128, 5); }).find("shorten the prompt"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.prompt[0] = 2048; }).find("vocabulary"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.prompt[0] = -1; }).find("vocabulary"), std::string::npos);
  EXPECT_NE(refused([&](auto& r) { r.sampling.temperature = nan; }).find("temperature"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.sampling.temperature = -1; }).find("temperature"), std::string::npos);
  EXPECT_NE(refused([&](auto& r) { r.sampling.top_p = nan; }).find("top_p"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.sampling.top_p = 0; }).find("top_p"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.sampling.top_k = -2; }).find("top_k"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.sampling.min_p = 2; }).find("min_p"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.sampling.repetition_penalty = 0; }).find("repetition_penalty"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.sampling.presence_penalty = 3; }).find("presence_penalty"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.sampling.logit_bias = {{9999, 1.0f}}; }).find("logit_bias"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.max_tokens = 0; }).find("max_tokens"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.stop = {""}; }).find("stop"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.max_tokens = 3, r.min_tokens = 4; }).find("min_tokens"), std::string::npos);
  // …and the next one is unaffected.
  EXPECT_FALSE(run_all(*engine, {chat_request(*engine, "Hello!")}, 1)[0].text.empty());
}

// A request whose stop ids leave no token to choose fails by itself, on its first token, its last one and in between;
// its pages are returned and no other request is affected.
TEST(Lifecycle, ARequestWithoutAnAllowedTokenFailsAlone) {
  // A vocabulary so small that a request can name all of it as stop ids.
  const TempFolder folder;
  std::ofstream(folder / "config.json")
      << R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 64,
             "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
             "head_dim": 32, "vocab_size": 96, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
             "rope_theta": 10000, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "eos_token_id": 1})";
  EngineOptions options;
  options.device = kTestDevice;
  options.model_dir = folder.path();
  options.speculation = Speculation::kOff;
  options.dummy_weights = 7;
  const auto engine = make_engine(options);
  std::vector<TokenId> everything(engine->info().vocab_size);
  for (size_t i = 0; i < everything.size(); ++i) everything[i] = static_cast<TokenId>(i);
  std::vector<GenerateRequest> requests;
  for (const int32_t tokens : {1, 2, 9}) {
    GenerateRequest usual;
    usual.prompt = {5, 6, 7};
    usual.max_tokens = tokens;
    usual.ignore_eos = true;
    GenerateRequest hopeless = usual;
    hopeless.stop_token_ids = everything;
    hopeless.min_tokens = 1;
    requests.push_back(std::move(hopeless));
    requests.push_back(std::move(usual));
  }
  const auto outputs = run_all(*engine, std::move(requests), 6);
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].terminal_events, 1);
    EXPECT_EQ(outputs[i].finish.reason, i % 2 == 0 ? FinishReason::kError : FinishReason::kLength);
    if (i % 2 == 0) {
      EXPECT_TRUE(outputs[i].tokens.empty());
    }
  }
  const EngineStats stats = wait_for(*engine, [](const EngineStats& s) { return s.requests_running == 0; });
  EXPECT_EQ(stats.requests_failed, 3);
  EXPECT_EQ(stats.pages_used, stats.pages_cached);
}

// A preempted prompt is prefilled again; it is still one prompt.
TEST(Lifecycle, PreemptedPromptsAreCountedOnce) {
  EngineOptions options = pocket_options();
  options.max_model_len = 384;
  options.kv_pages = 40;
  options.page_size = 16;  // on every device, so that the pool is tight everywhere
  options.prefill_chunk = 16;
  options.prefix_cache = false;
  const auto engine = make_engine(options);
  const auto cases = read_prompts("mixed_prompts.jsonl", 40);
  std::vector<GenerateRequest> requests;
  int64_t tokens = 0;
  for (int i = 0; i < (kSanitized ? 40 : 120); ++i) {
    requests.push_back(chat_request(*engine, cases[i].prompt, 100, /*after_a_turn=*/true));
    tokens += static_cast<int64_t>(requests.back().prompt.size());
  }
  run_all(*engine, std::move(requests), 32);
  const EngineStats stats = wait_for(*engine, [](const EngineStats& s) { return s.requests_running == 0; });
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_EQ(stats.prompt_tokens, tokens);
}

TEST(Lifecycle, PromptTokensCountAsTheyAreComputed) {
  constexpr int32_t kPrompt = 1500;
  EngineOptions options = pocket_options();
  options.max_model_len = 2048;
  options.max_num_seqs = 2;
  options.prefill_chunk = options.max_num_batched_tokens = 64;
  const auto engine = make_engine(options);
  const auto submit = [&](TokenId first) {
    GenerateRequest request;
    for (int32_t i = 0; i < kPrompt; ++i) request.prompt.push_back(5 + (first + i * 7) % 100);
    request.max_tokens = 1;
    return engine->submit(std::move(request), [](const Event&) {}).value();
  };
  const auto is_idle = [](const EngineStats& s) { return s.requests_running + s.requests_waiting == 0; };
  submit(0);
  const EngineStats under_way = wait_for(*engine, [](const EngineStats& s) { return s.prompt_tokens > 0; });
  EXPECT_LT(under_way.prompt_tokens, kPrompt);
  EXPECT_EQ(wait_for(*engine, is_idle).prompt_tokens, kPrompt);
  submit(0);
  const EngineStats again = wait_for(*engine, [](const EngineStats& s) { return s.requests_finished == 2; });
  EXPECT_EQ(again.prompt_tokens, 2 * kPrompt) << "what the cache has counts, too";
  EXPECT_GT(again.cached_tokens, kPrompt / 2);
  const RequestId left = submit(3);
  wait_for(*engine, [](const EngineStats& s) { return s.prompt_tokens > 2 * kPrompt; });
  engine->cancel(left);
  const int64_t counted = wait_for(*engine, is_idle).prompt_tokens;
  EXPECT_GT(counted, 2 * kPrompt);
  EXPECT_LT(counted, 3 * kPrompt) << "nobody computes the rest";
}

// More requests at once than one of the recorded sizes of a GPU's default: the same texts as a few at a time.
TEST(Lifecycle, TwoHundredRequestsAtOnce) {
  EngineOptions options = pocket_options();
  options.max_model_len = 256;
  options.max_num_seqs = 200;
  options.verify.kind = VerifyPolicy::Kind::kAuto;
  const auto engine = make_engine(options);
  std::vector<GenerateRequest> requests;
  for (const PromptCase& item : read_prompts("mixed_prompts.jsonl", 30)) {
    if (requests.size() < 240) requests.push_back(chat_request(*engine, item.prompt, 24));
  }
  const std::vector<Output> together = run_all(*engine, requests, 240), few = run_all(*engine, requests, 5);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i].text, few[i].text) << "request " << i;
    EXPECT_EQ(together[i].terminal_events, 1) << "request " << i;
  }
}

// Two engines of a process, the second made while the first one answers, on the same device: both give the texts that
// they give alone, and neither waits for the other for ever.
TEST(Lifecycle, TwoEnginesShareADevice) {
  EngineOptions options = pocket_options();
  options.max_model_len = 768;
  options.max_num_seqs = 6;
  options.kv_pages = 400;
  const auto requests = [](const Engine& engine) {
    std::vector<GenerateRequest> all;
    for (const PromptCase& item : read_prompts("mixed_prompts.jsonl", 8)) {
      if (all.size() == 40) break;
      all.push_back(chat_request(engine, item.prompt, 200, all.size() % 2 == 0));
    }
    return all;
  };
  const auto texts = [&](Engine& engine) {
    std::vector<std::string> found;
    for (const Output& output : run_all(engine, requests(engine), 6)) {
      EXPECT_EQ(output.terminal_events, 1);
      found.push_back(output.text);
    }
    return found;
  };
  const auto first = make_engine(options);
  const std::vector<std::string> alone = texts(*first);
  std::atomic<bool> done = false;
  std::vector<std::string> beside;
  std::thread other([&] {
    do {
      beside = texts(*first);
      EXPECT_EQ(beside, alone);
    } while (!done);
  });
  options.max_num_seqs = 3;
  const auto second = make_engine(options);
  EXPECT_EQ(texts(*second), alone);
  done = true;
  other.join();
  EXPECT_EQ(beside, alone);
}

TEST(Lifecycle, StopStringsAndStopIdsEndTheAnswer) {
  const auto engine = make_engine(pocket_options());
  const std::string prompt = "Sort these numbers: 20, 93, 76, 29, 82.";
  const auto whole = run_all(*engine, {chat_request(*engine, prompt)}, 1)[0];
  ASSERT_EQ(whole.text, "20, 29, 76, 82, 93");
  GenerateRequest by_text = chat_request(*engine, prompt);
  by_text.stop = {", 8", "zebra"};
  const auto cut = run_all(*engine, {by_text}, 1)[0];
  EXPECT_EQ(cut.text, "20, 29, 76");
  EXPECT_EQ(cut.finish.stop_text, ", 8");
  EXPECT_EQ(cut.finish.reason, FinishReason::kStop);
  // The first that ends past the text of min_tokens tokens.
  for (size_t n = 1; n < whole.tokens.size(); ++n) {
    by_text.stop = {", "};
    by_text.min_tokens = static_cast<int32_t>(n);
    const size_t free = engine->decode(std::span(whole.tokens).first(n), true).size();
    size_t end = whole.text.find(", ");
    while (end != std::string::npos && end + 2 <= free) end = whole.text.find(", ", end + 1);
    EXPECT_EQ(run_all(*engine, {by_text}, 1)[0].text, whole.text.substr(0, end)) << n;
  }
  GenerateRequest by_id = chat_request(*engine, prompt);
  by_id.stop_token_ids = {whole.tokens[3]};
  const auto stopped = run_all(*engine, {by_id}, 1)[0];
  EXPECT_EQ(stopped.finish.stop_token, whole.tokens[3]);
  EXPECT_EQ(stopped.tokens.back(), whole.tokens[3]);
  GenerateRequest ignoring = chat_request(*engine, prompt, 60);
  ignoring.ignore_eos = true;
  const auto longer = run_all(*engine, {ignoring}, 1)[0];
  EXPECT_EQ(longer.tokens.size(), 60u);
  EXPECT_EQ(longer.finish.reason, FinishReason::kLength);
}

}  // namespace
}  // namespace volley::testing
