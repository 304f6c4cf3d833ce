// The HTTP server over one Engine: OpenAI's chat and text completions, tokens, models, health and metrics.
#pragma once

#include <volley/engine.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
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

  std::string certificate;         // with its issuers' certificates, in the order of the chain
  std::string key;                 // the certificate's, without a password; empty: in `certificate`
  std::string client_authorities;  // certificates of the authorities for client certificates; empty: none needed
  ClientCertificate client_certificate = ClientCertificate::kNone;
};

struct ServerOptions {
  // an address, or a name with all its addresses; "0.0.0.0" or "::": all of the machine
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                         // 0: any free one, see Server::port()
  std::vector<std::string> served_model_names;  // at least one; the first is the default
  std::string version = "unknown";              // the program's, for GET /version
  // Defaults for chats in GET /v1/models; nothing: the engine's.
  std::optional<SamplingParams> chat_sampling;

  std::shared_ptr<spdlog::logger> log;      // null: no log
  std::shared_ptr<const LogSink> log_sink;  // log's sink, for the metric of dropped lines; null: it drops none
  std::shared_ptr<const CacheEventPublisher> cache_events;  // for its metrics; null: none
  LogFormat log_format = LogFormat::kText;
  bool log_prompts = false;  // prompts are the clients' secrets, so this is off by default

  std::vector<std::string> allowed_hosts;  // names of the server that requests may use; see AllowedHosts
  std::vector<std::string> api_keys;       // empty: no key is needed
  bool prefix_cache_per_key = false;       // no request finds another key's prefixes
  std::optional<TlsOptions> tls;           // nothing: plain HTTP
  std::vector<std::string> cors_origins;   // origins whose pages may read answers; "*": any

  std::string tool_call_parser = "auto";  // see find_output_format()
  // Reads the picture at a URL, at most so many bytes; null: such pictures are refused. Waits in a lane's thread.
  std::function<Result<std::string>(const std::string& url, size_t most_bytes, const std::atomic<bool>* cancelled)>
      fetch_picture;
  bool refuse_hosted_tools = false;  // refuse tools that only another service can run, instead of leaving them out
  std::string reasoning_parser = "auto";

  size_t max_body_bytes = size_t{32} << 20;  // a larger request is a 413 and is not buffered
  // Bound on received bytes, over all connections, of bodies that no endpoint has read yet; one more piece gets a 503.
  // At least max_body_bytes. An API key, or an address on a server without keys, may hold at most as much as it leaves
  // free, or one body. Bodies up to 64 KiB are not counted.
  size_t max_total_body_bytes = size_t{256} << 20;
  size_t max_header_bytes = size_t{16} << 10;  // more is a 431
  int max_connections = 1024;                  // one more gets a 503
  int max_n = 128;                             // choices of one prompt
  int max_choices = 1024;                      // prompts × n of one request
  // Bound on an answer's JSON: one that is certain to exceed it is refused, and one that grows past it is given up.
  size_t max_response_bytes = size_t{64} << 20;
  // Bound on whole answers that clients have not read, over all connections; one more is a 503 instead. At least
  // max_response_bytes; a client's part is as above. Answers up to 64 KiB are not counted.
  size_t max_total_response_bytes = size_t{256} << 20;
  // Stored answers of /v1/responses, for continuing; the least recently used is dropped first. 0: none.
  size_t max_stored_responses = 1000;
  size_t max_stored_bytes = size_t{64} << 20;  // including their conversations
  // For /v1/files and /v1/batches; null: both are refused.
  std::shared_ptr<FileStore> file_store;
  int batch_concurrency = 0;  // open lines of batches; 0: half of the engine's requests
  // Bound on bytes waiting for one client. A stream whose client reads too slowly is cancelled. A connection holds up
  // to twice as much, waiting and being written, and half a MiB in the kernel.
  size_t max_unsent_bytes = size_t{1} << 20;
  // from a request's first byte to its last; for a file, for each piece
  std::chrono::milliseconds receive_timeout{30'000};
  size_t least_upload_rate = size_t{64} << 10;  // bytes a second of a file, in addition to receive_timeout
  // from the request's last byte to the answer's, else a 504; 0: no limit
  std::chrono::milliseconds request_timeout{0};
  std::chrono::milliseconds idle_timeout{75'000};   // between requests of a connection
  std::chrono::milliseconds write_timeout{30'000};  // for a client to take 64 KiB
  size_t least_read_rate = size_t{16} << 10;        // bytes a second of an answer, in addition to write_timeout

  int io_threads = 2;  // move bytes
  // Parse, apply chat templates, tokenise: see good_worker_threads(). As many more serve large requests alone.
  int worker_threads = 2;
  bool open_json_objects = false;  // schemas' objects may have unnamed properties, unless they say otherwise
  int grammar_threads = 4;         // for requests whose grammar must be compiled
  int disk_threads = 4;            // for files and batches
};

// For this many usable cores: half of them, but 2 to 8, because a very long prompt takes a thread for seconds and must
// not delay others, and 4 that wait while few threads render chats.
int good_worker_threads(int usable_cores);

// Any thread may call every function, but no signal handler may.
class Server {
 public:
  // Listens on return, and reports that it is alive and not ready. kUnavailable: the address cannot be bound, or files
  // or threads ran out. kInvalidArgument: an unusable key or certificate.
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  // Serves everything from now on. Call once. The engine must outlive the server. kInvalidArgument: an unknown parser.
  Status attach(Engine& engine);
  // start() and attach() in one.
  static Result<std::unique_ptr<Server>> start(Engine& engine, ServerOptions options);
  ~Server();  // stop() and wait()

  uint16_t port() const;

  // Refuses new connections and requests, lets running ones end, then stops. Connections without a running request are
  // closed at once; if a request has begun to arrive, or the client takes nothing of its answer, after at most 2
  // seconds. Requests that run longer than `deadline` are cancelled and their clients told, and a second later every
  // connection is closed. Returns at once.
  void drain(std::chrono::milliseconds deadline);
  // Closes every connection and cancels running requests. Returns at once.
  void stop();
  // Waits until the server has stopped, with every client informed. False: a worker thread is still busy a second after
  // its request was given up. The destructor would wait for it, so the program should end the process.
  bool wait();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace volley::serve
