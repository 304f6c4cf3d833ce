// Invariant 1 for every family: tiny random models of tests/data/targets, with drafts that are right at some places and
// wrong at others. Every configuration gives the tokens of plain decoding of one request at a time, bit for bit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>

#include "base/temp_folder_for_test.h"
#include "families/family.h"
#include "fixtures.h"
#include "harness.h"
#include "model/shard.h"

namespace volley::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kTokens = 48;  // of an answer
constexpr int kMaxModelLen = 160;

struct Configuration {
  const char* name;
  int block_size;  // 0: speculation off
  float accuracy;
  int concurrency, prefill_chunk, page_size, threads;
  bool prefix_cache;
  VerifyPolicy verify;
  bool graphs, tight_pool;
  int snapshot_pages = 2;  // between snapshots of recurrent layers
  int snapshots = 0;       // that there is room for; 0: the engine's own choice
};

const std::vector<Configuration>& configurations() {
  using Kind = VerifyPolicy::Kind;
  static const std::vector<Configuration> rows = {
      {"block 16, often right, 8 at once", 16, 0.95f, 8, 16, 16, 2, true, {Kind::kFull}, true, false},
      {"block 8, mostly right, alone", 8, 0.7f, 1, 512, 32, 1, false, {Kind::kFull}, false, false},
      {"block 16, 32 at once, tight", 16, 0.8f, 32, 16, 16, 1, true, {Kind::kFull}, true, true},
      {"block 4, auto, tight", 4, 0.9f, 8, 512, 16, 2, false, {Kind::kAuto}, false, true},
      {"block 16, two verified", 16, 0.9f, 32, 512, 32, 2, true, {Kind::kFixed, 2}, true, false},
      {"block 8, always right, auto", 8, 1.0f, 32, 16, 16, 2, true, {Kind::kAuto}, true, false},
      {"block 3, 8 at once, tight", 3, 0.9f, 8, 16, 32, 1, true, {Kind::kFull}, false, true},
      {"block 12, five verified", 12, 0.85f, 8, 512, 16, 2, false, {Kind::kFixed, 5}, true, false},
      {"off, 32 at once, tight", 0, 0, 32, 16, 32, 2, true, {}, true, true},
      {"off, 8 at once", 0, 0, 8, 512, 16, 1, false, {}, false, false},
  };
  return rows;
}

// And what recurrent layers add: snapshots in every page of prompts whose chunks end anywhere in it, so that a state is
// saved, copied and gone on from wherever it can be; and so few snapshots that they are evicted all the time, which
// makes hits end early, ends of requests go unsaved, and preempted requests begin anew.
std::vector<Configuration> hybrid_configurations() {
  using Kind = VerifyPolicy::Kind;
  std::vector<Configuration> rows = configurations();
  rows.push_back({"block 16, chunks of 5, all snapshots", 16, 0.9f, 8, 5, 16, 2, true, {Kind::kFull}, true, false, 1});
  rows.push_back({"block 8, three snapshots, tight", 8, 0.85f, 8, 16, 16, 2, true, {Kind::kFull}, true, true, 1, 3});
  return rows;
}

// A drafter's folder with these answers, removed with the object.
class ReplayFolder {
 public:
  void record(const std::vector<GenerateRequest>& requests, const std::vector<Output>& outputs) const {
    std::ofstream file(folder_ / "answers.jsonl");
    for (size_t i = 0; i < requests.size(); ++i) {
      file << nlohmann::json{{"seed", *requests[i].sampling.seed}, {"token_ids", outputs[i].tokens}} << "\n";
    }
  }
  void configure(float accuracy) const {
    std::ofstream(folder_ / "config.json") << nlohmann::json{
        {"architectures", {"ReplayDraftModel"}}, {"block_size", 16}, {"accuracy", accuracy}, {"salt", 7}};
  }
  std::string path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

EngineOptions options_of(const Configuration& c, const std::string& model, const std::string& drafter) {
  EngineOptions options = options_of_row(c, kMaxModelLen);
  options.model_dir = model;
  options.skip_tokenizer = true;
  options.draft_dir = c.block_size > 0 ? drafter : "";
  options.state_snapshot_tokens = c.snapshot_pages * c.page_size;
  if (c.block_size > 0) options.verify = c.verify;
  if (!c.tight_pool) options.kv_pages = 4096;  // other processes that run these tests beside this one have the rest
  return options;
}

double tokens_per_step(const EngineStats& stats) {
  return 1 + static_cast<double>(stats.accepted_tokens) / static_cast<double>(stats.verify_steps);
}

// Prompts of 1 to 90 random tokens, some with a common beginning of whole pages, some that come three times at once, as
// choices of one request do; ends do not end them, so that every answer has its full length.
std::vector<GenerateRequest> make_requests(int32_t vocab, int count, float temperature) {
  std::mt19937 random(5);
  std::vector<TokenId> common;
  for (int i = 0; i < 40; ++i) common.push_back(static_cast<TokenId>(random() % vocab));
  std::vector<GenerateRequest> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    GenerateRequest& request = requests[i];
    if (i % 3 == 0) request.prompt = common;
    const size_t more = 1 + random() % 50;
    for (size_t j = 0; j < more; ++j) request.prompt.push_back(static_cast<TokenId>(random() % vocab));
    request.shares_prompt = i % 8 > 4;
    if (request.shares_prompt) request.group = 1 + i / 8;
    if (i % 8 > 5) request.prompt = requests[i - 1].prompt;
    request.sampling.temperature = temperature;
    request.sampling.seed = 100 + i;
    if (temperature > 0 && i % 4 == 1) request.sampling.top_k = 10;
    if (i % 5 == 2) request.sampling.repetition_penalty = 1.2f;
    request.ignore_eos = true;
    request.max_tokens = kTokens;
  }
  return requests;
}

