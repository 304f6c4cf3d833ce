// Which endpoint a request is for.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "serve/http/http.h"

namespace volley::serve {

enum class Endpoint {
  kChatCompletions,
  kCompletions,
  kResponses,
  kGetResponse,
  kDeleteResponse,
  kResponseInput,
  kCancelResponse,
  kUploadFile,
  kListFiles,
  kGetFile,
  kDeleteFile,
  kFileContent,
  kCreateBatch,
  kListBatches,
  kGetBatch,
  kCancelBatch,
  kMessages,
  kCountMessageTokens,
  kTokenize,
  kDetokenize,
  kModels,
  kModel,
  kHealth,
  kReady,
  kVersion,
  kMetrics,
  kLoad,
  kReplicaLoads,
  kServerInfo,
  kModelInfo,
  kOpenApi,
  kPage,
};

// What the work of a request waits for.
enum class Wait {
  kNothing,
  kWork,  // of the processor: tokenising megabytes takes seconds
  kDisk,
};

// A row of the table of endpoints.
struct EndpointRow {
  // One that ends with "/" stands for everything below it, "/" itself aside; "*" for a segment.
  std::string_view path;
  std::string_view method;
  Endpoint endpoint;
  bool needs_key;     // what gives away the model's work or its name
  bool needs_engine;  // there is no answer before the engine is loaded
  Wait wait;
};

std::span<const EndpointRow> endpoint_rows();

struct Route {
  const EndpointRow* row = nullptr;
  std::string rest;  // of a path below a row's, or where it has "*", decoded: a model's name, a file's, a response's id
};

// The query string is ignored. An unknown path is a 404, a wrong method a 405 with Allow; HEAD goes where GET goes.
std::variant<Route, HttpResponse> route(const HttpRequest& request);

// The endpoint's path for logs and metric labels: a bounded set, "other" for unknown paths.
std::string_view path_label(const HttpRequest& request);

}  // namespace volley::serve
