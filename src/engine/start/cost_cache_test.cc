#include "engine/start/cost_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "decode/proposers.h"

namespace volley::engine {
namespace {

namespace fs = std::filesystem;

decode::CostModel some_costs() {
  return decode::CostModel({{{.requests = 1, .verify_rows = 1}, {0, 0.010}},
                            {{.requests = 1, .draft = 3, .verify_rows = 4}, {0.001, 0.012}},
                            {{.requests = 4, .verify_rows = 4}, {0, 0.012}},
                            {{.requests = 4, .draft = 3, .verify_rows = 16}, {0.002, 0.020}}},
                           {.draft = {1e-8}, .rest = 1e-7});
}

class CostCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("volley-costs-" + std::to_string(::getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string dir() const { return (root_ / "a" / "b").string(); }
  fs::path root_;
};

TEST_F(CostCacheTest, KeepsWhatWasMeasured) {
  const CostCache cache(dir(), "this machine");
  EXPECT_FALSE(cache.read().has_value());
  ASSERT_TRUE(cache.write(some_costs()).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir()), fs::directory_iterator()), 1) << "nothing is left beside it";
  const auto costs = CostCache(dir(), "this machine").read();
  ASSERT_TRUE(costs.has_value());
  const decode::RoundShape shape = {.requests = 4, .draft = 3, .verify_rows = 16};
  EXPECT_DOUBLE_EQ(costs->predict(shape).rest, some_costs().predict(shape).rest);
  EXPECT_DOUBLE_EQ(costs->predict(shape).draft, some_costs().predict(shape).draft);
  EXPECT_FALSE(CostCache(dir(), "another machine").read().has_value());
}

// A damaged file, or one that has another key by accident, is measured again and replaced.
TEST_F(CostCacheTest, WhatCannotBeReadIsAsIfItWereNotThere) {
  const CostCache cache(dir(), "this machine"), other(dir(), "another machine");
  ASSERT_TRUE(other.write(some_costs()).ok());
  fs::rename(other.path(), cache.path());
  EXPECT_FALSE(cache.read().has_value());
  ASSERT_TRUE(cache.write(some_costs()).ok());
  EXPECT_TRUE(cache.read().has_value());
  fs::resize_file(cache.path(), fs::file_size(cache.path()) / 2);
  EXPECT_FALSE(cache.read().has_value());
  std::ofstream(cache.path()) << std::string("\0\xff{]", 4);
  EXPECT_FALSE(cache.read().has_value());
}

// A path of that name that is no regular file is neither waited for nor read without end.
TEST_F(CostCacheTest, OnlyARegularFileIsRead) {
  const CostCache cache(dir(), "this machine");
  ASSERT_TRUE(cache.write(some_costs()).ok());
  fs::remove(cache.path());
  ASSERT_EQ(::mkfifo(cache.path().c_str(), 0600), 0);
  EXPECT_FALSE(cache.read().has_value());
  ASSERT_TRUE(cache.write(some_costs()).ok());
  EXPECT_TRUE(cache.read().has_value()) << "the pipe was replaced";
  fs::remove(cache.path());
  fs::create_symlink("/dev/zero", cache.path());
  EXPECT_FALSE(cache.read().has_value());
  ASSERT_TRUE(cache.write(some_costs()).ok());
  EXPECT_TRUE(cache.read().has_value());
  fs::resize_file(cache.path(), 5 << 20);
  EXPECT_FALSE(cache.read().has_value()) << "too large to be one";
}

TEST_F(CostCacheTest, SaysWhyItCannotWrite) {
  fs::create_directories(root_);
  std::ofstream(root_ / "file") << "no folder";
  const CostCache cache((root_ / "file").string(), "this machine");
  const Status written = cache.write(some_costs());
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().message.find(cache.path()), std::string::npos) << written.error().message;
  EXPECT_NE(written.error().message.find("--cost-cache"), std::string::npos);
}

TEST_F(CostCacheTest, WithoutAFolderNothingIsKept) {
  const CostCache cache("", "this machine");
  EXPECT_TRUE(cache.write(some_costs()).ok());
  EXPECT_FALSE(cache.read().has_value());
}