// Totals over all runs of the program, printed at its end.
class Totals : public ::testing::Environment {
 public:
  void add(size_t requests, int different, std::optional<double> length) {
    requests_ += static_cast<int64_t>(requests);
    different_ += different;
    ++runs_;
    if (!length) return;
    least_ = std::min(least_, *length);
    most_ = std::max(most_, *length);
  }
  // An automatic policy depends on measured time: on a busy machine a run may never draft, or draft only right tokens.
  // All runs together do both.
  void add_automatic(const EngineStats& stats, bool always_right) {
    ++automatic_runs_;
    automatic_drafted_ += stats.drafted_tokens;
    automatic_accepted_ += stats.accepted_tokens;
    automatic_errs_ = automatic_errs_ || !always_right;
  }
  void TearDown() override {
    if (runs_ == 0) return;
    if (automatic_runs_ > 0) {
      EXPECT_GT(automatic_accepted_, 0) << "nothing was accepted in " << automatic_runs_ << " automatic runs";
      if (automatic_errs_) EXPECT_LT(automatic_accepted_, automatic_drafted_) << "nothing was rejected";
    }
    std::printf("%lld runs, %lld answers, %lld differ\n", static_cast<long long>(runs_),
                static_cast<long long>(requests_), static_cast<long long>(different_));
    if (least_ <= most_) std::printf("tokens a step from %.2f to %.2f where the policy is fixed\n", least_, most_);
  }

 private:
  int64_t runs_ = 0, requests_ = 0, different_ = 0;
  int64_t automatic_runs_ = 0, automatic_drafted_ = 0, automatic_accepted_ = 0;
  bool automatic_errs_ = false;
  double least_ = 1e9, most_ = 0;
};
Totals* const totals = static_cast<Totals*>(::testing::AddGlobalTestEnvironment(new Totals));

// Invariance shows nothing where nothing is accepted, or nothing rejected.
void expect_partial_acceptance(const Configuration& c, const EngineStats& stats) {
  if (c.verify.kind == VerifyPolicy::Kind::kAuto) {
    totals->add_automatic(stats, c.accuracy == 1);
    return;
  }
  const double length = tokens_per_step(stats);
  EXPECT_GE(length, 2) << c.name << ": too little was accepted to show anything";
  EXPECT_LE(length, 12) << c.name << ": too little was rejected to show anything";
}

// Again, now that the prefix cache knows the prompts.
void expect_warm(Engine& engine, const std::vector<GenerateRequest>& requests, const Configuration& c,
                 const std::vector<Output>& plain) {
  const EngineStats cold = engine.stats();
  const auto outputs = run_all(engine, requests, c.concurrency);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(outputs[i].tokens, plain[i].tokens) << c.name << ", warm, " << i;
  const EngineStats warm = engine.stats();
  EXPECT_GT(warm.cached_tokens - cold.cached_tokens, static_cast<int64_t>(requests.size()) * 4) << c.name;
  if (warm.state_bytes == 0) return;
  const auto hits = [](const EngineStats& stats) { return stats.snapshots.prompt_hits + stats.snapshots.end_hits; };
  EXPECT_GT(hits(warm) - hits(cold), 0) << c.name;
}

void expect_same(const std::vector<Output>& outputs, const std::vector<Output>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(outputs[i].tokens, expected[i].tokens) << i;
}

// The common part of a test's configurations.
struct Setup {
  Quantization weights = Quantization::kNone;
  KvCacheType cache = KvCacheType::kAuto;
  int ranks = 1;
  bool by_expert = false;  // ranks divide the experts among them, or, of one rank each, replicas
  int replicas = 1;
  bool whole = full_matrix();             // all requests
  std::optional<uint64_t> dummy_weights;  // of a folder that has none
  std::string second_drafter{};           // its folder; empty: there is one at most
};

