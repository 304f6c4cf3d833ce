// The HTTP server: OpenAI's chat and text completions, tokens, models, health and metrics over one Engine.
#pragma once

#include <volley/engine.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/http/log.h"

namespace volley::serve {

class CacheEventPublisher;
class FileStore;
class LogSink;

// HTTPS: files in PEM format.
struct TlsOptions {
  enum class ClientCertificate { kNone, kOptional, kRequired };

  std::string certificate;         // and those of its issuers, in the order of the chain
  std::string key;                 // of the certificate, without a password; empty: it stands in `certificate`
  std::string client_authorities;  // certificates of whom client certificates must come from; empty: none
  ClientCertificate client_certificate = ClientCertificate::kNone;
};

struct ServerOptions {
  std::string host = "127.0.0.1";  // an address, or a name: all addresses it has; "0.0.0.0" or "::": every one
  uint16_t port = 8000;            // 0: any free one, see Server::port()
  std::vector<std::string> served_model_names;  // at least one; the first is used when a request names none
  std::string version = "unknown";              // of the program, for GET /version
  // What chats should ask for where their user says nothing, for GET /v1/models; nothing: the engine's defaults.
  std::optional<SamplingParams> chat_sampling;

  std::shared_ptr<spdlog::logger> log;  // null: no log
  std::shared_ptr<const LogSink>
      log_sink;  // what `log` writes to, for the metric of dropped lines; null: it drops none
  std::shared_ptr<const CacheEventPublisher> cache_events;  // for the metrics of it; null: there is none
  LogFormat log_format = LogFormat::kText;
  bool log_prompts = false;  // prompts are the clients' secrets unless somebody asks for them here

  std::vector<std::string> allowed_hosts;  // names that requests may call the server by; see AllowedHosts
  std::vector<std::string> api_keys;       // empty: no key is needed
  bool prefix_cache_per_key = false;       // no request finds what another key has sent
  std::optional<TlsOptions> tls;           // nothing: plain HTTP
  std::vector<std::string> cors_origins;   // pages of these origins may read answers; "*": of any

  std::string tool_call_parser = "auto";  // see find_output_format()
  bool refuse_hosted_tools = false;       // a 400 for tools that only another service can run, which are else left out
  std::string reasoning_parser = "auto";

  size_t max_body_bytes = size_t{10} << 20;  // a larger request is a 413 and is not buffered
  // What all connections together may have received of bodies that no endpoint has read yet; one more piece gets a 503.
  // At least max_body_bytes, whatever stands here. An API key, or an address where there are no keys, has at most as
  // much as it leaves free, or one body. Bodies up to 64 KiB are not counted.
  size_t max_total_body_bytes = size_t{256} << 20;
  size_t max_header_bytes = size_t{16} << 10;  // more is a 431
  int max_connections = 1024;                  // one more gets a 503
  int max_n = 128;                             // choices of one prompt
  int max_choices = 1024;                      // prompts × n of one request
  // An answer as JSON: one that is certain to be larger is refused, a whole one that grows past it is given up.
  size_t max_response_bytes = size_t{64} << 20;
  // What all connections together may hold of whole answers that their clients have not read; one more is a 503
  // instead. At least max_response_bytes; of a client as above. Answers up to 64 KiB are not counted.
  size_t max_total_response_bytes = size_t{256} << 20;
  // Answers of /v1/responses that are kept, to go on from; the least recently used goes first. 0: none.
  size_t max_stored_responses = 1000;
  size_t max_stored_bytes = size_t{64} << 20;  // with the conversations before them
  // For /v1/files and /v1/batches; null: they say that there is none.
  std::shared_ptr<FileStore> file_store;
  int batch_concurrency = 0;  // lines of batches that are open at once; 0: half of what the engine runs at once
  // What may wait to be sent to one client. A stream whose client reads so slowly that more piles up is cancelled. A
  // connection holds up to twice as much, what waits and what is being written, and half a MiB in the kernel.
  size_t max_unsent_bytes = size_t{1} << 20;
  std::chrono::milliseconds receive_timeout{30'000};  // from a request's first byte to its last; of a file, a piece's
  size_t least_upload_rate = size_t{64} << 10;        // bytes a second of a file, beside receive_timeout for all of it
  std::chrono::milliseconds request_timeout{0};       // from there to the answer's end, else a 504; 0: no limit
  std::chrono::milliseconds idle_timeout{75'000};     // between requests of a connection
  std::chrono::milliseconds write_timeout{30'000};    // for every 64 KiB a client has to take
  size_t least_read_rate = size_t{16} << 10;          // bytes a second of an answer, beside write_timeout for all of it

  int io_threads = 2;  // move bytes
  // Parse, apply chat templates, tokenise: see good_worker_threads(). As many more are there for large requests alone.
  int worker_threads = 2;
  bool open_json_objects = false;  // objects of JSON schemas have more properties than they name, unless these say
  int grammar_threads = 4;         // for requests whose grammar has to be compiled
  int disk_threads = 4;            // for files and batches
};

// Where this process may use so many cores: half of them, but 2 to 8, as a very long prompt takes a thread for seconds
// and other requests should not wait for it, and 4 that wait while few threads render chats.
int good_worker_threads(int usable_cores);

// Every function may be called from any thread, but not from a signal handler.
class Server {
 public:
  // Listens when it returns, and answers that it is alive and not ready. kUnavailable: the address cannot be bound, or
  // the process may not have another file or thread. kInvalidArgument: a key or a certificate is of no use.
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  // The engine is loaded: from now on everything is served. Once. The engine must outlive the server. kInvalidArgument:
  // there is no parser of a name that the options give.
  Status attach(Engine& engine);
  // Both.
  static Result<std::unique_ptr<Server>> start(Engine& engine, ServerOptions options);
  ~Server();  // stop() and wait()

  uint16_t port() const;

  // Takes no more connections or requests, lets running ones end, then stops. Connections without a running request
  // are closed at once; one on which a request has begun to arrive, or whose client has only an answer to take and
  // takes nothing of it, after at most 2 seconds. How long requests may run on is the caller's choice and has no
  // default: those still running after `deadline` are cancelled and their clients told so, and a second later every
  // connection is closed. Returns at once.
  void drain(std::chrono::milliseconds deadline);
  // Closes every connection and cancels what runs. Returns at once.
  void stop();
  // Until the server has stopped: every client was told what became of its request. False: a worker thread still works
  // on a request that nobody waits for, a second after it was asked to give up. The destructor would wait for it, so a
  // program that has to end should end the process.
  bool wait();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace volley::serve
