// Where the fixtures of tests/data lie (see the README there). Tests run in the source tree's root.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace volley::weights {

// Names of the folders of one kind, e.g. targets, sorted, so that a test can cover them all.
inline std::vector<std::string> folders(const std::string& kind) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/" + kind)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The target that a drafter was made for.
inline std::string target_of_drafter(const std::string& drafter) {
  std::string name;
  std::ifstream("tests/data/drafters/" + drafter + "/expected/target.txt") >> name;
  return name;
}

}  // namespace volley::weights