// Two drafters have a block size each, and what steps cost chooses between them.
void add_second_drafter(const std::string& folder, EngineOptions& options) {
  if (folder.empty() || options.draft_dir.empty()) return;
  options.second_draft_dir = folder;
  options.block_size = 0;
  options.verify = {};
}

// Every configuration of `rows` against plain decoding of one request at a time, on one replica.
void check_model(const std::string& model, const Setup& setup, std::span<const Configuration> rows) {
  const std::string name = fs::path(model).filename();
  const auto target = families::read_target(model);
  ASSERT_TRUE(target.ok()) << target.error().message;
  const ReplayFolder drafter;
  const auto run = [&](const Configuration& c, const std::string& draft) {
    EngineOptions options = options_of(c, model, draft);
    options.quantization = setup.weights;
    options.kv_cache_dtype = setup.cache;
    options.dummy_weights = setup.dummy_weights;
    add_second_drafter(setup.second_drafter, options);
    const bool plain = draft.empty() && c.concurrency == 1;
    options.tensor_parallel_size = setup.ranks;
    options.data_parallel_size = plain ? 1 : setup.replicas;
    options.enable_expert_parallel = setup.by_expert && !(plain && setup.replicas > 1);
    if (c.snapshots > 0) {
      // As many as their memory holds, so an engine must say what one takes.
      const int64_t bytes = make_engine(options)->stats().state_bytes / c.concurrency / setup.replicas;
      options.state_snapshot_memory_bytes = c.snapshots * bytes;
    }
    return make_engine(options);
  };
  const bool hybrid = target->decoder.state_layers() > 0;
  const int count = setup.whole ? (hybrid ? 300 : 200) : kSanitized ? 6 : 12;
  // Under a sanitizer sampling alone, which runs what greedy choices run and more.
  for (const float temperature : kSanitized ? std::vector{0.8f} : std::vector{0.0f, 0.8f}) {
    const auto requests = make_requests(target->decoder.vocab, count, temperature);
    const Configuration plain_run = {"plain", 0, 0, 1, 512, 16, 1, false, {}, false, false};
    const auto plain = run_all(*run(plain_run, ""), requests, 1);
    drafter.record(requests, plain);
    if (setup.ranks > 1) {  // another start, other threads
      expect_same(run_all(*run(plain_run, ""), requests, 4), plain);
    }
    for (const Configuration& c : rows) {
      drafter.configure(c.accuracy);
      const auto engine = run(c, drafter.path());
      const auto outputs = run_all(*engine, requests, c.concurrency);
      int different = 0;
      for (size_t i = 0; i < plain.size(); ++i) {
        ASSERT_EQ(plain[i].tokens.size(), static_cast<size_t>(kTokens));
        different += outputs[i].tokens != plain[i].tokens;
      }
      const EngineStats stats = engine->stats();
      const double length = tokens_per_step(stats);
      ASSERT_EQ(engine->info().expert_parallel, setup.by_expert);
      std::printf("%-18s T %.1f  %-4s %s %d  %-34s %d of %zu differ, acceptance length %.2f, %lld preemptions\n",
                  name.c_str(), temperature, engine->info().quantization.c_str(), setup.by_expert ? "EP" : "TP",
                  std::max(engine->info().tensor_parallel_size, setup.replicas), c.name, different, plain.size(),
                  length, static_cast<long long>(stats.preemptions));
      EXPECT_EQ(different, 0) << c.name;
      if (c.prefix_cache && !c.tight_pool) expect_warm(*engine, requests, c, plain);
      if (c.block_size > 0) expect_partial_acceptance(c, stats);
      const bool fixed = c.block_size > 0 && c.verify.kind != VerifyPolicy::Kind::kAuto;
      totals->add(outputs.size(), different, fixed ? std::optional(length) : std::nullopt);
    }
  }
}

void check_target(const std::string& folder, const Setup& setup, std::span<const Configuration> rows) {
  check_model("tests/data/" + folder, setup, rows);
}

class FamilyInvariance : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyInvariance, SpeculationAndEverythingElseIsInvisible) {
  const auto target = families::read_target("tests/data/targets/" + GetParam());
  ASSERT_TRUE(target.ok()) << target.error().message;
  check_target("targets/" + GetParam(), {},
               target->decoder.state_layers() > 0 ? hybrid_configurations() : configurations());
}

// Whether the models can be divided among so many ranks here; where not, the refusal names the option.
bool divides(EngineOptions options, int ranks) {
  options.tensor_parallel_size = ranks;
  const auto probe = Engine::create(options);
  if (probe.ok()) return true;
  EXPECT_NE(probe.error().message.find("--tensor-parallel-size"), std::string::npos) << probe.error().message;
  return false;
}

