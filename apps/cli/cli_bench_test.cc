// `volley bench` as its user sees it: output, files and refusals.
#include <map>

#include "apps/program_for_test.h"

namespace volley::apps {
namespace {

// A second engine would wait ten minutes for nodes that ended with the first.
TEST(Cli, BenchOfSeveralNodesMeasuresOneMode) {
  const char* const several = "with --nnodes run bench once for each";
  const char* const one = "needs --master-addr";
  for (const auto& [modes, refusal] : {std::pair("", several),
                                       {"--spec off,dflash", several},
                                       {"--spec dflash --block-size 4,8", several},
                                       {"--spec off", one},
                                       {"--spec dflash", one}}) {
    Program program(words("bench --nnodes 2 --tensor-parallel-size 2 " + std::string(modes)));
    EXPECT_EQ(program.status(), 2);
    EXPECT_NE(program.err().find(refusal), std::string::npos) << program.err();
  }
}

TEST(Cli, BenchMeasuresNothingIfALaterModeCannotStart) {
  Program program({"bench", "--draft", "models/shapes/qwen3-8b-dflash"});
  EXPECT_EQ(program.status(), 3);
  expect_one_error(program);
  EXPECT_EQ(program.out(), "");
}

TEST(Cli, BenchRunsDummyWeightsWithSimulatedAcceptance) {
  const TempFile output("bench.json");
  Program program(
      words("bench --dummy-weights 1 --simulate-acceptance geometric:0.8 --concurrency 1,2 --requests 2 "
            "--prompt-tokens 16 --output-tokens 32 --output",
            {output.path()}));
  ASSERT_EQ(program.status(), 0) << program.err();
  std::ifstream file(output.path());
  const Json json = Json::parse(file);
  ASSERT_EQ(json["rows"].size(), 4u);
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row["errors"], 0);
    EXPECT_EQ(row["completion_tokens"], 2 * 32);
    EXPECT_GT(row["machine"]["read_gb_s"].get<double>(), 0);
    EXPECT_GT(row["floor"]["bytes"].get<double>(), 0);
  }
  EXPECT_NE(program.out().find("tok/s"), std::string::npos);
}

// Random tokens tell nothing about a model that knows four tasks.
TEST(Cli, BenchAsksThePocketPairWhatItWasTrainedFor) {
  const TempFile own("own.jsonl", "{\"prompt\": \"What is 1 + 2?\"}\n");
  for (const auto& [more, prompts] :
       std::vector<std::pair<std::string, std::string>>{{"", "models/pocket/prompts.jsonl"},
                                                        {"models/pocket --draft none", "models/pocket/prompts.jsonl"},
                                                        {"--prompt-tokens 16", "random"},
                                                        {"--prompt-seed 2", "random"},
                                                        {"--dummy-weights 1", "random"},
                                                        {"--input " + own.path(), own.path()}}) {
    Program program(words("bench --requests 2 --output-tokens 8 --concurrency 1 --spec off --json " + more));
    ASSERT_EQ(program.status(), 0) << program.err();
    const std::string said = program.last_json()["prompts"];
    EXPECT_TRUE(said.ends_with(prompts)) << said;
    EXPECT_NE(program.out().find("Prompts: " + (prompts == "random" ? prompts : said)), std::string::npos)
        << program.out();
  }
  Program pair({"bench", "--concurrency", "1", "--json"});
  ASSERT_EQ(pair.status(), 0) << pair.err();
  const Json rows = pair.last_json()["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["requests"], 64) << "short answers: more of them";
  EXPECT_GT(rows[1]["acceptance_length"].get<double>(), 3) << "what it was trained for is accepted";
}

// Each mode has an engine with its own options, here with a device process.
TEST(Cli, BenchSaysThatSpeculationChangedNothing) {
  Program program(words("bench --concurrency 1,3 --requests 3 --output-tokens 16 --json --restart-on-device-error"));
  ASSERT_EQ(program.status(), 0) << program.err();
  const Json json = program.last_json();
  ASSERT_EQ(json["rows"].size(), 4u);
  for (const Json& row : json["rows"]) EXPECT_EQ(row["same_tokens"], true);
}

TEST(Cli, BenchHoldsPoliciesAgainstEachOther) {
  Program program(
      words("bench --concurrency 1,3 --requests 3 --output-tokens 16 --verify auto,full,3 --repeat 2 --json"));
  ASSERT_EQ(program.status(), 0) << program.err();
  const Json json = program.last_json();
  ASSERT_EQ(json["rows"].size(), 2u * 2u * (1u + 3u));
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row["same_tokens"], true) << "whatever the policy";
    EXPECT_EQ(row["completion_tokens"], 3 * 16);
    if (row["verify"] == "3") {
      EXPECT_LE(row["acceptance_length"].get<double>(), 4);
    }
  }
  // All engines take turns, the one without a drafter too.
  for (int i = 0; i < 16; ++i) EXPECT_EQ(json["rows"][i]["repeat"], i / 4 % 2) << i;
  for (int i = 0; i < 16; i += 4) {
    int off = 0;
    for (int k = 0; k < 4; ++k) off += json["rows"][i + k]["spec"] == "off" ? 1 : 0;
    EXPECT_EQ(off, 1) << i;
  }
  EXPECT_NE(program.out().find("auto against the best of the others"), std::string::npos) << program.out();
}

