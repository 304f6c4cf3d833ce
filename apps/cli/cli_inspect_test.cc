// `volley inspect` as its user sees it: models, memory and ranks.
#include "apps/program_for_test.h"

namespace volley::apps {
namespace {

TEST(Cli, InspectFindsTensorsThatAreNotThere) {
  const ModelCopy draft("pocket-dflash");
  fs::remove(draft / "model.safetensors");
  fs::create_symlink(fs::absolute("models/pocket/model.safetensors"), draft / "model.safetensors");
  Program program({"inspect", "--draft", draft.path()});
  EXPECT_EQ(program.status(), 3) << program.out();
  EXPECT_NE(program.out().find("fc.weight"), std::string::npos) << program.out();
  EXPECT_EQ(program.out().find("fits         yes"), std::string::npos);
  const ModelCopy target("pocket");
  fs::remove(target / "tokenizer.json");
  Program silent({"inspect", "--model", target.path()});
  EXPECT_EQ(silent.status(), 3);
  EXPECT_NE(silent.out().find("tokenizer.json"), std::string::npos) << silent.out();
}

TEST(Cli, InspectSaysHowACheckpointIsQuantised) {
  Program program({"inspect", "--model", "tests/data/quantised/fp8_next"});
  EXPECT_EQ(program.status(), 3) << "it has no tokenizer";
  EXPECT_NE(program.out().find("linear attention in 1, 2 of 3 experts of 128 and a shared one of 128"),
            std::string::npos);
  EXPECT_NE(program.out().find("fp8 in blocks of 128x128"), std::string::npos) << program.out();
  EXPECT_NE(program.out().find("48, all there"), std::string::npos) << program.out();
}

TEST(Cli, InspectSaysHowAModelSees) {
  Program program({"inspect", "--model", "tests/data/seen/qwen3_vl"});
  EXPECT_EQ(program.status(), 0) << program.out() << program.err();
  EXPECT_NE(program.out().find("pictures     1 to 64 tokens of 8 x 8 pixels each, by 3 layers, hidden 48, with "),
            std::string::npos)
      << program.out();
}

// The memory in `inspect --json`. ranks: 0: without ranks.
Json inspected_memory(std::string options, int ranks) {
  if (ranks > 0) options += " --tensor-parallel-size " + std::to_string(ranks);
  Program program(words("inspect --json " + options));
  EXPECT_NE(program.status(), 2) << program.err();  // 3 without a tokenizer
  return program.last_json()["memory"];
}

// Protects the plan of ranks. Ranks divide matrices; each has all of the rest, which is embeddings and norms. Each also
// has the drafter's projection of features, and KV heads if there are fewer than ranks.
TEST(Cli, InspectSaysWhatARankTakes) {
  struct Case {
    std::string models;
    int ranks;
    int64_t more;  // bytes of matrices that several ranks have
  };
  const std::vector<Case> cases = {
      {"", 2, int64_t{2} * 256 * 256 * 2},  // features of two layers to one width, bf16
      // K and V of two heads of 16 in two layers, a second time
      {"--model tests/data/targets/plain", 4, int64_t{2} * 2 * 16 * 64 * 2 * 2},
  };
  for (const auto& [models, ranks, more] : cases) {
    const Json whole = inspected_memory(models, 0), divided = inspected_memory(models, ranks);
    ASSERT_EQ(whole["ranks"].size(), 1u);
    EXPECT_EQ(whole["ranks"][0]["weight_bytes"], whole["weight_bytes"]);
    ASSERT_EQ(divided["tensor_parallel_size"], ranks);
    ASSERT_EQ(divided["ranks"].size(), static_cast<size_t>(ranks));
    int64_t weights = 0, kv = 0;
    for (const Json& rank : divided["ranks"]) {
      EXPECT_LT(rank["weight_bytes"], whole["weight_bytes"]);
      weights += rank["weight_bytes"].get<int64_t>();
      kv += rank["kv_bytes_per_token"].get<int64_t>();
    }
    EXPECT_EQ(weights, divided["weight_bytes"]);
    EXPECT_EQ(kv, divided["kv_bytes_per_token"]);
    const auto matrices = [](const Json& memory) { return memory["matrix_bytes"]["bfloat16"].get<int64_t>(); };
    const int64_t rest = whole["weight_bytes"].get<int64_t>() - matrices(whole);
    EXPECT_EQ(matrices(divided), matrices(whole) + more);
    EXPECT_EQ(weights, matrices(divided) + ranks * rest);
  }
}

// The memory, after a check of the experts of the second rank or replica, which begin with number 3.
Json memory_with_experts(const std::string& arguments, const std::string& line, const char* list, int experts) {
  Program text(words("inspect --enable-expert-parallel --model tests/data/targets/" + arguments));
  EXPECT_EQ(text.status(), 3) << "it has no tokenizer";
  EXPECT_NE(text.out().find(line), std::string::npos) << text.out();
  Program program(words("inspect --json --enable-expert-parallel --model tests/data/targets/" + arguments));
  EXPECT_EQ(program.status(), 3);
  Json memory = program.last_json()["memory"];
  EXPECT_EQ(memory[list].size(), 2u);
  EXPECT_EQ(memory[list][1]["first_expert"], 3);
  EXPECT_EQ(memory[list][1]["experts"], experts);
  return memory;
}

TEST(Cli, InspectSaysWhichExpertsRanksAndReplicasHave) {
  memory_with_experts("moe_single --tensor-parallel-size 2", "experts      rank 0: 0 to 2, 1: 3 to 5\n", "ranks", 3);
  const std::string replicas = "hybrid_experts --data-parallel-size 2";
  const Json memory = memory_with_experts(replicas, "experts      replica 0: 0 to 2, 1: 3 to 6\n", "replicas", 4);
  EXPECT_EQ(memory["data_parallel_size"], 2);
  EXPECT_GT(memory["shared_weight_bytes"], 0);
}

// Protects: which tokens end answers, from any of the files, and a sentence if there is none.
TEST(Cli, InspectSaysWhatEndsAnswers) {
  Program pocket({"inspect"});
  EXPECT_NE(pocket.finished_out().find("answers      end with <|im_end|> (2) and <|endoftext|> (0)\n"),
            std::string::npos)
      << pocket.out();
  const ModelCopy target("pocket");
  fs::remove(target / "generation_config.json");
  const auto ids = [&](const char* config, const char* map) {
    fs::remove(target / "tokenizer_config.json");
    fs::remove(target / "special_tokens_map.json");
    std::ofstream(target / "tokenizer_config.json") << config;
    if (map != nullptr) std::ofstream(target / "special_tokens_map.json") << map;
    Program program({"inspect", "--json", "--model", target.path(), "--draft", "none"});
    EXPECT_EQ(program.status(), 0) << program.err();
    return program.last_json()["target"]["eos_token_ids"];
  };
  const Json own = ids("{}", nullptr);
  EXPECT_EQ(ids(R"({"eos_token": "<|im_start|>"})", nullptr).back(), 1);
  EXPECT_EQ(ids("{}", R"({"eos_token": {"content": "<|im_start|>"}})").back(), 1);
  EXPECT_EQ(ids(R"({"eos_token": "<|nowhere|>"})", nullptr), own);
  Program program({"inspect", "--model", target.path()});
  EXPECT_NE(program.finished_out().find("<|nowhere|>"), std::string::npos) << program.out();
}

TEST(Cli, InspectDescribesThePair) {
  Program program({"inspect", "--json"});
  ASSERT_EQ(program.status(), 0) << program.err();
  const Json json = program.last_json();
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["target"]["architecture"], "Qwen3ForCausalLM");
  EXPECT_EQ(json["target"]["weights"], "bfloat16");
  EXPECT_EQ(json["draft"]["block_size"], 16);
  // 2 (K and V) x 2 heads x 64 x 2 bytes x (8 + 2 layers)
  EXPECT_EQ(json["memory"]["kv_bytes_per_token"], 5120);
  EXPECT_EQ(json["memory"]["matrix_bytes"].size(), 1u);
  EXPECT_GT(json["memory"]["matrix_bytes"]["bfloat16"], 0);
  Program float32({"inspect", "--json", "--dtype", "float32"});
  ASSERT_EQ(float32.status(), 0) << float32.err();
  EXPECT_EQ(float32.last_json()["memory"]["kv_bytes_per_token"], 10240);
  EXPECT_EQ(float32.last_json()["memory"]["matrix_bytes"], json["memory"]["matrix_bytes"])
      << "they are bf16 in the file";
  Program misfit({"inspect", "--draft", "models/shapes/qwen3-8b-dflash"});
  EXPECT_EQ(misfit.status(), 3);
  EXPECT_NE(misfit.out().find("fits"), std::string::npos);
}

}  // namespace
}  // namespace volley::apps