struct Divided {
  std::string target;
  int ranks = 0;
  bool by_expert = false;
};

// Targets whose heads and widths, or experts, ranks can divide among them. scripts/nightly.sh takes all numbers of
// ranks; without it ManyRanks below has more than two, and here one target with latents and one with sinks.
std::vector<Divided> divided_targets() {
  std::vector<Divided> list;
  for (const std::string& name : folders("targets")) {
    auto target = families::read_target("tests/data/targets/" + name);
    if (!target.ok()) continue;
    for (const bool by_expert : {false, true}) {
      if (by_expert && !target->decoder.divide_by_expert()) continue;
      for (const int ranks : {2, 4, 8}) {
        const bool always = ranks == 2 || (ranks == 4 && (name == "latent_glm" || name == "oss_alternating"));
        if (ranks > 2 && (kSanitized || !(always || full_matrix()))) continue;
        if (model::check_ranks(target->decoder, ranks, name).ok()) list.push_back({name, ranks, by_expert});
      }
    }
  }
  return list;
}

class TensorParallel : public ::testing::TestWithParam<Divided> {};

TEST_P(TensorParallel, SpeculationAndEverythingElseIsInvisible) {
  if (!has_room_for(GetParam().ranks)) GTEST_SKIP() << "needs " << GetParam().ranks << " GPUs";
  const auto& [target, ranks, by_expert] = GetParam();
  // Ranks wait for one another at every sum, so that all requests take minutes: scripts/nightly.sh has the time.
  const bool whole = full_matrix() || (target == "plain" && ranks == 2 && !kSanitized);
  std::vector<Configuration> rows = configurations();
  if (!whole) rows = {rows[0], rows[2], rows[8]};
  if (!whole && by_expert) rows.erase(rows.begin());
  check_target("targets/" + target, {.ranks = ranks, .by_expert = by_expert, .whole = whole}, rows);
}

