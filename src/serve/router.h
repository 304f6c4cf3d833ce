// Which endpoint a request is for.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "serve/http.h"

namespace volley::serve {

enum class Endpoint { kChatCompletions, kCompletions, kModels, kModel, kHealth, kMetrics };

struct Route {
  Endpoint endpoint = Endpoint::kHealth;
  std::string model;  // of kModel: the rest of the path, decoded
};

// The query string is ignored. An unknown path is a 404, a wrong method a 405 with Allow; HEAD goes where GET goes.
std::variant<Route, HttpResponse> route(const HttpRequest& request);

// The endpoint's path for logs and metric labels: a bounded set, "other" for unknown paths.
std::string_view path_label(const HttpRequest& request);

}  // namespace volley::serve
