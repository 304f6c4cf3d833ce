// Protects: public drafters whose published configurations load go on loading, --draft auto knows one for each of their
// targets, and docs/models.md names them all. scripts/zoo.py asks the program the same, and prints why others do not.
#include "apps/cli/known_drafters.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/temp_folder_for_test.h"
#include "decode/proposers.h"
#include "families/family.h"

namespace volley::apps {
namespace {

using Json = nlohmann::json;

std::string read_whole(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return (std::ostringstream() << file.rdbuf()).str();
}

// A configuration that the repository holds: a folder's, or that of a file with a "config".
Json stored_config(const std::string& path) {
  if (!path.ends_with(".json")) return Json::parse(read_whole(path + "/config.json"));
  const Json config = Json::parse(read_whole(path))["config"];
  return config.is_string() ? stored_config(config) : config;
}

// Whether the drafter's configuration can be read and fits the target's.
Status load(const Json& drafter, const Json& target) {
  const TempFolder draft_folder, target_folder;
  draft_folder.write("config.json", drafter.dump());
  target_folder.write("config.json", target.dump());
  VOLLEY_ASSIGN(const families::TargetConfig config, families::read_target(target_folder.path()));
  VOLLEY_ASSIGN(const auto spec, decode::read_proposer(draft_folder.path()));
  return spec->check_target(config.decoder);
}

TEST(KnownDrafters, EveryPublicOneThatLoadsIsNamed) {
  std::ifstream rows("tests/data/published/drafters.jsonl");
  std::map<std::string, Json> configs;
  std::map<std::string, std::set<std::string>> loading;  // by target
  int drafters = 0, loads = 0;
  const std::string docs = read_whole("docs/models.md");
  for (std::string line; std::getline(rows, line);) {
    const Json row = Json::parse(line);
    const std::string name = row["name"], like = row.value("like", "");
    Json& config = configs[name];
    if (!like.empty()) config = configs.contains(like) ? configs[like] : stored_config(like);
    if (row.contains("config")) config.merge_patch(row["config"]);
    if (!row.contains("target")) continue;
    ++drafters;
    const std::string target = row["target"];
    if (!load(config, configs.at(target)).ok()) continue;
    ++loads;
    loading[target].insert(name);
    EXPECT_NE(docs.find("`" + name + "`"), std::string::npos) << name << ": scripts/zoo.py --docs names it";
  }
  EXPECT_EQ(drafters, 97);
  EXPECT_GE(loads, 31);
  for (const auto& [target, names] : loading) {
    EXPECT_TRUE(names.contains(known_drafter(target).value_or(""))) << target;
  }
}

}  // namespace
}  // namespace volley::apps