// A target of tests/data with other sizes, for random weights. It is removed with the object.
class ResizedTarget {
 public:
  ResizedTarget(const std::string& name, const nlohmann::json& sizes) {
    std::ifstream file("tests/data/targets/" + name + "/config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    (config.contains("text_config") ? config["text_config"] : config).update(sizes);
    folder_.write("config.json", config.dump());
  }

  std::string path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

struct Resized {
  std::string name;  // of the target that it is like
  nlohmann::json sizes;
  int ranks = 0;
  bool by_expert = false;
};

// Protects: the largest numbers of ranks, where several share a KV head, and dense and mixed hybrids on four ranks,
// where key heads are shared too. No target of tests/data has such sizes, and the comparison needs no reference.
TEST(ManyRanks, SpeculationAndEverythingElseIsInvisible) {
  const nlohmann::json recurrent = {{"num_attention_heads", 8},
                                    {"num_key_value_heads", 2},
                                    {"linear_num_value_heads", 8},
                                    {"linear_num_key_heads", 2}};
  nlohmann::json dense = recurrent, mixed = recurrent;
  dense["intermediate_size"] = 64;
  mixed["num_experts"] = 8;
  const std::vector<Resized> list = {
      {"plain", {{"num_attention_heads", 8}, {"vocab_size", 131}}, 8},
      {"plain", {{"num_attention_heads", 16}, {"intermediate_size", 64}}, 16},
      {"hybrid_wide", dense, 4},
      {"hybrid_wide", dense, 8},
      {"hybrid_experts", mixed, 4},
      {"hybrid_experts", mixed, 4, true},
  };
  std::vector<Configuration> rows = hybrid_configurations();
  if (!full_matrix()) rows = {rows[0], rows[2], rows[8], rows[10]};
  if (kSanitized) rows.resize(1);
  int checked = 0;
  for (const Resized& model : list) {
    if (!has_room_for(model.ranks) || (kSanitized && model.ranks > 4)) continue;
    if (model.ranks > 8 && !full_matrix()) continue;  // threads that take turns on few cores
    const ResizedTarget target(model.name, model.sizes);
    check_model(target.path(), {.ranks = model.ranks, .by_expert = model.by_expert, .dummy_weights = 5}, rows);
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << "needs 4 GPUs";
}

// Replicas that divide the experts among them have the tokens of one that has them all. The last row is measured before
// there are workers.
TEST(ReplicasOfExperts, AreInvisibleToo) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  const std::vector<Configuration>& all = configurations();
  std::vector<Configuration> rows = {all[0], all[2], all[8], all[5]};
  if (full_matrix()) rows = all;
  for (const char* name : {"moe_single", "hybrid_experts", "next_experts", "oss_many_experts"}) {
    for (const int replicas : {2, 3}) {
      if (!has_room_for(replicas)) continue;
      if (replicas == 3 && !full_matrix() && name != std::string("moe_single")) continue;
      check_target(std::string("targets/") + name, {.by_expert = true, .replicas = replicas}, rows);
    }
  }
}

// One target for each kind of layer. A device refuses a format that it does not have.
constexpr const char* kQuantisedTargets[] = {"plain", "narrow_fp32", "moe_mixed", "next_experts", "oss_odd"};

TEST(QuantisedInvariance, SpeculationAndEverythingElseIsInvisible) {
  const std::vector<Configuration>& all = configurations();
  const std::span<const Configuration> rows(all.data(), full_matrix() ? 6 : 3);
  int formats = 0;
  for (const Quantization quantization : {Quantization::kFp8, Quantization::kInt4}) {
    for (const char* name : kQuantisedTargets) {
      EngineOptions options = options_of(all.back(), std::string("tests/data/targets/") + name, "");
      options.quantization = quantization;
      const auto probe = Engine::create(options);
      if (!probe.ok()) {
        EXPECT_EQ(probe.error().code, ErrorCode::kUnimplemented) << probe.error().message;
        EXPECT_NE(kTestDevice, "cpu") << probe.error().message;
        continue;
      }
      ++formats;
      check_target(std::string("targets/") + name, {quantization}, rows);
    }
  }
  if (formats == 0) GTEST_SKIP() << "this device has no format of quantised weights for these targets";
}

// Checkpoints that are quantised already, in every format.
TEST(QuantisedInvariance, CheckpointsAreInvisibleToo) {
  const std::vector<Configuration>& all = configurations();
  const std::span<const Configuration> rows(all.data(), full_matrix() ? 6 : 2);
  for (const std::string& name : folders("quantised")) check_target("quantised/" + name, {}, rows);
}

// A cache of codes: windows, sinks, states beside it, rows of an fp32 model, and scales of the file.
TEST(QuantisedInvariance, ACacheOfCodesIsInvisible) {
  const std::vector<Configuration>& all = configurations();
  const std::span<const Configuration> rows(all.data(), full_matrix() ? 6 : 3);
  for (const char* name : kQuantisedTargets) {
    check_target(std::string("targets/") + name, {.cache = KvCacheType::kFp8}, rows);
  }
  check_target("quantised/fp8_tensor", {.cache = KvCacheType::kFp8}, rows);
}

TEST(QuantisedInvariance, OnSeveralRanksToo) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  const std::vector<Configuration>& all = configurations();
  int divided = 0;
  for (const std::string& name : folders("quantised")) {
    if (!divides(options_of(all.back(), "tests/data/quantised/" + name, ""), 2)) continue;
    check_target("quantised/" + name, {.ranks = 2}, {all.data(), full_matrix() ? 6u : 1u});
    ++divided;
  }
  EXPECT_GT(divided, 0);
}

// How drafters of random weights run: blocks as they were trained for, with room for all requests and without, or the
// whole matrix.
std::vector<Configuration> drafter_configurations() {
  if (full_matrix()) return {configurations().begin(), configurations().begin() + 8};
  constexpr VerifyPolicy kFull = {VerifyPolicy::Kind::kFull};
  return {{"8 at once", 0, 0, 8, 16, 16, 1, true, kFull, true, false},
          {"3 at once, tight", 0, 0, 3, 16, 16, 1, true, kFull, true, true},
          {"8 at once, tight, none drafted", 0, 0, 8, 16, 16, 1, true, {VerifyPolicy::Kind::kFixed, 0}, true, true}};
}

// A drafter in `folder`. Little is accepted of a random one, so that nearly every round throws a block away, whose K
// and V must not be seen again.
void check_drafter(const std::string& folder, const std::string& model, const Setup& setup) {
  const auto config = families::read_target(model);
  ASSERT_TRUE(config.ok()) << config.error().message;
  int64_t drafted = 0;
  std::vector<int64_t> steps(2);  // of each drafter
  const int count = setup.whole ? 200 : kSanitized ? 3 : 6;
  const auto run = [&](const Configuration& c, bool drafts) {
    EngineOptions options = options_of(c, model, folder);
    options.speculation = drafts ? Speculation::kOn : Speculation::kOff;
    options.draft_dir = drafts ? folder : "";
    options.kv_cache_dtype = setup.cache;
    options.tensor_parallel_size = setup.ranks;
    options.dummy_weights = setup.dummy_weights;
    add_second_drafter(setup.second_drafter, options);
    const auto engine = make_engine(options);
    std::vector<std::vector<TokenId>> tokens;
    for (const float temperature : {0.0f, 0.8f}) {
      for (const Output& out :
           run_all(*engine, make_requests(config->decoder.vocab, count, temperature), c.concurrency)) {
        tokens.push_back(out.tokens);
      }
    }
    const EngineStats stats = engine->stats();
    drafted += stats.drafted_tokens;
    for (size_t i = 0; i < stats.verify.drafters.size(); ++i) steps[i] += stats.verify.drafters[i].steps;
    return tokens;
  };
  const auto plain = run({"plain, alone", 0, 0, 1, 512, 16, 1, false, {}, true, false}, false);
  for (const Configuration& c : drafter_configurations()) {
    if (kSanitized && setup.ranks > 1 && c.concurrency == 8) continue;
    const auto tokens = run(c, true);
    int different = 0;
    for (size_t i = 0; i < plain.size(); ++i) different += tokens[i] != plain[i];
    EXPECT_EQ(different, 0) << folder << ", " << c.name;
    totals->add(plain.size(), different, std::nullopt);
  }
  EXPECT_GT(drafted, 0) << folder;
  if (!setup.second_drafter.empty()) {
    EXPECT_TRUE(steps[0] > 0 && steps[1] > 0) << steps[0] << " and " << steps[1];
  }
}

// A drafter of tests/data: they have windows, causality, biases, rotations and vocabularies of their own, and heads.
void check_form(const std::string& drafter, const Setup& setup) {
  const std::string folder = "tests/data/drafters/" + drafter;
  const std::string model = "tests/data/targets/" + target_of_drafter(drafter);
  Configuration drafts = configurations().front();
  drafts.block_size = 4;
  if (setup.ranks > 1 && !divides(options_of(drafts, model, folder), setup.ranks)) return;
  check_drafter(folder, model, setup);
}

class FormOfDrafter : public ::testing::TestWithParam<std::string> {};

TEST_P(FormOfDrafter, IsInvisible) {
  check_form(GetParam(), {});
}

TEST_P(FormOfDrafter, IsInvisibleOnSeveralRanks) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  check_form(GetParam(), {.ranks = 2});
  if (has_room_for(4) && !kSanitized) check_form(GetParam(), {.ranks = 4});
}

