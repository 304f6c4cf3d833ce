// For the tests of config.json: a good file to be spoiled one field at a time.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "families/family.h"

namespace volley::families {

// A folder of this test's own with the files that were written to it, removed with the object.
class ConfigFolder {
 public:
  ConfigFolder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string name =
        std::string("volley_") + test->test_suite_name() + "_" + test->name() + "_" + std::to_string(::getpid());
    for (char& c : name) c = c == '/' ? '_' : c;
    path_ = std::filesystem::path(testing::TempDir()) / name;
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ConfigFolder() { std::filesystem::remove_all(path_); }
  ConfigFolder(const ConfigFolder&) = delete;
  ConfigFolder& operator=(const ConfigFolder&) = delete;

  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ / name) << text; }

 private:
  std::filesystem::path path_;
};

// A change of a config: an RFC 7386 merge patch (null removes a field, objects merge). "@null" sets null itself.
inline nlohmann::json patched(nlohmann::json config, const char* patch) {
  config.merge_patch(nlohmann::json::parse(patch));
  for (auto& [key, value] : config.items()) {
    if (value == "@null") value = nullptr;
  }
  return config;
}

// A config that must be refused, how, and words that the message must hold.
struct BadConfig {
  const char* name;
  const char* patch;
  ErrorCode code;
  std::vector<std::string> words;
};
inline void PrintTo(const BadConfig& bad, std::ostream* os) {
  *os << bad.name;
}

template <typename T>
void expect_refused(const Result<T>& result, const BadConfig& bad) {
  ASSERT_FALSE(result.ok());
  EXPECT_STREQ(error_code_name(result.error().code), error_code_name(bad.code));
  EXPECT_THAT(result.error().message, testing::HasSubstr("config.json"));
  for (const std::string& word : bad.words) EXPECT_THAT(result.error().message, testing::HasSubstr(word));
}

}  // namespace volley::families
