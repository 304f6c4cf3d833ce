// Protects a tensor-parallel group's memory, to the byte, its threads, and its refusals.
#include "engine/run/replica.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/device_testing.h"
#include "engine/start/round_setup.h"

namespace volley::engine {
namespace {

EngineOptions pocket(int ranks) {
  EngineOptions options;
  options.device = "cpu";
  options.model_dir = "models/pocket";
  options.draft_dir = "models/pocket-dflash";
  options.dummy_weights = 1;
  options.threads = 3;
  options.max_num_seqs = 4;
  options.kv_pages = 300;
  options.tensor_parallel_size = ranks;
  return options;
}

ResolvedModels resolve(const EngineOptions& options) {
  auto models = resolve_models(options);
  VOLLEY_CHECK_MSG(models.ok(), models.error().message);
  return std::move(models).value();
}

// Checks that all ranks together take the planned memory, and that a rank reads only its own part.
void expect_planned(const EngineOptions& options) {
  const ResolvedModels models = resolve(options);
  const int ranks = options.tensor_parallel_size;
  int64_t taken = 0;
  for (int watched = 0; watched < ranks; ++watched) {
    const WatchedDevice* device = nullptr;
    const auto replica = Replica::create(options, models, {}, [&](std::unique_ptr<Device> made, int rank) {
      if (rank != watched) return made;
      auto wrapped = std::make_unique<WatchedDevice>(std::move(made));
      device = wrapped.get();
      return std::unique_ptr<Device>(std::move(wrapped));
    });
    ASSERT_TRUE(replica.ok()) << replica.error().message;
    taken += device->bytes();
    EXPECT_EQ((*replica)->ranks(), ranks);
    EXPECT_EQ((*replica)->ready().state_bytes, models.memory.state_bytes);
  }
  const MemoryPlan& plan = models.memory;
  EXPECT_EQ(taken, plan.weight_bytes + plan.kv_bytes() + plan.page_bytes() + plan.state_bytes + plan.snapshot_bytes +
                       plan.step_bytes)
      << options.model_dir << " on " << ranks << "; the pages' are the scrap pages";
}

TEST(Replica, TakesWhatWasPlanned) {
  expect_planned(pocket(1));
  expect_planned(pocket(2));
  EngineOptions hybrid = pocket(4);
  hybrid.model_dir = "tests/data/targets/next_experts";
  hybrid.draft_dir.clear();
  hybrid.speculation = Speculation::kOff;
  hybrid.dummy_weights.reset();
  expect_planned(hybrid);
  hybrid.tensor_parallel_size = 2;
  hybrid.enable_expert_parallel = true;
  expect_planned(hybrid);
}

TEST(Replica, DividesWeightsAndKv) {
  const ResolvedModels one = resolve(pocket(1)), two = resolve(pocket(2));
  ASSERT_EQ(two.rank_weights.size(), 2u);
  const auto whole = static_cast<double>(one.weights.total());
  for (const model::WeightBytes& rank : two.rank_weights) {
    EXPECT_LT(static_cast<double>(rank.total()), 0.6 * whole);
    EXPECT_GT(static_cast<double>(rank.total()), 0.4 * whole);
  }
  EXPECT_EQ(two.weights.total(), two.rank_weights[0].total() + two.rank_weights[1].total());
  EXPECT_EQ(two.memory.page_bytes(), one.memory.page_bytes()) << "of both ranks";
  EXPECT_EQ(two.kv.groups[0].bytes * 2, one.kv.groups[0].bytes) << "of one";
  EXPECT_EQ(two.scheduler().groups[0].bytes, one.scheduler().groups[0].bytes);
}

TEST(Replica, SharesOutThreads) {
  EXPECT_EQ(threads_of_rank(5, 0, 2) + threads_of_rank(5, 1, 2), 5);
  EXPECT_EQ(threads_of_rank(3, 3, 4), 1) << "each has one";
  const auto replica = Replica::create(pocket(2), resolve(pocket(2)), {});
  ASSERT_TRUE(replica.ok()) << replica.error().message;
  EXPECT_EQ((*replica)->ready().threads, 3);
}

std::string refusal(const EngineOptions& options, ErrorCode code) {
  const auto models = resolve_models(options);
  if (models.ok()) return "";
  EXPECT_EQ(models.error().code, code) << models.error().message;
  return models.error().message;
}

TEST(Replica, RefusesWhatDoesNotDivide) {
  const std::string three = refusal(pocket(3), ErrorCode::kInvalidArgument);
  EXPECT_NE(three.find("--tensor-parallel-size is 3: use 1, 2, 4, 8 or 16."), std::string::npos) << three;
  const std::string heads = refusal(pocket(4), ErrorCode::kInvalidArgument);
  EXPECT_NE(heads.find("--tensor-parallel-size 4"), std::string::npos) << heads;
  EXPECT_NE(heads.find("use 2"), std::string::npos) << heads;
}

// Whole experts take no more memory than parts of each, and the same on every rank.
TEST(Replica, DividesExperts) {
  EngineOptions options = pocket(2);
  options.model_dir = "tests/data/targets/moe_single";
  options.draft_dir.clear();
  options.speculation = Speculation::kOff;
  const ResolvedModels by_width = resolve(options);
  options.enable_expert_parallel = true;
  const ResolvedModels by_expert = resolve(options);
  EXPECT_TRUE(by_expert.target.decoder.divides_by_expert());
  EXPECT_FALSE(by_width.target.decoder.divides_by_expert());
  const auto more_on_first = [](const ResolvedModels& m) {
    return m.rank_weights[0].total() - m.rank_weights[1].total();
  };
  EXPECT_EQ(more_on_first(by_expert), more_on_first(by_width)) << "that of the output head";
  EXPECT_LE(by_expert.weights.total(), by_width.weights.total()) << "panels of cut experts are padded";
  EXPECT_TRUE(by_expert.warnings == by_width.warnings);
  options.tensor_parallel_size = 1;
  const ResolvedModels alone = resolve(options);
  ASSERT_EQ(alone.warnings.size(), by_expert.warnings.size() + 1);
  EXPECT_NE(alone.warnings.back().find("--enable-expert-parallel changes nothing"), std::string::npos);
}

TEST(Replica, RefusesToDivideExpertsWhereItCannot) {
  EngineOptions options = pocket(2);
  options.enable_expert_parallel = true;
  const std::string dense = refusal(options, ErrorCode::kInvalidArgument);
  EXPECT_NE(dense.find("--enable-expert-parallel divides the experts of a mixture"), std::string::npos) << dense;
  options.model_dir = "tests/data/targets/moe_stacked";  // this model has five experts
  options.draft_dir.clear();
  options.speculation = Speculation::kOff;
  options.tensor_parallel_size = 1;
  options.data_parallel_size = 2;
  EXPECT_EQ(resolve(options).expert_replicas, 2) << "replicas may have unequal parts";
  options.restart_on_device_error = true;
  const std::string restarts = refusal(options, ErrorCode::kUnimplemented);
  EXPECT_NE(restarts.find("--restart-on-device-error is not built"), std::string::npos) << restarts;
}

}  // namespace
}  // namespace volley::engine