TEST_P(FormOfDrafter, IsInvisibleInACacheOfCodes) {
  check_form(GetParam(), {.cache = KvCacheType::kFp8});
}

// DeepSpec's format: the known token's row proposes, too.
TEST(DrafterInvariance, WhereEveryRowProposesToo) {
  const std::string dflash = "tests/data/drafters/one_layer", model = "tests/data/targets/plain";
  const TempFolder folder;
  fs::copy_file(dflash + "/model.safetensors", folder / "model.safetensors");
  nlohmann::json config = nlohmann::json::parse(std::ifstream(dflash + "/config.json"));
  config["architectures"] = {"Qwen3DSparkModel"};
  config["mask_token_id"] = config["dflash_config"]["mask_token_id"];
  config["target_layer_ids"] = {1};
  config["markov_rank"] = 0;
  config.erase("dflash_config");
  folder.write("config.json", config.dump());
  check_drafter(folder.path(), model, {});
}

class HeadOfTarget : public ::testing::TestWithParam<std::string> {};

// The heads of tests/data/mtp are random, too; what they carry from pass to pass is not in pages.
TEST_P(HeadOfTarget, IsInvisible) {
  check_drafter("tests/data/mtp/" + GetParam(), "tests/data/targets/" + GetParam(), {});
}

// Sizes that Hopper has codes for: there the head's layer and its copy of the output head are e4m3.
TEST(DrafterInvariance, AHeadInCodesToo) {
  nlohmann::json config = nlohmann::json::parse(std::ifstream("tests/data/mtp/hybrid_tied/config.json"));
  config["vocab_size"] = config["intermediate_size"] = 96;
  const TempFolder codes;
  codes.write("config.json", config.dump());
  check_drafter(codes.path(), codes.path(), {.dummy_weights = 3});
}

// Blocks and a chain, both of random weights; and answers that are often right beside a chain that is not.
void check_two_drafters(int ranks) {
  const std::string model = "tests/data/targets/hybrid_tied", chain = "tests/data/mtp/hybrid_tied";
  nlohmann::json config = nlohmann::json::parse(std::ifstream("tests/data/drafters/one_layer/config.json"));
  config["vocab_size"] = 90;
  config["num_target_layers"] = 4;
  config["dflash_config"] = {{"mask_token_id", 89}, {"target_layer_ids", {1, 3}}};
  const TempFolder blocks;
  blocks.write("config.json", config.dump());
  check_drafter(blocks.path(), model, {.ranks = ranks, .dummy_weights = 3, .second_drafter = chain});
  const std::vector<Configuration>& all = configurations();
  std::vector<Configuration> rows(all.begin(), all.begin() + (full_matrix() ? 8 : 3));
  for (Configuration& c : rows) c.verify = {VerifyPolicy::Kind::kAuto};
  check_model(model, {.ranks = ranks, .second_drafter = chain}, rows);
}

