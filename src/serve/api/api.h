// Answers endpoints: an HTTP request in, an answer or a running generation out. No sockets. Any thread.
#pragma once

#include <volley/engine.h>

#include <atomic>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "serve/api/chat_input.h"
#include "serve/api/generation.h"
#include "serve/api/metrics.h"
#include "serve/api/openai_request.h"
#include "serve/batches/batch_service.h"
#include "serve/files/file_upload.h"
#include "serve/formats/output_format.h"
#include "serve/http/access.h"
#include "serve/http/http.h"
#include "serve/http/log.h"
#include "serve/http/server.h"
#include "serve/responses/response_store.h"
#include "serve/router/router.h"

namespace volley::serve {

class Api {
 public:
  using Reply = std::variant<HttpResponse, std::shared_ptr<Generation>>;
  // The rest of a request whose grammar must be compiled, for a thread that may wait for grammars. Call it once, while
  // the request exists.
  using Rest = std::function<Reply()>;

  // Uses all options but the transport's. Before attach() it is alive and not ready.
  explicit Api(const ServerOptions& options);
  // Both in one. The options must name existing parsers.
  Api(Engine& engine, const ServerOptions& options);

  // Call once. The engine must outlive the Api. kInvalidArgument: an unknown parser in the options.
  Status attach(Engine& engine);

  // Finds a request's route, or refuses it, by method, path and headers alone. handle() asks too; asking before the
  // body arrives keeps refused bodies out of memory.
  std::variant<Route, HttpResponse> admit(const HttpRequest& request) const;

  // Says what handle() would wait for. Threads that move bytes may only handle kNothing.
  Wait wait_of(const HttpRequest& request) const;

  // Answers a request. `wake` goes to the generation, if there is one. Once `cancelled` (may be null) is true, the
  // reply is not needed and comes soon. If the request's grammar must be compiled and `rest` is not null, `rest` is set
  // and gives the reply.
  Reply handle(const HttpRequest& request, std::function<void()> wake, const std::atomic<bool>* cancelled = nullptr,
               Rest* rest = nullptr);

  // The client's X-Request-Id if it is safe in a log and a header, else a new one.
  std::string request_id(const std::string& sent);
  // Headers of every answer to this request, failures included.
  HttpHeaders common_headers(const HttpRequest& request) const;

  // The number of the API key; equal for all requests without keys.
  std::string tenant_of(const HttpRequest& request) const;

  // Begins to receive a file that is not kept in memory. REQUIRES: takes_upload(request).
  std::variant<std::unique_ptr<FileUpload>, HttpResponse> begin_upload(const HttpRequest& request);
  bool takes_upload(const HttpRequest& request) const;
  size_t max_upload_bytes() const;  // most bytes of a body for begin_upload(); 0: none
  // Makes batches give up their open lines, which the next start answers.
  void stop_batches() {
    if (batches_) batches_->stop();
  }
  // Call after stop_batches(). False: a line is still worked on after this time.
  bool wait_for_batches(std::chrono::milliseconds patience) { return !batches_ || batches_->wait(patience); }

  Metrics& metrics() { return *metrics_; }
  const ServerLog& log() const { return log_; }

 private:
  // Parts that need the engine: made by attach(), then constant.
  struct Serving {
    Engine& engine;
    OutputFormat format;
  };

  // One request on its way to the engine.
  struct Call {
    const HttpRequest& request;
    std::function<void()> wake;
    const std::atomic<bool>* cancelled = nullptr;
    const std::string* line_owner = nullptr;  // for a batch's line, which has no key of its own
    Rest* rest = nullptr;                     // see handle()
  };

  // A body as its endpoint reads it, and the writer of its answer.
  struct Prepared {
    ApiRequest request;
    std::string id;
    MakeWriter make_writer = {};  // null: OpenAI's older two endpoints
    bool holds_answer = false;    // see Generation::Plan
  };

  Reply dispatch(Call call);
  Reply answer(const Route& found, Call call);
  Reply complete(ApiKind kind, Call call);
  Reply respond(Call call);  // POST /v1/responses; the functions below serve its other paths
  HttpResponse kept_response(const HttpRequest& request, const std::string& id);
  HttpResponse delete_response(const HttpRequest& request, const std::string& id);
  HttpResponse response_input(const HttpRequest& request, const std::string& id);
  HttpResponse cancel_response(const HttpRequest& request, const std::string& id);
  // Serves /v1/files and /v1/batches.
  HttpResponse answer_files(const Route& found, const HttpRequest& request);
  HttpResponse list_files(const HttpRequest& request, const std::string& owner) const;
  HttpResponse file_content(const StoredFile& file) const;
  HttpResponse delete_file(const StoredFile& file);
  HttpResponse list_batches(const HttpRequest& request, const std::string& owner) const;
  HttpResponse cancel_batch(const std::string& owner, const std::string& id);
  void start_batches(const Engine& engine);
  std::string owner_of(const HttpRequest& request) const;
  ReadNamed read_named(const Call& call) const;  // borrows the call
  std::string_view listed_client(const HttpRequest& request) const;
  std::string owner_of_key(size_t key) const;
  Reply guarded(const HttpRequest& request, const std::function<Reply()>& work);
  Reply message(Call call);
  HttpResponse count_message_tokens(Call call);
  Reply generate(Prepared prepared, Call call);
  Reply start(Generation::Plan plan, std::vector<std::string> notes, Call call);
  std::string name_ignored_tools(const ApiRequest& request);
  RequestRules rules() const;
  HttpResponse models() const;
  HttpResponse model(const std::string& name) const;
  HttpResponse readiness(const char* status) const;
  std::string metrics_text() const;
  std::optional<size_t> key_of(const HttpRequest& request) const;
  std::string tenant_of(const Call& call) const;
  std::string sharer_of(const Call& call) const;
  std::string space_of(const Call& call) const;  // what its cache_namespace begins with
  void set_share(const Call& call, Generation::Plan& plan);
  static std::optional<ApiError> check_grammar(const Engine& engine, const Generation::Plan& plan,
                                               std::vector<std::string>& notes);
  void add_notes(const std::vector<std::string>& notes, Generation::Plan& plan);
  void log_prompts(const HttpRequest& request, const Generation::Plan& plan) const;
  void warn_once(const std::string& message);

  const ServerOptions options_;
  const ApiKeys keys_;
  const Cors cors_;
  const ServerLog log_;
  const std::shared_ptr<Metrics> metrics_;  // shared with sinks of requests that outlive the server
  const std::time_t started_;
  // Shared with writers of answers, which store what they wrote.
  const std::shared_ptr<ResponseStore> responses_;
  std::unique_ptr<const Serving> serving_owner_;
  std::atomic<const Serving*> serving_{nullptr};  // points to serving_owner_ once that is complete
  std::atomic<uint64_t> next_group_{1};           // 0 means no group
  std::mutex warned_mutex_;
  std::set<std::string> warned_;           // messages that the log has; guarded by warned_mutex_
  std::map<std::string, size_t> owners_;   // key number by owner's name; constant
  std::unique_ptr<BatchService> batches_;  // null: no folder for files. Last, because its threads use the rest
};

}  // namespace volley::serve