TEST(Cli, BenchMeasuresRoundsOfEveryPolicyAndLoad) {
  Program program(
      words("bench --dummy-weights 1 --simulate-acceptance geometric:0.9 --simulate-acceptance geometric:0.8,0 "
            "--rounds 20 --warm-rounds 4 --repeat 2 --verify auto 0 15 --concurrency 1,2 --prompt-tokens 16 "
            "--spec dflash,off --json"));
  ASSERT_EQ(program.status(), 0) << program.err();
  const Json json = program.last_json();
  ASSERT_EQ(json["runs"].size(), 2u * 2u * 2u * 4u)
      << "loads, concurrencies, repeats; auto, 0, 15, off, which take turns";
  EXPECT_EQ(json["runs"][3]["mode"], "off");
  EXPECT_EQ(json["runs"][4]["repeat"], 1);
  for (const Json& run : json["runs"]) {
    const double steps = run["steps"].get<double>(), requests = run["concurrency"].get<double>();
    const double tokens = run["tokens"].get<double>() / steps / requests;
    EXPECT_GE(steps, 20) << run;
    EXPECT_GT(run["tok_s"].get<double>(), 0) << run;
    if (run["mode"] == "0" || run["mode"] == "off") {
      EXPECT_NEAR(tokens, 1, 1e-6) << run;
    }
    if (run["mode"] != "15") continue;
    EXPECT_DOUBLE_EQ(run["draft"].get<double>(), 15) << run;
    EXPECT_DOUBLE_EQ(run["rows"].get<double>(), 16 * requests) << run;
    const auto expected = [](double p) { return p == 0 ? 1.0 : (1 - std::pow(p, 16)) / (1 - p); };
    const bool mixed = run["load"] == "geometric:0.8,0" && requests == 2;
    const double first = run["load"] == "geometric:0.9" ? expected(0.9) : expected(0.8);
    EXPECT_NEAR(tokens, mixed ? (first + 1) / 2 : first, 1e-4) << run;
  }
  ASSERT_EQ(json["cells"].size(), 4u);
  for (const Json& cell : json["cells"]) EXPECT_EQ(cell["median_tok_s"].size(), 4u) << "auto, 0, 15, off";
}

TEST(Cli, BenchTracesLoadsThatFollowOneAnother) {
  const TempFile trace("trace.jsonl");
  Program program(
      words("bench --dummy-weights 1 --simulate-acceptance geometric:0.9 --simulate-acceptance geometric:0 --rounds 20 "
            "--concurrency-schedule 1,3,1 --prompt-tokens 16 --trace",
            {trace.path()}));
  ASSERT_EQ(program.status(), 0) << program.err();
  std::ifstream file(trace.path());
  std::map<int, int64_t> steps;  // by load
  int64_t last = 0;
  for (std::string line; std::getline(file, line);) {
    const Json sample = Json::parse(line);
    EXPECT_GT(sample["step"].get<int64_t>(), last);
    EXPECT_LE(sample["running"].get<int>(), sample["load"] == 1 ? 3 : 1);
    last = sample["step"].get<int64_t>();
    steps[sample["load"].get<int>()] += sample["steps"].get<int64_t>();
  }
  ASSERT_EQ(steps.size(), 3u);
  for (const auto& [load, count] : steps) EXPECT_GE(count, 20) << load;
}

TEST(Cli, BenchRoundsThatDoNotFitAreAnError) {
  for (const std::string more : {"--max-model-len 64", "--max-num-seqs 1", "--verify 99"}) {
    Program program(
        words("bench --dummy-weights 1 --rounds 300 --prompt-tokens 16 --simulate-acceptance geometric:0.9 --repeat 1 "
              "--concurrency 2 " +
              more));
    EXPECT_EQ(program.status(), 2) << program.err();
    EXPECT_NE(program.err().find(words(more)[0]), std::string::npos) << program.err();
  }
}

}  // namespace
}  // namespace volley::apps
