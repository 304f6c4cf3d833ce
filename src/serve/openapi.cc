#include "serve/openapi.h"

#include <nlohmann/json.hpp>
#include <string>

#include "serve/foreign_fields.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

void add_foreign_fields(Json& properties) {
  for (const InertField& field : inert_fields()) {
    properties[std::string(field.name)] = {
        {"description", "Accepted and ignored, which the log says once: " + std::string(field.reason) + "."}};
  }
  for (const UnbuiltField& field : unbuilt_fields()) {
    Json values = Json::parse(field.neutral);
    values.push_back(nullptr);
    properties[std::string(field.name)] = {{"description", "Not supported: " + std::string(field.instead) + "."},
                                           {"enum", std::move(values)}};
  }
}

std::string make_document() {
  Json document = Json::parse(openapi_text());
  Json& schemas = document.at("components").at("schemas");
  for (const char* request : {"ChatCompletionRequest", "CompletionRequest"}) {
    add_foreign_fields(schemas.at(request).at("properties"));
  }
  return document.dump(2);
}

}  // namespace

std::string_view openapi_document() {
  static const std::string document = make_document();
  return document;
}

}  // namespace volley::serve