ResolvedModels some_models() {
  ResolvedModels models;
  model::Attention attention;
  attention.heads = attention.kv_heads = 4;
  attention.head_dim = 64;
  models.target.decoder.hidden = 256;
  models.target.decoder.layers.assign(8, {attention, model::Dense{512}});
  models.block_size = 16;
  models.max_num_seqs = 32;
  models.max_num_batched_tokens = 1024;
  models.max_model_len = 4096;
  models.page_size = 16;
  models.memory.groups = {{.pages = 4096}};
  return models;
}

TEST(CostKey, NamesWhatTimesDependOn) {
  const ResolvedModels models = some_models();
  EngineOptions options;
  EngineInfo info;
  info.device = "cpu";
  info.threads = 2;
  const std::string key = cost_key(models, options, info);
  EXPECT_EQ(cost_key(models, options, info), key);
  const auto differs = [&](auto&& change) {
    ResolvedModels other_models = models;
    EngineOptions other_options = options;
    EngineInfo other_info = info;
    change(other_models, other_options, other_info);
    return cost_key(other_models, other_options, other_info) != key;
  };
  EXPECT_TRUE(differs([](auto& m, auto&, auto&) { m.target.decoder.hidden = 512; }));
  EXPECT_TRUE(differs([](auto& m, auto&, auto&) { m.target.decoder.layers.resize(9); }));
  EXPECT_TRUE(differs([](auto& m, auto&, auto&) {
    std::get<model::Attention>(m.target.decoder.layers[3].mixer).window = 64;
  })) << "a window reads less";
  EXPECT_TRUE(differs([](auto& m, auto&, auto&) { m.target_numerics.storage = DType::kF32; }));
  EXPECT_TRUE(differs([](auto& m, auto&, auto&) { m.target_numerics.storage = ops::kInt4Weights; }));
  EXPECT_TRUE(differs([](auto& m, auto&, auto&) {
    m.drafters.emplace_back().spec = decode::read_proposer("models/pocket-dflash").value();
  }));
  EXPECT_TRUE(differs([](auto& m, auto&, auto&) { m.block_size = 8; }));
  EXPECT_TRUE(differs([](auto& m, auto&, auto&) { m.ranks = 2; }));
  EXPECT_TRUE(differs([](auto& m, auto&, auto&) { m.max_num_seqs = 8; }));
  EXPECT_TRUE(differs([](auto&, auto& o, auto&) { o.graphs = false; }));
  EXPECT_TRUE(differs([](auto&, auto&, auto& i) { i.threads = 1; }));
  EXPECT_TRUE(differs([](auto&, auto&, auto& i) { i.instruction_set = "SSE2"; }));
  EXPECT_TRUE(differs([](auto&, auto&, auto& i) { i.device = "cuda:0"; }));
}

TEST(CostKey, HasTheBuild) {
  EXPECT_THAT(cost_key(some_models(), {}, {}), testing::ContainsRegex("build [0-9]+ [0-9]+"));
}

// A program found by PATH is called by its bare name.
TEST(CostKey, HasTheBuildOfAProgramFoundByPath) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execl("/proc/self/exe", "named", "--gtest_filter=CostKey.HasTheBuild", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Where full contexts do not fit, the free memory of the moment decides the number of pages. It must not change the
// file's name at every start.
TEST(CostKey, PagesCountOnlyWhereSlotsDoNotFit) {
  ResolvedModels models = some_models();
  const auto key = [&](int64_t pages) {
    models.memory.groups[0].pages = pages;
    return cost_key(models, {}, {});
  };
  const int64_t each = (1 + 64 + 16 + 15) / 16;  // a token, the rounds until a sequence starts again, and a block
  EXPECT_EQ(key(4096), key(3000));
  EXPECT_EQ(key(4096), key(32 * each));
  EXPECT_NE(key(4096), key(32 * each - 1)) << "31 requests are measured";
  EXPECT_EQ(key(31 * each), key(32 * each - 1));
}

// Two processors with one instruction set differ in speed.
TEST(CostKey, NamesTheProcessor) {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line) && !line.starts_with("model name")) continue;
  if (line.find(": ") == std::string::npos) GTEST_SKIP() << "the kernel does not name the processor";
  EXPECT_THAT(cost_key(some_models(), {}, {}), testing::HasSubstr(line.substr(line.find(": ") + 2)));
}

}  // namespace
}  // namespace volley::engine
