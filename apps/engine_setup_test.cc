// Models and modes that follow from the flags.
#include "apps/engine_setup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "apps/cli/model_location.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;

TEST(EngineSetup, WithoutModelTakesThePocketPair) {
  const auto setup = resolve_engine({}, 3);
  ASSERT_TRUE(setup.ok()) << setup.error().message;
  EXPECT_EQ(setup->model_name, "pocket");
  EXPECT_EQ(setup->draft_name, "pocket-dflash");
  EXPECT_EQ(setup->options.speculation, Speculation::kOn);
  EXPECT_EQ(setup->options.max_num_seqs, 3);
  EXPECT_TRUE(setup->notes.empty());
}

TEST(EngineSetup, ModelAloneDecodesPlainlyAndSaysSo) {
  EngineFlags flags;
  flags.model = "some/model/";
  const auto setup = resolve_engine(flags, 0);
  ASSERT_TRUE(setup.ok());
  EXPECT_EQ(setup->model_name, "model");
  EXPECT_EQ(setup->options.speculation, Speculation::kOff);
  EXPECT_TRUE(setup->options.draft_dir.empty());
  EXPECT_EQ(setup->notes.size(), 1u);
}

TEST(EngineSetup, DraftNoneIsSilent) {
  EngineFlags flags;
  flags.draft = "none";
  const auto setup = resolve_engine(flags, 0);
  ASSERT_TRUE(setup.ok());
  EXPECT_EQ(setup->options.speculation, Speculation::kOff);
  EXPECT_TRUE(setup->notes.empty());
}

TEST(EngineSetup, SpeculationOffDropsTheDrafter) {
  EngineFlags flags;
  flags.speculation = Speculation::kOff;
  const auto setup = resolve_engine(flags, 0);
  ASSERT_TRUE(setup.ok());
  EXPECT_TRUE(setup->options.draft_dir.empty());
  EXPECT_TRUE(setup->notes.empty());
}

TEST(EngineSetup, SpeculationNeedsADrafter) {
  EngineFlags flags;
  flags.model = "some/model";
  flags.speculation = Speculation::kOn;
  EXPECT_EQ(resolve_engine(flags, 0).error().code, ErrorCode::kInvalidArgument);
  flags.speculation.reset();
  flags.base.block_size = 8;
  EXPECT_EQ(resolve_engine(flags, 0).error().code, ErrorCode::kInvalidArgument);
  flags.base.block_size = 0;
  flags.base.verify = {VerifyPolicy::Kind::kFixed, 3};
  EXPECT_EQ(resolve_engine(flags, 0).error().code, ErrorCode::kInvalidArgument);
  flags.base.verify = {};
  flags.simulations = {*parse_simulation("geometric:0.5")};
  EXPECT_EQ(resolve_engine(flags, 0).error().code, ErrorCode::kInvalidArgument);
}

TEST(EngineSetup, SimulationSaysThatTextsMeanNothing) {
  EngineFlags flags;
  flags.simulations = {*parse_simulation("geometric:0.5+10:0.25")};
  flags.confidence_odds = 2;
  const auto setup = resolve_engine(flags, 0);
  ASSERT_TRUE(setup.ok());
  ASSERT_TRUE(setup->simulate_acceptance);
  EXPECT_EQ(setup->simulate_acceptance->phases.size(), 2u);
  EXPECT_EQ(setup->simulate_acceptance->confidence_odds, 2);
  ASSERT_EQ(setup->notes.size(), 1u);
  EXPECT_NE(setup->notes[0].find("meaningless"), std::string::npos);
}

TEST(EngineSetup, WhatStepsCostIsKeptInTheUsersCache) {
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "/some/cache", 1), 0);
  EngineFlags flags;
  EXPECT_EQ(resolve_engine(flags, 0)->options.cost_cache_dir, "/some/cache/volley");
  flags.base.cost_cache_dir = "here";
  EXPECT_EQ(resolve_engine(flags, 0)->options.cost_cache_dir, "here");
  flags.base.cost_cache_dir = "none";
  EXPECT_EQ(resolve_engine(flags, 0)->options.cost_cache_dir, "");
  ASSERT_EQ(unsetenv("XDG_CACHE_HOME"), 0);
}

TEST(EngineSetup, RandomWeightsSayThatTextsMeanNothing) {
  EngineFlags flags;
  flags.base.dummy_weights = 1;
  const auto setup = resolve_engine(flags, 0);
  ASSERT_TRUE(setup.ok());
  ASSERT_EQ(setup->notes.size(), 1u);
  EXPECT_NE(setup->notes[0].find("meaningless"), std::string::npos);
}

TEST(EngineSetup, AFolderThatIsNotThereSaysWhatItMustBe) {
  EngineOptions options;
  options.model_dir = "some/model";
  const Status missing = check_folders(options);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("Hugging Face folder"), std::string::npos);
  options.model_dir = "models";
  EXPECT_NE(check_folders(options).error().message.find("models has no config.json"), std::string::npos);
  options.model_dir = "models/pocket/config.json";
  EXPECT_NE(check_folders(options).error().message.find("is a file, not a folder"), std::string::npos);
  options.model_dir = "models/pocket";
  EXPECT_TRUE(check_folders(options).ok());
}

// "has no config.json" would make the user look for a broken download.
TEST(EngineSetup, AFolderThatCannotBeReadSaysSo) {
  const fs::path folder = fs::temp_directory_path() / ("volley_folder_" + std::to_string(getpid()));
  fs::create_directories(folder);
  EngineOptions options;
  options.model_dir = folder.string();
  EXPECT_NE(check_folders(options).error().message.find("is empty"), std::string::npos);
  std::ofstream(folder / "config.json") << "{}";
  fs::permissions(folder, fs::perms::none);
  const bool root = geteuid() == 0;
  ASSERT_TRUE(!root || seteuid(65534) == 0);  // root may read anything
  const Status closed = check_folders(options);
  ASSERT_TRUE(!root || seteuid(0) == 0);
  fs::permissions(folder, fs::perms::owner_all);
  fs::remove_all(folder);
  ASSERT_FALSE(closed.ok());
  EXPECT_NE(closed.error().message.find("cannot be read (Permission denied)"), std::string::npos)
      << closed.error().message;
}

TEST(ModelLocation, InstalledModelsComeBeforeTheSourceTree) {
  const fs::path root = fs::temp_directory_path() / ("volley_location_" + std::to_string(getpid()));
  const auto add = [](const fs::path& folder) {
    fs::create_directories(folder);
    std::ofstream(folder / "config.json") << "{}";
  };
  const std::string program = (root / "bin" / "volley").string(), source = (root / "source").string();
  EXPECT_EQ(find_pocket_models(program, source).error().code, ErrorCode::kNotFound);
  add(root / "source" / "pocket");
  add(root / "source" / "pocket-dflash");
  EXPECT_EQ(find_pocket_models(program, source)->target, (root / "source" / "pocket").string());
  add(root / "share" / "volley" / "models" / "pocket");
  EXPECT_EQ(find_pocket_models(program, source)->target, (root / "source" / "pocket").string()) << "half a pair";
  add(root / "share" / "volley" / "models" / "pocket-dflash");
  EXPECT_EQ(find_pocket_models(program, source)->draft,
            (root / "share" / "volley" / "models" / "pocket-dflash").string());
  fs::remove_all(root);
}

}  // namespace
}  // namespace volley::apps
