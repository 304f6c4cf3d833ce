// For the tests of config.json: a good file, to be changed one field at a time.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/temp_folder_for_test.h"
#include "families/family.h"

namespace volley::families {

// A change of a config: an RFC 7386 merge patch (null removes a field, objects merge). "@null" sets null itself.
inline nlohmann::json patched(nlohmann::json config, const char* patch) {
  config.merge_patch(nlohmann::json::parse(patch));
  for (auto& [key, value] : config.items()) {
    if (value == "@null") value = nullptr;
  }
  return config;
}

// A config that must be refused, the expected error, and words that its message must contain.
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
inline std::string name_of_bad(const testing::TestParamInfo<BadConfig>& info) {
  return info.param.name;
}

// The windows of all layers.
template <typename Facts>
std::vector<int32_t> windows(const Facts& facts) {
  std::vector<int32_t> list;
  for (size_t i = 0; i < facts.decoder.layers.size(); ++i) list.push_back(facts.decoder.attention(i)->window);
  return list;
}

}  // namespace volley::families

// A suite of BadConfig: each patch of a good config must be refused when read.
#define REFUSES(suite, result)                               \
  class suite : public testing::TestWithParam<BadConfig> {}; \
  TEST_P(suite, IsRefusedByName) {                           \
    expect_refused(result, GetParam());                      \
  }
#define REFUSES_CONFIGS(suite, good) REFUSES(suite, read(patched(good, GetParam().patch)))
