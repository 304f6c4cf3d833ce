// Protects: models of published widths, a few of their layers with made-up weights, give the same tokens to requests
// alone, and together in chunks, and with their MTP heads. Fixtures are small: their widths do not take the kernels,
// nor keep the codes, that published ones do. tests/data/published has the configurations.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/temp_folder_for_test.h"
#include "harness.h"

namespace volley::testing {
namespace {

using Json = nlohmann::json;

Json read_json(const std::string& path) {
  return Json::parse(std::ifstream(path));
}

std::vector<std::string> published() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/published")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// So many layers that one of each kind is among them.
int layers_of_each_kind(const Json& text) {
  if (text.contains("first_k_dense_replace")) return text["first_k_dense_replace"].get<int>() + 1;
  if (!text.contains("layer_types")) return std::max(2, text.value("full_attention_interval", 2));
  const Json& types = text["layer_types"];
  std::set<std::string> kinds(types.begin(), types.end());
  int layers = std::max(2, text.value("num_dense_layers", 0) + 1);
  for (int i = 0; !kinds.empty(); ++i) {
    kinds.erase(types[i].get<std::string>());
    layers = std::max(layers, i + 1);
  }
  return layers;
}

// All widths stay; what there is of equals is cut.
Json cut(Json config) {
  Json& text = config.contains("text_config") ? config["text_config"] : config;
  if (text.contains("first_k_dense_replace")) text["first_k_dense_replace"] = 1;
  const int layers = layers_of_each_kind(text);
  text["num_hidden_layers"] = layers;
  if (text.contains("layer_types")) text["layer_types"].get_ref<Json::array_t&>().resize(layers);
  for (const char* experts : {"num_experts", "n_routed_experts", "num_local_experts"}) {
    if (text.contains(experts) && text[experts].is_number()) text[experts] = std::min(16, text[experts].get<int>());
  }
  return config;
}

std::vector<std::vector<TokenId>> answers(const EngineOptions& options, int concurrency) {
  const auto engine = Engine::create(options);
  if (!engine.ok()) {
    ADD_FAILURE() << engine.error().message;
    return {};
  }
  std::mt19937 random(3);
  std::vector<GenerateRequest> requests(13);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t j = 0; j < 1 + i * 9; ++j) requests[i].prompt.push_back(static_cast<TokenId>(random() % 20'000));
    requests[i].max_tokens = 12;
    requests[i].ignore_eos = true;
    requests[i].sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    requests[i].sampling.seed = i;
  }
  std::vector<std::vector<TokenId>> tokens;
  for (Output& out : run_all(**engine, std::move(requests), concurrency)) tokens.push_back(std::move(out.tokens));
  return tokens;
}

class PublishedWidths : public ::testing::TestWithParam<std::string> {};

TEST_P(PublishedWidths, GiveTheSameTokensAloneTogetherAndWithMtp) {
  if (kTestDevice == "cpu" && !full_matrix()) GTEST_SKIP() << "takes GBs; run with VOLLEY_TEST_MATRIX=full";
  Json config = read_json("tests/data/published/" + GetParam() + ".json")["config"];
  if (config.is_string()) config = read_json(config.get<std::string>() + "/config.json");
  config = cut(config);
  const TempFolder folder;
  folder.write("config.json", config.dump());
  EngineOptions options = pocket_options();
  options.model_dir = folder.path();
  options.draft_dir.clear();
  options.speculation = Speculation::kOff;
  options.dummy_weights = 1;
  options.skip_tokenizer = true;
  options.max_model_len = 256;
  options.kv_pages = 512;
  options.max_num_seqs = 16;
  const auto alone = answers(options, 1);
  options.prefill_chunk = 80;
  EXPECT_EQ(answers(options, 13), alone);
  const Json& text = config.contains("text_config") ? config["text_config"] : config;
  if (text.value("num_nextn_predict_layers", 0) + text.value("mtp_num_hidden_layers", 0) == 0) return;
  options.draft_dir = options.model_dir;  // its MTP heads
  options.speculation = Speculation::kOn;
  EXPECT_EQ(answers(options, 13), alone) << "with MTP heads";
}

INSTANTIATE_TEST_SUITE_P(All, PublishedWidths, ::testing::ValuesIn(published()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace volley::testing
