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

// GGUF files in the caches of three programs.
class ModelNames : public HubCache {
 protected:
  ModelNames() {
    const std::string qwen = add("models--unsloth--Qwen3-8B-GGUF", "abc");
    for (const char* file : {"Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q8_0.gguf", "mmproj-F16.gguf"}) write(qwen + "/" + file);
    const std::string large = add("models--org--Large-GGUF", "abc");
    for (const char* part : {"1", "2"}) write(large + "/Q8_0/Large-Q8_0-0000" + part + "-of-00002.gguf");
    write(studio() + "/lmstudio-community/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_0.gguf");
    write(studio() + "/unsloth/Qwen3-8B-GGUF/Qwen3-8B-Q8_0.gguf");
    tag("registry.ollama.ai/library/llama3.2/latest", "aa");
    tag("registry.ollama.ai/library/llama3.2/1b", "bb");
    tag("registry.ollama.ai/someone/tiny/q4", "cc");
    tag("registry.ollama.ai/library/phi/3b", "dd");
    tag("registry.ollama.ai/library/phi/14b", "ee");
    tag("registry.ollama.ai/library/remote/latest", "../../outside");
  }

  static void write(const fs::path& path, const std::string& text = "GGUF") {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void tag(const std::string& manifest, const std::string& hash) {
    if (hash.size() == 2) write(ollama() + "/blobs/sha256-" + hash);
    write(ollama() + "/manifests/" + manifest,
          R"({"layers":[{"mediaType":"application/vnd.ollama.image.license","digest":"sha256:00"},)"
          R"({"mediaType":"application/vnd.ollama.image.model","digest":"sha256:)" +
              hash + R"("}]})");
  }
  std::string studio() const { return cache_ + "/lmstudio"; }
  std::string ollama() const { return cache_ + "/ollama"; }
  Result<LocatedModel> find(const std::string& text) const {
    return find_model(text, {cache_, ollama(), {studio(), cache_ + "/none"}});
  }
  std::string found(const std::string& text) const {
    const auto model = find(text);
    return model.ok() ? model->dir.substr(std::min(model->dir.size(), cache_.size() + 1)) : model.error().message;
  }
};

TEST_F(ModelNames, OfFilesAndRepositories) {
  const std::string qwen = "models--unsloth--Qwen3-8B-GGUF/snapshots/abc/Qwen3-8B-";
  EXPECT_EQ(found("unsloth/Qwen3-8B-GGUF:Q4_K_M"), qwen + "Q4_K_M.gguf");
  EXPECT_EQ(found("qwen3-8b-gguf:q4_k_m"), qwen + "Q4_K_M.gguf");
  EXPECT_EQ(found("Qwen3-8B-Q4_K_M"), qwen + "Q4_K_M.gguf");
  EXPECT_EQ(found("Qwen3-8B-Q8_0.gguf"), qwen + "Q8_0.gguf") << "of one name in two caches the first counts";
  EXPECT_EQ(find("Qwen3-8B-Q4_K_M")->name, "Qwen3-8B-Q4_K_M");
  const std::string large = "models--org--Large-GGUF/snapshots/abc/Q8_0/Large-Q8_0-00001-of-00002.gguf";
  for (const char* name : {"org/Large-GGUF", "Large-GGUF", "Large-Q8_0"}) EXPECT_EQ(found(name), large) << name;
  EXPECT_EQ(found("gemma-3-1b-it-GGUF"), "lmstudio/lmstudio-community/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_0.gguf");
}

TEST_F(ModelNames, OfOllama) {
  EXPECT_EQ(found("llama3.2"), "ollama/blobs/sha256-aa");
  EXPECT_EQ(found("llama3.2:1b"), "ollama/blobs/sha256-bb");
  EXPECT_EQ(found("someone/tiny"), "ollama/blobs/sha256-cc");
  for (const char* name : {"remote", "llama3.2:70b", "3b"}) EXPECT_EQ(find(name)->dir, name) << "is not there";
}

TEST_F(ModelNames, ThatAreAmbiguousListWhatTheyMayMean) {
  EXPECT_EQ(find("unsloth/Qwen3-8B-GGUF").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(found("unsloth/Qwen3-8B-GGUF"),
            "unsloth/Qwen3-8B-GGUF may be unsloth/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf, "
            "unsloth/Qwen3-8B-GGUF/Qwen3-8B-Q8_0.gguf: give one of these names.");
  EXPECT_EQ(found("phi"), "phi may be phi:14b, phi:3b: give one of these names.");
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
