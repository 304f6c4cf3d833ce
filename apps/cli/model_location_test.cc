// Finds models by hub names in a cache laid out like Hugging Face's.
#include "apps/cli/model_location.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "apps/cli/known_drafters.h"
#include "apps/engine_setup.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;

class HubCache : public testing::Test {
 protected:
  HubCache() : cache_((fs::temp_directory_path() / ("volley_hub_" + std::to_string(getpid()))).string()) {}
  ~HubCache() override { fs::remove_all(cache_); }

  std::string add(const std::string& folder, const std::string& commit) {
    const fs::path root = fs::path(cache_) / folder;
    fs::create_directories(root / "refs");
    fs::create_directories(root / "snapshots" / commit);
    std::ofstream(root / "refs" / "main") << commit;
    return (root / "snapshots" / commit).string();
  }

  const std::string cache_;
};

TEST_F(HubCache, TheRevisionMainIsTaken) {
  const std::string dir = add("models--Qwen--Qwen3-8B", "abc");
  fs::create_directories(fs::path(cache_) / "models--Qwen--Qwen3-8B" / "snapshots" / "older");
  const LocatedModel model = locate_model("Qwen/Qwen3-8B", cache_);
  EXPECT_EQ(model.dir, dir);
  EXPECT_EQ(model.name, "Qwen/Qwen3-8B");
  EXPECT_EQ(locate_model(dir, cache_).name, "Qwen/Qwen3-8B") << "a snapshot named as a folder has the hub's name too";
  EXPECT_EQ(locate_model(dir + "/", cache_).dir, dir + "/");
}

TEST_F(HubCache, WhatIsNotThereStaysAsGiven) {
  EXPECT_EQ(locate_model("Qwen/Qwen3-8B", cache_).dir, "Qwen/Qwen3-8B");
  EXPECT_EQ(locate_model("Qwen/Qwen3-8B", "").dir, "Qwen/Qwen3-8B");
  add("models--Qwen--Qwen3-4B", "../../outside");
  EXPECT_EQ(locate_model("Qwen/Qwen3-4B", cache_).dir, "Qwen/Qwen3-4B") << "a revision is a name, not a path";
  add("models--models--pocket", "abc");
  EXPECT_EQ(locate_model("models/pocket", cache_).dir, "models/pocket") << "a folder that exists comes first";
}

TEST_F(HubCache, TheKnownDrafterIsFoundOrNamed) {
  const LocatedModel target{"/srv/Qwen3-8B", "Qwen3-8B"};
  const auto missing = locate_known_drafter(target, cache_);
  EXPECT_EQ(missing.error().message, "The drafter of Qwen3-8B is not in " + cache_ +
                                         ": get it with volley pull z-lab/Qwen3-8B-DFlash-b16, or name its folder "
                                         "with --draft.");
  const std::string dir = add("models--z-lab--Qwen3-8B-DFlash-b16", "abc");
  EXPECT_EQ(locate_known_drafter(target, cache_)->dir, dir);
  EXPECT_EQ(locate_known_drafter({"x", "Own/Model"}, cache_).error().message,
            "--draft auto knows no drafter for Own/Model: name one with --draft, or leave it out.");
}

TEST(KnownDrafters, GoByTheLastPartOfTheName) {
  EXPECT_EQ(known_drafter("Qwen/Qwen3-8B"), "z-lab/Qwen3-8B-DFlash-b16");
  EXPECT_EQ(known_drafter("/srv/models/qwen3-8b-fp8/"), "z-lab/Qwen3-8B-DFlash-b16");
  EXPECT_EQ(known_drafter("openai/gpt-oss-120b"), "z-lab/gpt-oss-120b-DFlash");
  EXPECT_EQ(known_drafter("Qwen/Qwen3-8B-Base"), std::nullopt) << "another model has other features";
}

TEST(HubNames, AreTwoParts) {
  EXPECT_TRUE(is_hub_name("Qwen/Qwen3.5-35B-A3B"));
  for (const char* text : {"Qwen3-8B", "./Qwen3-8B", "../x", "/srv/x", "a/b/c", "a/", "a b/c"}) {
    EXPECT_FALSE(is_hub_name(text)) << text;
  }
}

TEST(HubNames, MayNameOneFile) {
  EXPECT_EQ(parse_hub_model("a/b:Q4_K_M")->quant, "q4_k_m");
  EXPECT_EQ(parse_hub_model("a/b/c/d.gguf")->file, "c/d.gguf");
  EXPECT_EQ(parse_hub_model("a/b")->cache_folder(), "models--a--b");
  for (const char* text : {"a/b:", "a:b", "a/b/../../c.gguf", "/a/b/c.gguf", "./a/c.gguf", "a/b/c.safetensors"}) {
    EXPECT_FALSE(parse_hub_model(text)) << text;
  }
}

TEST(HubNames, AQuantisationIsAWholeWordOfAFilesName) {
  using Files = std::vector<std::string>;
  const Files files = {"M-BF16.gguf",
                       "M-F16.gguf",
                       "M-Q4_K_M-00001-of-00002.gguf",
                       "M-Q4_K_M-00002-of-00002.gguf",
                       "M-UD-Q4_K_XL.gguf",
                       "mmproj-Q8_0.gguf",
                       "x/M.q8_0.gguf"};
  const auto chosen = [&files](const char* text) { return choose_gguf(files, *parse_hub_model(text)); };
  EXPECT_EQ(chosen("a/b:f16"), Files{"M-F16.gguf"});
  EXPECT_EQ(chosen("a/b:Q4_K_M"), (Files{files[2], files[3]}));
  EXPECT_EQ(chosen("a/b/M-Q4_K_M-00001-of-00002.gguf"), (Files{files[2], files[3]}));
  EXPECT_EQ(chosen("a/b:Q4_K_XL"), Files{"M-UD-Q4_K_XL.gguf"});
  EXPECT_EQ(chosen("a/b:Q8_0"), Files{"x/M.q8_0.gguf"});
  EXPECT_EQ(chosen("a/b:Q4_K"), Files{});
  EXPECT_EQ(chosen("a/b/M.gguf"), Files{});
}

TEST(LocateModels, PocketHasItsOwnDrafter) {
  const auto folders = locate_models({}, "auto");
  ASSERT_TRUE(folders.ok());
  ASSERT_EQ(folders->drafts.size(), 1u);
  EXPECT_EQ(folders->drafts[0].name, "pocket-dflash");
  EXPECT_TRUE(locate_models({}, "none")->drafts.empty());
}

TEST(LocateModels, TwoDraftersHaveACommaBetween) {
  const auto folders = locate_models("some/model", "some/drafter,mtp");
  ASSERT_TRUE(folders.ok());
  ASSERT_EQ(folders->drafts.size(), 2u);
  EXPECT_EQ(folders->drafts[0].dir, "some/drafter");
  EXPECT_EQ(folders->drafts[1].dir, "some/model");
  EXPECT_FALSE(locate_models("some/model", "a,b,c").ok());
  EXPECT_FALSE(locate_models("some/model", "none,mtp").ok());
}

TEST(CheckFolders, SayHowToGetAModelOfTheHub) {
  EngineOptions options;
  options.model_dir = "Nobody/Has-This";
  const Status status = check_folders(options);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("volley pull Nobody/Has-This"), std::string::npos) << status.error().message;
}

}  // namespace
}  // namespace volley::apps
