// The endpoints: an HTTP request in, an answer or a running generation out. No sockets. Any thread.
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
  // What is left of a request whose grammar has to be compiled: for a thread that may wait for others' grammars. The
  // request must still be there. To be called once.
  using Rest = std::function<Reply()>;

  // Uses all options but the transport's. Until attach() there is no engine: it is alive and not ready.
  explicit Api(const ServerOptions& options);
  // Both. The names of parsers in the options must be right.
  Api(Engine& engine, const ServerOptions& options);

  // Once. The engine must outlive the Api. kInvalidArgument: there is no parser of a name that the options give.
  Status attach(Engine& engine);

  // Where a request goes, or what it gets instead: what its method, path and headers alone decide. handle() asks too;
  // to ask before the body is there keeps bodies of those who are not let in out of memory.
  std::variant<Route, HttpResponse> admit(const HttpRequest& request) const;

  // What handle() would wait for: the threads that move bytes are for kNothing alone.
  Wait wait_of(const HttpRequest& request) const;

  // `wake` is handed to the generation, if there is one. Once `cancelled` is true, which may be null, the reply does
  // not matter any more, and comes soon. Where the request's grammar has to be compiled and `rest` is not null, it is
  // set, and there is no reply yet but the one that it gives.
  Reply handle(const HttpRequest& request, std::function<void()> wake, const std::atomic<bool>* cancelled = nullptr,
               Rest* rest = nullptr);

  // The client's X-Request-Id if it is fit for a log and a header, else a new one.
  std::string request_id(const std::string& sent);
  // What every answer to this request carries, its failure included.
  HttpHeaders common_headers(const HttpRequest& request) const;

  // The API key's number stands for it. Without keys all requests have the same.
  std::string tenant_of(const HttpRequest& request) const;

  // A file that arrives instead of a body in memory. REQUIRES: takes_upload(request).
  std::variant<std::unique_ptr<FileUpload>, HttpResponse> begin_upload(const HttpRequest& request);
  bool takes_upload(const HttpRequest& request) const;
  size_t max_upload_bytes() const;  // of a body that begin_upload() takes; 0: none
  // Batches give up their open lines, which the next start answers.
  void stop_batches() {
    if (batches_) batches_->stop();
  }
  // After that. False: work on a line is not over after this time.
  bool wait_for_batches(std::chrono::milliseconds patience) { return !batches_ || batches_->wait(patience); }

  Metrics& metrics() { return *metrics_; }
  const ServerLog& log() const { return log_; }

 private:
  // What there is once the engine is: made by attach(), constant from then on.
  struct Serving {
    Engine& engine;
    OutputFormat format;
  };

  // One request on its way to the engine.
  struct Call {
    const HttpRequest& request;
    std::function<void()> wake;
    const std::atomic<bool>* cancelled = nullptr;
    const std::string* line_owner = nullptr;  // of a batch's line, which has no key of its own
    Rest* rest = nullptr;                     // see handle()
  };

  // A body as its endpoint reads it, and how the answer is written.
  struct Prepared {
    ApiRequest request;
    std::string id;
    MakeWriter make_writer = {};  // null: as the two of OpenAI's older endpoints
    bool holds_answer = false;    // see Generation::Plan
  };

  Reply dispatch(Call call);
  Reply answer(const Route& found, Call call);
  Reply complete(ApiKind kind, Call call);
  Reply respond(Call call);  // POST /v1/responses; the others of that path below
  HttpResponse kept_response(const HttpRequest& request, const std::string& id);
  HttpResponse delete_response(const HttpRequest& request, const std::string& id);
  HttpResponse response_input(const HttpRequest& request, const std::string& id);
  HttpResponse cancel_response(const HttpRequest& request, const std::string& id);
  // /v1/files and /v1/batches
  HttpResponse answer_files(const Route& found, const HttpRequest& request);
  HttpResponse list_files(const HttpRequest& request, const std::string& owner) const;
  HttpResponse file_content(const StoredFile& file) const;
  HttpResponse delete_file(const StoredFile& file);
  HttpResponse list_batches(const HttpRequest& request, const std::string& owner) const;
  HttpResponse cancel_batch(const std::string& owner, const std::string& id);
  void start_batches(const Engine& engine);
  std::string owner_of(const HttpRequest& request) const;
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
  // Shared with writers of answers, which keep what they wrote.
  const std::shared_ptr<ResponseStore> responses_;
  std::unique_ptr<const Serving> serving_owner_;
  std::atomic<const Serving*> serving_{nullptr};  // what serving_owner_ holds, once it is complete
  std::atomic<uint64_t> next_group_{1};           // 0 is none
  std::mutex warned_mutex_;
  std::set<std::string> warned_;           // guarded by warned_mutex_: what the log was told
  std::map<std::string, size_t> owners_;   // the number of the key by its owner's name; constant
  std::unique_ptr<BatchService> batches_;  // null: there is no folder for files. Last: its threads use the rest
};

}  // namespace volley::serve