TEST(DrafterInvariance, TwoThatTakeTurns) {
  check_two_drafters(1);
}

TEST(DrafterInvariance, TwoThatTakeTurnsOnTwoRanks) {
  if (!has_room_for(2)) GTEST_SKIP() << "needs 2 GPUs";
  check_two_drafters(2);
}

// A prefix whose pages are there is a hit, though pages of the drafter's window before its end were evicted: it then
// drafts with less context, and the text is the same.
TEST(DrafterInvariance, WindowsOfADrafterVetoNoHit) {
  constexpr int kPrompts = 6;
  for (const std::string drafter : {"window_causal", "window_bidirectional"}) {
    const std::string model = "tests/data/targets/" + target_of_drafter(drafter);
    const auto config = families::read_target(model);
    ASSERT_TRUE(config.ok()) << config.error().message;
    const auto engine_with = [&](bool prefix_cache) {
      const Configuration c = {"", 4, 0, 1, 16, 16, 1, prefix_cache, {VerifyPolicy::Kind::kFull}, true, false};
      EngineOptions options = options_of(c, model, "tests/data/drafters/" + drafter);
      options.block_size = 0;  // the drafter's own
      options.kv_pages = 64;
      return make_engine(options);
    };
    const auto warm = engine_with(true), cold = engine_with(false);
    std::vector<GenerateRequest> prompts = make_requests(config->decoder.vocab, kPrompts, 0.8f);
    std::mt19937 random(9);
    for (GenerateRequest& request : prompts) {
      request.prompt.clear();
      for (int i = 0; i < 130; ++i) request.prompt.push_back(static_cast<TokenId>(random() % config->decoder.vocab));
      request.max_tokens = 8;
      request.shares_prompt = false;
      run_all(*warm, {request}, 1);
    }
    const EngineStats before = warm->stats();
    ASSERT_EQ(before.page_groups.size(), 2u);
    EXPECT_LT(before.page_groups[1].total, kPrompts * 8) << drafter << ": no window was evicted";
    for (GenerateRequest& request : prompts) {
      request.prompt.resize(96 + 1 + random() % 9);
      request.max_tokens = 40;
      const int64_t cached = warm->stats().cached_tokens;
      EXPECT_EQ(run_all(*warm, {request}, 1)[0].tokens, run_all(*cold, {request}, 1)[0].tokens) << drafter;
      EXPECT_EQ(warm->stats().cached_tokens - cached, 96) << drafter;
    }
    EXPECT_GT(warm->stats().drafted_tokens, before.drafted_tokens) << drafter;
  }
}

// Every turn of a conversation continues from the state that the one before ended with, drafted or not, and gives the
// same text as a cold run of the whole conversation.
TEST(RecurrentLayers, EveryTurnOfAConversationHitsItsPrefix) {
  constexpr int kTurns = 20, kAnswer = 6, kLonger = 256;
  for (const char* name : {"hybrid_wide", "next_experts"}) {
    const std::string model = std::string("tests/data/targets/") + name;
    const auto target = families::read_target(model);
    ASSERT_TRUE(target.ok()) << target.error().message;
    const ReplayFolder drafter;
    const auto options_with = [&](bool prefix_cache, int block, const std::string& draft) {
      Configuration c = {"", block, 0, 2, 16, 16, 1, prefix_cache, {VerifyPolicy::Kind::kFull}, false, false};
      EngineOptions options = options_of(c, model, draft);
      options.max_model_len = kLonger;
      options.state_snapshot_tokens = 32;
      return options;
    };
    std::mt19937 random(3);
    std::vector<GenerateRequest> turns;
    std::vector<Output> cold;
    const auto cold_engine = make_engine(options_with(false, 0, ""));
    std::vector<TokenId> so_far;
    for (int turn = 0; turn < kTurns; ++turn) {
      GenerateRequest request;
      const int more = 1 + static_cast<int>(random() % 10);
      for (int i = 0; i < more; ++i) so_far.push_back(static_cast<TokenId>(random() % target->decoder.vocab));
      request.prompt = so_far;
      request.sampling.seed = 40 + static_cast<uint64_t>(turn);
      request.sampling.temperature = turn % 2 == 0 ? 0 : 0.9f;
      request.ignore_eos = true;
      request.max_tokens = kAnswer;
      turns.push_back(request);
      cold.push_back(run_all(*cold_engine, {request}, 1)[0]);
      so_far.insert(so_far.end(), cold.back().tokens.begin(), cold.back().tokens.end());
    }
    drafter.record(turns, cold);
    drafter.configure(0.7f);
    for (const int block : {0, 8}) {
      const auto engine = make_engine(options_with(true, block, drafter.path()));
      int64_t before = 0;
      for (int turn = 0; turn < kTurns; ++turn) {
        const Output warm = run_all(*engine, {turns[static_cast<size_t>(turn)]}, 1)[0];
        EXPECT_EQ(warm.tokens, cold[static_cast<size_t>(turn)].tokens) << name << ", turn " << turn;
        const int64_t cached = engine->stats().cached_tokens - before;
        before += cached;
        if (turn == 0) continue;
        // The last token of an answer has no state yet.
        const auto old = std::ssize(turns[static_cast<size_t>(turn) - 1].prompt) + kAnswer - 1;
        EXPECT_EQ(cached, old) << name << ", block " << block << ", turn " << turn;
      }
      EXPECT_EQ(engine->stats().snapshots.end_hits, kTurns - 1);
      EXPECT_GT(engine->stats().snapshots.bytes, 0);
    }
  }
}

