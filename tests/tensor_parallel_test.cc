// Models whose layers and heads several ranks have together, as threads on CPUs or GPUs: targets and drafters of all
// families against the references of parity_test.cc, within its bounds; and the same bits on all ranks, from run to
// run, in any chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <mutex>
#include <set>

#include "base/threads_for_test.h"
#include "decode/dflash/config.h"
#include "device/dry_run.h"
#include "families/family.h"
#include "fixtures.h"
#include "model/shard.h"
#include "model_runner.h"

namespace volley::testing {
namespace {

using Rows = std::vector<std::vector<float>>;

const bool kOnCpu = kTestDevice == "cpu";

// A GPU for each rank.
bool has_devices(int ranks) {
  return kOnCpu || examine_cuda_device(ranks - 1).ok();
}

// The results of each rank's runner, by rank.
template <typename T>
std::vector<T> on_ranks(int ranks, const std::string& target, const std::string& draft, ComputeType dtype,
                        const std::function<T(ModelRunner&)>& ask, bool by_expert = false) {
  auto made = comm::make_group(kOnCpu ? DeviceKind::kCpu : DeviceKind::kCuda, ranks, 0);
  VOLLEY_CHECK_MSG(made.ok(), made.error().message);
  comm::Group group = *std::move(made);
  std::vector<T> answers(ranks);
  std::barrier all(ranks);
  on_threads(ranks, [&](int rank) {
    ModelRunner runner(target, draft, dtype, 64, std::nullopt, kTestDevice, group[rank].get(), by_expert);
    all.arrive_and_wait();  // all are prepared
    answers[rank] = ask(runner);
    all.arrive_and_wait();  // nobody needs this one any more
    group[rank].reset();
  });
  return answers;
}

template <typename T>
void expect_the_same(const std::vector<T>& answers, const std::string& what) {
  for (size_t rank = 1; rank < answers.size(); ++rank) {
    EXPECT_TRUE(answers[rank] == answers[0]) << what << ": rank " << rank << " has other bits";
  }
}

const std::string kNoExperts = "no experts";

// Why the model in that folder cannot be loaded by so many ranks; empty where it can.
std::string refusal(const std::string& dir, int ranks, bool by_expert = false) {
  auto config = families::read_target(dir);
  VOLLEY_CHECK(config.ok());
  if (by_expert && !config->decoder.divide_by_expert()) return kNoExperts;
  if (const Status status = model::check_ranks(config->decoder, ranks, "the target"); !status.ok()) {
    return status.error().message;
  }
  auto files = weights::open_safetensors(dir);
  VOLLEY_CHECK(files.ok());
  const std::shared_ptr<const weights::Checkpoint> checkpoint = weights::with_names(*std::move(files), config->names);
  const model::Numerics numerics = model::resolve_numerics(ComputeType::kFloat32, checkpoint->main_dtype());
  DryDevice device(1);
  const auto list = model::shard(model::params(config->decoder), 0, ranks);
  model::WeightLoader loader(device, *checkpoint, numerics, list);
  const auto network =
      model::Network::load(loader, checkpoint, model::shard_of(config->decoder, 0, ranks), numerics, 64);
  if (network.ok()) {
    const model::WeightBytes bytes = model::weight_bytes(list, numerics, *checkpoint, DeviceKind::kCpu);
    int64_t packed = 0;
    for (const auto& [dtype, n] : bytes.matrices) packed += n;
    EXPECT_EQ((*network)->packed_bytes(), packed) << dir << ": the plan's bytes are those that a rank takes";
  }
  return network.ok() ? "" : network.error().message;
}

// A folder of tests/data, and how many of its models, of how many families, can be divided among the ranks: others have
// odd numbers of heads, or groups of codes as wide as their layers.
struct Case {
  const char* folder;
  int ranks;
  size_t models, families;
  bool by_expert = false;  // mixtures alone, whose experts stay whole
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return info.param.folder + std::to_string(info.param.ranks) + (info.param.by_expert ? "WithWholeExperts" : "");
}

class TargetsOnRanks : public ::testing::TestWithParam<Case> {};

TEST_P(TargetsOnRanks, HaveTheLogitsOfTheReference) {
  const auto [folder, ranks, models, of_families, by_expert] = GetParam();
  if (!has_devices(ranks)) GTEST_SKIP() << "needs " << ranks << " GPUs";
  std::set<std::string> families;
  size_t compared = 0;
  for (const std::string& name : folders(folder)) {
    const std::string dir = std::string("tests/data/") + folder + "/" + name;
    const std::string family = families::read_target(dir)->decoder.family;
    if (const std::string why = refusal(dir, ranks, by_expert); !why.empty()) {
      if (why == kNoExperts) continue;
      EXPECT_THAT(why, ::testing::HasSubstr("--tensor-parallel-size"));
      std::printf("%-18s %s\n", name.c_str(), why.c_str());
      continue;
    }
    const Fixture expected(dir + "/expected");
    const auto ids = expected.ids("prompt_ids", 40);
    const auto ask = [&](ModelRunner& runner) { return std::pair(runner.logits(ids), runner.logits(ids, 7)); };
    using Answer = std::pair<Rows, Rows>;
    const auto answers = on_ranks<Answer>(ranks, dir, "", ComputeType::kFloat32, ask, by_expert);
    expect_the_same(answers, name);
    const Rows& logits = answers[0].first;
    EXPECT_TRUE(answers[0].second == logits) << name << ": chunks change bits";
    EXPECT_TRUE(on_ranks<Answer>(ranks, dir, "", ComputeType::kFloat32, ask, by_expert)[0].first == logits) << name;
    const auto config = families::read_target(dir);
    const double error = relative_error(logits, expected.matrix("logits", 40, config->decoder.vocab));
    std::printf("%-18s %d ranks%s, relative error %.1e\n", name.c_str(), ranks, by_expert ? ", whole experts" : "",
                error);
    EXPECT_LT(error, config->decoder.state_layers() > 0 ? kRecurrentTolerance : kTolerance) << name;
    families.insert(family);
    ++compared;
  }
  EXPECT_GE(compared, models);
  EXPECT_GE(families.size(), of_families);
}

INSTANTIATE_TEST_SUITE_P(All, TargetsOnRanks,
                         ::testing::Values(Case{"targets", 2, 20, 9}, Case{"targets", 4, 11, 6},
                                           Case{"quantised", 2, 12, 4}, Case{"quantised", 4, 2, 1},
                                           Case{"targets", 8, 2, 1}, Case{"targets", 2, 4, 3, true},
                                           Case{"targets", 4, 2, 1, true}, Case{"targets", 8, 2, 1, true},
                                           Case{"quantised", 2, 3, 1, true}, Case{"quantised", 4, 2, 1, true}),
                         case_name);

// The choices of two ranks in a layer of experts, by rank, and those of the reference.
struct ChosenExperts {
  std::vector<std::vector<int32_t>> by_rank;
  std::vector<int32_t> wanted;
  int32_t experts;
  std::string where;
};
void for_layers_of_experts(bool by_expert, const std::function<void(const ChosenExperts&)>& check) {
  int layers = 0;
  for (const std::string& name : folders("targets")) {
    const std::string dir = "tests/data/targets/" + name;
    if (!refusal(dir, 2, by_expert).empty()) continue;
    const model::Decoder decoder = families::read_target(dir)->decoder;
    const Fixture expected(dir + "/expected");
    for (size_t i = 0; i < decoder.layers.size(); ++i) {
      if (decoder.experts(i) == nullptr) continue;
      const int top_k = decoder.experts(i)->router.top_k;
      using Chosen = std::vector<std::vector<int32_t>>;
      const auto ids = expected.ids("prompt_ids", 40);
      const auto answers = on_ranks<Chosen>(
          2, dir, "", ComputeType::kFloat32, [&](ModelRunner& runner) { return runner.experts(ids, top_k); },
          by_expert);
      check({{answers[0][i], answers[1][i]},
             expected.ids("experts." + std::to_string(i), 40 * top_k),
             decoder.experts(i)->router.experts,
             name + ", layer " + std::to_string(i)});
      ++layers;
    }
  }
  EXPECT_GE(layers, 5);
}

// Every entry belongs to one rank, and has the reference's expert.
TEST(TargetsOnRanks, DivideTheExpertsOfTheReference) {
  if (!has_devices(2)) GTEST_SKIP() << "needs 2 GPUs";
  for_layers_of_experts(true, [](const ChosenExperts& chosen) {
    for (size_t entry = 0; entry < chosen.wanted.size(); ++entry) {
      const int own = chosen.wanted[entry] < chosen.experts / 2 ? 0 : 1;
      ASSERT_EQ(chosen.by_rank[own][entry], chosen.wanted[entry]) << chosen.where << ", entry " << entry;
      ASSERT_EQ(chosen.by_rank[1 - own][entry], -1) << chosen.where << ", entry " << entry;
    }
  });
}

// All ranks send a row to the same experts, those of the reference.
TEST(TargetsOnRanks, ChooseTheExpertsOfTheReference) {
  if (!has_devices(2)) GTEST_SKIP() << "needs 2 GPUs";
  for_layers_of_experts(false, [](const ChosenExperts& chosen) {
    for (const auto& of_rank : chosen.by_rank) EXPECT_EQ(of_rank, chosen.wanted) << chosen.where;
  });
}

TEST(TargetsOnRanks, AGroupOfOneHasTheBitsOfNone) {
  for (const std::string folder : {"targets", "quantised"}) {
    for (const std::string& name : folders(folder)) {
      const std::string dir = "tests/data/" + folder + "/" + name;
      const Fixture expected(dir + "/expected");
      const auto ids = expected.ids("prompt_ids", 40);
      ModelRunner alone(dir, "", ComputeType::kFloat32, 64);
      const Rows logits = alone.logits(ids);
      const auto ask = [&](ModelRunner& runner) { return runner.logits(ids); };
      EXPECT_TRUE(on_ranks<Rows>(1, dir, "", ComputeType::kFloat32, ask)[0] == logits) << name;
      const double bound = alone.spec().state_layers() > 0 ? kRecurrentTolerance : kTolerance;
      EXPECT_LT(relative_error(logits, expected.matrix("logits", 40, alone.spec().vocab)), bound) << name;
    }
  }
}

// bf16 rounds what ranks exchange nowhere else than one rank does.
TEST(TargetsOnRanks, InBfloat16AreTheSameOnAllRanksInAnyChunks) {
  if (!has_devices(2)) GTEST_SKIP() << "needs 2 GPUs";
  int compared = 0;
  for (const std::string& name : folders("targets")) {
    const std::string dir = "tests/data/targets/" + name;
    if (!refusal(dir, 2).empty()) continue;
    const auto ids = Fixture(dir + "/expected").ids("prompt_ids", 40);
    const auto ask = [&](ModelRunner& runner) { return std::pair(runner.logits(ids), runner.logits(ids, 3)); };
    const auto answers = on_ranks<std::pair<Rows, Rows>>(2, dir, "", ComputeType::kBFloat16, ask);
    expect_the_same(answers, name);
    EXPECT_TRUE(answers[0].second == answers[0].first) << name << ": chunks change bits";
    ++compared;
  }
  EXPECT_GE(compared, 10);
}

class DraftersOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(DraftersOnRanks, HaveHiddenStatesAndLogitsOfTheReference) {
  const int ranks = GetParam();
  if (!has_devices(ranks)) GTEST_SKIP() << "needs " << ranks << " GPUs";
  int compared = 0, with_logits = 0;
  for (const std::string& name : folders("drafters")) {
    const std::string dir = "tests/data/drafters/" + name, target = "tests/data/targets/" + target_of_drafter(name);
    const decode::dflash::Facts facts = *decode::dflash::read_config(dir);
    const int32_t block_size = facts.first_proposal + facts.proposals;
    if (!refusal(target, ranks).empty() || !model::check_ranks(facts.decoder, ranks, "the drafter").ok()) continue;
    ++compared;
    const Fixture expected(dir + "/expected");
    const Rows all = expected.matrix("features", 40, std::ssize(facts.feature_layers) * facts.decoder.hidden);
    for (const int context : {1, 9, 40}) {
      const std::string suffix = "." + std::to_string(context);
      const auto block = expected.ids("block_ids" + suffix, block_size);
      const Rows features(all.begin(), all.begin() + context);
      using Answer = std::pair<Rows, Rows>;
      const auto answers = on_ranks<Answer>(ranks, target, dir, ComputeType::kFloat32, [&](ModelRunner& runner) {
        return Answer(runner.draft_hidden(features, block), runner.draft_logits(features, block));
      });
      expect_the_same(answers, name);
      const auto reference = expected.matrix("hidden" + suffix, block_size, facts.decoder.hidden);
      EXPECT_LT(relative_error(answers[0].first, reference), kTolerance) << name << ", context " << context;
      if (!expected.has("logits" + suffix)) continue;
      ++with_logits;
      auto wanted = expected.matrix("logits" + suffix, block_size, facts.decoder.vocab);
      auto got = answers[0].second;
      for (size_t i = 0; i < wanted.size(); ++i) {
        for (size_t token = 0; token < wanted[i].size(); ++token) {
          ASSERT_EQ(std::isinf(got[i][token]), std::isinf(wanted[i][token])) << name << ", token " << token;
          if (std::isinf(got[i][token])) got[i][token] = wanted[i][token] = 0;
        }
      }
      EXPECT_LT(relative_error(got, wanted), kTolerance) << name << ", context " << context;
    }
  }
  std::printf("%d drafters on %d ranks, %d with logits\n", compared, ranks, with_logits);
  EXPECT_GE(compared, ranks == 2 ? 5 : 2);
  EXPECT_GE(with_logits, ranks == 2 ? 3 : 0);
}

INSTANTIATE_TEST_SUITE_P(All, DraftersOnRanks, ::testing::Values(2, 4));

}  // namespace
}  // namespace volley::testing
