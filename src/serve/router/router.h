// Finds a request's endpoint.
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

// The resource that a request's handling waits for.
enum class Wait {
  kNothing,
  kWork,  // the processor: tokenising megabytes takes seconds
  kDisk,
};

struct EndpointRow {
  // A path that ends with "/" stands for all below it, without "/" itself; "*" stands for a segment.
  std::string_view path;
  std::string_view method;
  Endpoint endpoint;
  bool needs_key;     // protects the model's work and name
  bool needs_engine;  // no answer before the engine is loaded
  Wait wait;
};

std::span<const EndpointRow> endpoint_rows();

struct Route {
  const EndpointRow* row = nullptr;
  std::string rest;  // the open part of a path, decoded: a model's name, a file's, a response's id
};

// Ignores the query. An unknown path is a 404, a wrong method a 405 with Allow; HEAD goes where GET goes.
std::variant<Route, HttpResponse> route(const HttpRequest& request);

// The endpoint's path for logs and metric labels, from a bounded set, "other" for unknown paths.
std::string_view path_label(const HttpRequest& request);

}  // namespace volley::serve