// The answers to one prompt share it: it is computed once, but for its last page.
TEST(RecurrentLayers, AnswersToOnePromptShareIt) {
  const std::string model = "tests/data/targets/hybrid_wide";
  const auto target = families::read_target(model);
  ASSERT_TRUE(target.ok()) << target.error().message;
  Configuration c = {"", 0, 0, 4, 64, 16, 1, true, {}, false, false};
  std::vector<GenerateRequest> requests(4, make_requests(target->decoder.vocab, 1, 0.8f)[0]);
  requests[0].prompt.resize(75, 5);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = requests[0].prompt;
    requests[i].sampling.choice_index = static_cast<int>(i);
    requests[i].shares_prompt = true;
    requests[i].group = 9;
  }
  EngineOptions options = options_of(c, model, "");
  options.max_num_batched_tokens = 64 + 4;
  const auto engine = make_engine(options);
  c.prefix_cache = false;
  const auto alone = run_all(*make_engine(options_of(c, model, "")), requests, 1);
  const auto expect_shared = [&](const std::vector<Output>& shared, const Engine& engine) {
    EXPECT_EQ(engine.stats().cached_tokens, 3 * 64) << "of the three that follow the first";
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(shared[i].tokens, alone[i].tokens) << i;
  };
  auto shared = run_all(*engine, {requests[0]}, 1);
  const auto others = run_all(*engine, {requests[1], requests[2], requests[3]}, 3);
  shared.insert(shared.end(), others.begin(), others.end());
  expect_shared(shared, *engine);
  const auto another = make_engine(options);
  expect_shared(run_all(*another, requests, 4), *another);  // all at once
}

// Layers with windows keep the positions that later rows see, for any length of context, also while prompts are
// computed.
TEST(WindowedLayers, LongContextsTakeFewPages) {
  constexpr int kOpen = 4;
  const Configuration c = {"", 0, 0, kOpen, 16, 16, 1, false, {}, true, false};
  EngineOptions options = options_of(c, "tests/data/targets/mistral_window", "");  // 9 positions, in all layers
  options.max_model_len = 256;
  const auto engine = make_engine(options);
  std::vector<GenerateRequest> requests = make_requests(64, 8, 0);
  for (GenerateRequest& request : requests) {
    request.prompt.resize(160, 3);
    request.max_tokens = 90;
  }
  int64_t most = 0, most_whole = 0;
  const auto outputs = run_all(*engine, requests, kOpen, [&](size_t, const Event&) {
    const EngineStats stats = engine->stats();
    ASSERT_EQ(stats.page_groups.size(), 2u);
    EXPECT_EQ(stats.page_groups[1].window, 9);
    most_whole = std::max(most_whole, stats.page_groups[0].used);
    most = std::max(most, stats.page_groups[1].used);
  });
  for (const Output& output : outputs) EXPECT_EQ(output.tokens.size(), 90u);
  EXPECT_EQ(engine->stats().page_groups[0].bytes, 0);
  EXPECT_GT(most_whole, kOpen * 160 / 16);
  EXPECT_GT(most, 0);
  // 8 positions before a row, two chunks and a few rows ahead; both ends lie inside a page.
  EXPECT_LE(most, kOpen * ((8 + 2 * 16 + 3) / 16 + 2));
  // Counters follow the last event.
  for (int i = 0; i < 1000 && engine->stats().requests_running > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(engine->stats().page_groups[1].used, 0);
}

INSTANTIATE_TEST_SUITE_P(Targets, TensorParallel, ::testing::ValuesIn(divided_targets()), [](const auto& info) {
  const Divided& d = info.param;
  return d.target + "On" + std::to_string(d.ranks) + (d.by_expert ? "WithWholeExperts" : "");
});
INSTANTIATE_TEST_SUITE_P(Drafters, FormOfDrafter, ::testing::ValuesIn(folders("drafters")),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Targets, HeadOfTarget, ::testing::ValuesIn(folders("mtp")),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Targets, FamilyInvariance, ::testing::ValuesIn(folders("targets")),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace volley::testing
