// Protects: config.json of published checkpoints, with all fields as their makers wrote them, is accepted, and the
// resulting model has the number of parameters that they state (tests/data/published).
#include <algorithm>
#include <filesystem>

#include "families/config_for_test.h"
#include "families/fields.h"
#include "model/params.h"

namespace volley::families {
namespace {

std::vector<std::string> published() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/published")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem());  // drafters.jsonl is no target
  }
  std::sort(names.begin(), names.end());
  return names;
}

class PublishedTarget : public testing::TestWithParam<std::string> {};

TEST_P(PublishedTarget, IsAcceptedWithAllItsParameters) {
  const auto file = read_json_file("tests/data/published/" + GetParam() + ".json");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const nlohmann::json& config = (*file)["config"];
  const TempFolder folder;
  if (config.is_object()) folder.write("config.json", config.dump());
  const auto target = read_target(config.is_string() ? config.get<std::string>() : folder.path());
  ASSERT_TRUE(target.ok()) << target.error().message;
  EXPECT_EQ(model::count(model::params(target->decoder)), (*file)["parameters"]);
  EXPECT_EQ(target->decoder.layers.back().mixer_facts().kv->window, (*file)["window"]);
  EXPECT_EQ(target->eos_ids.size(), (*file)["end_ids"]);
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTarget, testing::ValuesIn(published()),
                         [](const auto& info) { return info.param; });

TEST(PublishedTargets, AreThere) {
  EXPECT_GE(published().size(), 7u);
}

}  // namespace
}  // namespace volley::families
