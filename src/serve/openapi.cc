#include "serve/openapi.h"

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "serve/foreign_fields.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

void add_unbuilt_fields(Json& properties, std::span<const UnbuiltField> fields) {
  for (const UnbuiltField& field : fields) {
    Json values = Json::parse(field.neutral);
    values.push_back(nullptr);
    properties[std::string(field.name)] = {{"description", "Not supported: " + std::string(field.instead) + "."},
                                           {"enum", std::move(values)}};
  }
}

void add_foreign_fields(Json& properties, std::span<const UnbuiltField> elsewhere) {
  for (const InertField& field : inert_fields()) {
    properties[std::string(field.name)] = {
        {"description", "Accepted and ignored, which the log says once: " + std::string(field.reason) + "."}};
  }
  add_unbuilt_fields(properties, unbuilt_fields());
  add_unbuilt_fields(properties, elsewhere);
}

std::string make_document() {
  Json document = Json::parse(openapi_text());
  Json& schemas = document.at("components").at("schemas");
  add_foreign_fields(schemas.at("ChatCompletionRequest").at("properties"), not_in_chats());
  add_foreign_fields(schemas.at("CompletionRequest").at("properties"), not_in_completions());
  return document.dump(2);
}

}  // namespace

std::string_view openapi_document() {
  static const std::string document = make_document();
  return document;
}

}  // namespace volley::serve
