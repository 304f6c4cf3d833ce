// Protects: the kind that config.json names reads a drafter's folder. A kind that is not built is refused by its name,
// with a list of those that are.
#include "decode/proposers.h"

#include "families/config_for_test.h"
#include "families/fields.h"

namespace volley::decode {

using families::BadConfig;
using families::expect_refused;

namespace {

Result<std::shared_ptr<const ProposerSpec>> read(const char* config) {
  const TempFolder folder;
  folder.write("config.json", config);
  folder.write("answers.jsonl", "");
  return read_proposer(folder.path());
}

TEST(Proposers, AreFoundByWhatTheirFilesCallThem) {
  for (const auto& [folder, architecture] : {std::pair{"models/pocket-dflash", "DFlashDraftModel"},
                                             {"tests/data/drafters/speculators", "DFlashDraftModel"},
                                             {"tests/data/drafters/selector", "DFlash2DraftModel"},
                                             {"tests/data/drafters/selector_causal", "DFlash2DraftModel"},
                                             {"tests/data/drafters/markov_vanilla", "Qwen3DSparkModel"},
                                             {"tests/data/drafters/markov_gated", "DSparkDraftModel"},
                                             {"tests/data/drafters/markov_rnn", "DSparkDraftModel"}}) {
    const auto spec = read_proposer(folder);
    ASSERT_TRUE(spec.ok()) << spec.error().message;
    EXPECT_EQ((*spec)->facts().architecture, architecture);
  }
  nlohmann::json jetspec = *families::read_json_file("tests/data/drafters/causal/config.json");
  jetspec["architectures"] = {"Qwen3DFlashDraftModel"};
  EXPECT_TRUE(read(jetspec.dump().c_str()).ok());
  const auto replay = read(R"({"architectures":["ReplayDraftModel"],"block_size":4})");
  ASSERT_TRUE(replay.ok()) << replay.error().message;
  EXPECT_EQ((*replay)->facts().proposals, 3);
}

REFUSES(UnknownProposer, read(GetParam().patch))

constexpr ErrorCode kUnbuilt = ErrorCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    All, UnknownProposer,
    testing::Values(BadConfig{"nothing", "{}", ErrorCode::kInvalidArgument, {"architectures", "missing"}},
                    BadConfig{"a_target",
                              R"({"architectures":["Qwen3ForCausalLM"]})",
                              kUnbuilt,
                              {"Qwen3ForCausalLM",
                               "DFlash2DraftModel, DSparkDraftModel, Lfm2DSparkDraftModel, Qwen3DSparkModel, "
                               "Gemma4DSparkModel, ReplayDraftModel, FeatureStream"}},
                    BadConfig{"domino",
                              R"({"architectures":["DominoDraftModel"]})",
                              kUnbuilt,
                              {"architectures", "DominoDraftModel", "(Domino, "}},
                    BadConfig{
                        "dcoco", R"({"architectures":["Qwen3DCOCOModel"]})", kUnbuilt, {"Qwen3DCOCOModel", "(DCOCO, "}},
                    BadConfig{"lilicorr", R"({"architectures":["LiLiCorrDraftModel"]})", kUnbuilt, {"(LiLiCorr, "}},
                    BadConfig{"xpress", R"({"speculators_model_type":"xpress"})", kUnbuilt, {"xpress", "(XPress, "}},
                    BadConfig{"uno", R"({"architectures":["UnoForCausalLM"]})", kUnbuilt, {"UnoForCausalLM", "(UNO, "}},
                    BadConfig{"eagle",
                              R"({"architectures":["DFlashDraftModel"],"speculators_model_type":"eagle3"})",
                              kUnbuilt,
                              {"speculators_model_type", "eagle3", "built are: dflash, dflash2, dspark."}},
                    BadConfig{"algorithm",
                              R"({"speculators_model_type":"dflash","speculators_config":{"algorithm":"peagle"}})",
                              kUnbuilt,
                              {"peagle"}},
                    BadConfig{"algorithm_number",
                              R"({"speculators_model_type":7})",
                              ErrorCode::kInvalidArgument,
                              {"speculators_model_type"}}),
    families::name_of_bad);

}  // namespace
}  // namespace volley::decode
