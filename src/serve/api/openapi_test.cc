// Protects the agreement of openapi.json with the code: paths, fields, bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "serve/api/info_endpoints.h"
#include "serve/api/openai_request.h"
#include "serve/messages/messages_request.h"
#include "serve/responses/responses_request.h"
#include "serve/router/router.h"

namespace volley::serve {
namespace {

using nlohmann::json;

class OpenApi : public ::testing::Test {
 protected:
  OpenApi() : document_(json::parse(openapi_document())) { info_.vocab_size = 1000; }

  const json& schema(const std::string& name) const { return document_.at("components").at("schemas").at(name); }
  RequestRules rules() const { return {info_, models_}; }

  std::optional<ApiError> error_of(ApiKind kind, json body) const {
    if (kind == ApiKind::kChat) {
      body.emplace("messages", json::parse(R"([{"role": "user", "content": "x"}])"));
    } else {
      body.emplace("prompt", "x");
    }
    const auto result = kind == ApiKind::kChat ? parse_chat_request(body.dump(), rules())
                                               : parse_completion_request(body.dump(), rules());
    const auto* error = std::get_if<ApiError>(&result);
    return error ? std::optional(*error) : std::nullopt;
  }

  static std::set<std::string> names(const json& object) {
    std::set<std::string> result;
    for (const auto& item : object.items()) result.insert(item.key());
    return result;
  }
  static std::set<std::string> names(const std::set<std::string_view>& views) { return {views.begin(), views.end()}; }

  const json document_;
  EngineInfo info_;
  std::vector<std::string> models_ = {"pocket"};
};

TEST_F(OpenApi, HasEveryPathAndNoOther) {
  std::map<std::string, std::set<std::string>> paths;
  for (const EndpointRow& row : endpoint_rows()) {
    std::string path(row.path);
    if (path == "/v1/models/") path += "{model}";
    if (path == "/web/") path += "{file}";
    if (const size_t star = path.find('*'); star != std::string::npos) path.replace(star, 1, "{id}");
    std::string method(row.method);
    std::transform(method.begin(), method.end(), method.begin(), [](unsigned char c) { return std::tolower(c); });
    ASSERT_TRUE(document_.at("paths").contains(path)) << path;
    const json& operations = document_.at("paths").at(path);
    paths[path].insert(method);
    ASSERT_TRUE(operations.contains(method)) << method << " " << path;
    EXPECT_EQ(operations.at(method).contains("security"), row.needs_key) << path;
  }
  std::set<std::string> all;
  for (const auto& [path, methods] : paths) {
    EXPECT_EQ(names(document_.at("paths").at(path)), methods) << path;
    all.insert(path);
  }
  EXPECT_EQ(names(document_.at("paths")), all);
}

TEST_F(OpenApi, HasEveryFieldAndNoOther) {
  EXPECT_EQ(names(schema("ChatCompletionRequest").at("properties")), names(known_fields(ApiKind::kChat, rules())));
  EXPECT_EQ(names(schema("CompletionRequest").at("properties")), names(known_fields(ApiKind::kCompletion, rules())));
  EXPECT_EQ(names(schema("ResponsesRequest").at("properties")), names(responses_fields(rules())));
  EXPECT_EQ(names(schema("MessagesRequest").at("properties")), names(messages_fields(rules())));
  EXPECT_EQ(names(schema("TokenizeRequest").at("properties")), names(tokenize_fields(rules())));
}

TEST_F(OpenApi, RequiresWhatTheCodeRequires) {
  const auto missing = [&](auto parse, const std::string& name) {
    const auto result = parse("{}", rules());
    const auto& required = schema(name).at("required");
    ASSERT_EQ(required.size(), 1u);
    EXPECT_EQ(std::get<ApiError>(result).param, required.at(0).get<std::string>());
  };
  missing(parse_chat_request, "ChatCompletionRequest");
  missing(parse_completion_request, "CompletionRequest");
}

// Each stated bound is the code's: the value at it passes, and the next one gives an error that names the field.
TEST_F(OpenApi, BoundsAreTheCodes) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    const json& properties =
        schema(kind == ApiKind::kChat ? "ChatCompletionRequest" : "CompletionRequest").at("properties");
    int checked = 0;
    for (const auto& [name, property] : properties.items()) {
      if (!property.contains("maximum") || name == "seed") continue;  // not every JSON parser reads 2^64 as an integer
      const auto error_at = [&, field = name](const json& value) {
        json body = {{field, value}};
        if (field == "top_logprobs") body["logprobs"] = true;
        if (field == "max_tokens" && kind == ApiKind::kCompletion) body["echo"] = true;
        if (field == "min_tokens") body["max_tokens"] = property.at("maximum");
        if (field == "best_of") body["n"] = value;
        const auto error = error_of(kind, body);
        return error && (error->param == field || field == "best_of");
      };
      EXPECT_FALSE(error_at(property.at("maximum"))) << name;
      EXPECT_TRUE(error_at(property.at("maximum").get<double>() + 1)) << name;
      if (property.contains("minimum")) {
        EXPECT_FALSE(error_at(property.at("minimum"))) << name;
        EXPECT_TRUE(error_at(property.at("minimum").get<double>() - 1)) << name;
      } else {
        EXPECT_TRUE(error_at(property.at("exclusiveMinimum"))) << name;
      }
      ++checked;
    }
    EXPECT_GE(checked, 13);
  }
}

// A value of a type that is not described is refused, and null always counts as missing.
TEST_F(OpenApi, TypesAreTheCodes) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    const json& properties =
        schema(kind == ApiKind::kChat ? "ChatCompletionRequest" : "CompletionRequest").at("properties");
    for (const auto& [name, property] : properties.items()) {
      if (name == "messages" || name == "prompt") continue;
      EXPECT_FALSE(error_of(kind, {{name, nullptr}})) << name;
      if (!property.contains("type")) continue;
      const json types = property.at("type").is_array() ? property.at("type") : json::array({property.at("type")});
      const bool text = std::find(types.begin(), types.end(), "string") != types.end();
      const auto error = error_of(kind, {{name, text ? json(5) : json("x")}});
      ASSERT_TRUE(error) << name;
      EXPECT_EQ(error->param, name);
    }
  }
}

}  // namespace
}  // namespace volley::serve
