// The endpoints: an HTTP request in, an answer or a running generation out. No sockets. Any thread.
#pragma once

#include <volley/engine.h>

#include <atomic>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "serve/generation.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/openai_request.h"
#include "serve/router.h"
#include "serve/server.h"

namespace volley::serve {

class Api {
 public:
  using Reply = std::variant<HttpResponse, std::shared_ptr<Generation>>;

  // The engine must outlive the Api. Of the options: model names, limits and log.
  Api(Engine& engine, const ServerOptions& options);

  // True if handle() may take long (tokenising megabytes): it should not run on a thread that moves bytes.
  static bool takes_long(const HttpRequest& request);

  // `wake` is handed to the generation, if there is one.
  Reply handle(const HttpRequest& request, std::function<void()> wake);

  Metrics& metrics() { return *metrics_; }

 private:
  Reply dispatch(const HttpRequest& request, std::function<void()> wake);
  Reply generate(ApiKind kind, const HttpRequest& request, std::function<void()> wake);
  HttpResponse models() const;
  HttpResponse model(const std::string& name) const;
  ApiResult<std::vector<std::vector<TokenId>>> encode_prompts(const ApiRequest& request) const;
  // Of prompts that do not fit into the context, with what they ask for.
  std::optional<ApiError> check_length(const ApiRequest& request, size_t prompt_tokens) const;
  Generation::Plan make_plan(ApiRequest request, std::vector<std::vector<TokenId>> prompts);
  std::string new_response_id(ApiKind kind);
  void warn_ignored(const std::vector<std::string>& fields);

  Engine& engine_;
  const ServerOptions options_;
  const std::shared_ptr<Metrics> metrics_;  // shared with sinks of requests that outlive the server
  const std::time_t started_;
  const std::string id_prefix_;  // random, so that ids differ between servers
  std::atomic<uint64_t> next_id_{0};
  std::mutex ignored_mutex_;
  std::set<std::string> ignored_;  // guarded by ignored_mutex_: names of unknown fields that the log has seen
};

}  // namespace volley::serve
