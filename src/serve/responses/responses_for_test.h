// Shared by tests of the Responses API.
#pragma once

#include <string>
#include <vector>

#include "serve/api/api_for_test.h"
#include "serve/testing/built_answers.h"

namespace volley::serve {

inline constexpr const char* kResponsesPath = "/v1/responses";

// The events of a stream: each line "event:" and its "data:".
inline std::vector<json> events_of(const std::string& stream) {
  std::vector<json> events;
  for (size_t at = 0; (at = stream.find("event: ", at)) != std::string::npos;) {
    const size_t line = stream.find('\n', at);
    const std::string type = stream.substr(at + 7, line - at - 7);
    EXPECT_EQ(stream.substr(line + 1, 6), "data: ");
    at = stream.find("\n\n", line);
    events.push_back(json::parse(stream.substr(line + 7, at - line - 7)));
    EXPECT_EQ(events.back().at("type"), type);
    EXPECT_EQ(events.back().value("sequence_number", -1), static_cast<int>(events.size()) - 1);
  }
  return events;
}

class ApiResponsesTest : public ApiTest {
 protected:
  json ask(Api& api, const json& body) { return ApiTest::ask(api, kResponsesPath, body); }
  json ask(const json& body) { return ask(api_, body); }
  json error(const std::string& body) { return error(api_, body); }
  json error(Api& api, const std::string& body) {
    const Answer got = answer(api, post(kResponsesPath, body));
    EXPECT_EQ(got.response->status, 400) << body;
    return got.body().at("error");
  }
};

}  // namespace volley::serve
