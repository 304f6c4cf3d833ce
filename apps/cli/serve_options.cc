#include "apps/cli/serve_options.h"

#include "apps/cli/option_groups.h"

namespace volley::apps {
namespace {

void add_limits(CLI::App* app, ServeCommand* command) {
  const GroupOfHelp group(app, "Limits");
  add_table_options(app, &command->engine.base, OptionGroup::kLimits);
  serve::ServerOptions& server = command->server;
  const auto count = [&](const char* name, auto& value, const char* help) {
    app->add_option(name, value, help)->check(positive());
  };
  const auto seconds = [&](const char* name, std::chrono::milliseconds& value, const char* help, int least) {
    app->add_option_function<int>(
           name, [&value](const int& given) { value = std::chrono::seconds(given); }, help)
        ->check(between(least, 1e6, "a number of seconds from " + std::to_string(least) + " to 1000000"))
        ->type_name("SECONDS");
  };
  count("--max-n", server.max_n, "choices of one prompt [128]");
  count("--max-choices", server.max_choices, "prompts times choices of one request, at most --max-queue [1024]");
  count("--max-response-bytes", server.max_response_bytes,
        "of an answer; one that is sure to be larger is a 400 [67108864]");
  const auto size = [&](const char* name, size_t& value, const char* help) {
    app->add_option(name, value, help)->check(between(0, 1e12, "a number from 0 to 1000000000000"));
  };
  size("--max-stored-responses", server.max_stored_responses,
       "answers of /v1/responses that are kept to go on from; 0: none [1000]");
  size("--max-stored-bytes", server.max_stored_bytes,
       "of them with their conversations; the oldest go first [67108864]");
  count("--max-files", command->files.max_files, "in --files-dir, and as many batches [10000]");
  const auto large = [&](const char* name, size_t& value, const char* help) {
    app->add_option(name, value, help)->check(between(1, 1e12, "a number from 1 to 1000000000000"));
  };
  large("--max-file-bytes", command->files.max_file_bytes, "of a file; more is a 413 [536870912]");
  large("--max-files-bytes", command->files.max_total_bytes,
        "of all files and results of batches together [17179869184]");
  app->add_option_function<size_t>(
         "--files-quota-mb", [command](size_t mb) { command->files.max_owner_bytes = mb << 20; },
         "MiB of files and results of batches of one API key; more is a 413; 0: no such limit [0]")
      ->check(between(0, 1e6, "a number of MiB from 0 to 1000000"));
  count("--max-body-bytes", server.max_body_bytes, "of a request; more is a 413 [33554432]");
  count("--max-total-body-bytes", server.max_total_body_bytes,
        "of all bodies that are arriving, at least --max-body-bytes; half for one client; more is a 503 [268435456]");
  count("--max-total-response-bytes", server.max_total_response_bytes,
        "of all whole answers that wait to be read, at least --max-response-bytes; half for one client; more is a 503 "
        "[268435456]");
  count("--max-header-bytes", server.max_header_bytes, "of a request; more is a 431 [16384]");
  count("--max-connections", server.max_connections, "open at once; one more gets a 503 [1024]");
  count("--max-unsent-bytes", server.max_unsent_bytes,
        "that wait for the reader of a stream; more cancels it [1048576]");
  seconds("--request-timeout", server.request_timeout, "for an answer, then a 504; 0: no limit [0]", 0);
  seconds("--receive-timeout", server.receive_timeout, "for a request to arrive, then a 408 [30]", 1);
  seconds("--idle-timeout", server.idle_timeout, "between requests of a connection [75]", 1);
  app->add_option("--drain-timeout", command->drain_timeout_s,
                  "seconds that running requests get after a signal, then they are cancelled [30]")
      ->check(between(0, 1e6, "a number of seconds from 0 to 1000000"))
      ->type_name("SECONDS");
}

void add_server_options(CLI::App* app, ServeCommand* command) {
  serve::ServerOptions& server = command->server;
  const GroupOfHelp group(app, "Server");
  app->add_option("--host", server.host, "address to listen on, or a name: all it stands for [127.0.0.1]")
      ->check(not_empty());
  app->add_option("--port", server.port, "port to listen on, 0 for any free one [8000]")
      ->check(between(0, 65535, "a port from 0 to 65535"));
  values_as_written(
      app->add_option("--served-model-name", server.served_model_names, "name in the API [that of the model's folder]"))
      ->check(not_empty());
  app->add_option("--tool-call-parser", server.tool_call_parser,
                  "how the model writes tool calls: auto (its chat template says), none, hermes, llama, qwen3_coder, "
                  "glm45, minimax_m2, deepseek_v3, kimi_k2, gemma4, lfm2, pythonic, mistral or harmony [auto]")
      ->check(not_empty());
  app->add_flag("--open-json-objects", server.open_json_objects,
                "objects of JSON schemas may have more properties than they name, unless the schema forbids it");
  app->add_option("--reasoning-parser", server.reasoning_parser,
                  "how it thinks: auto, none, think (between <think> and </think>), gemma4 or harmony [auto]")
      ->check(not_empty());
  app->add_flag("--refuse-hosted-tools", server.refuse_hosted_tools,
                "a 400 for tools that cannot run here, as web_search; else they are left out and a header names them");
  one_value_each(
      app->add_option("--api-key", command->api_keys,
                      "a key that clients must send; may be given several times; other users of this machine can see "
                      "it in the list of processes, so prefer VOLLEY_API_KEY or the file"))
      ->check(not_empty())
      ->type_name("KEY");
  app->add_option("--api-key-file", command->api_key_file,
                  "such keys, one a line; VOLLEY_API_KEYS adds more, separated by commas")
      ->check(not_empty())
      ->type_name("FILE");
  app->add_flag("--prefix-cache-per-key", server.prefix_cache_per_key,
                "each API key, or without keys each address, has prefixes of its own in the cache: else times and "
                "\"cached_tokens\" tell which beginnings of prompts others have sent");
  const auto pem = [app](const char* name, std::string& path, const char* help) {
    app->add_option(name, path, help)->check(not_empty())->type_name("FILE.pem");
  };
  serve::TlsOptions& tls = command->tls;
  pem("--ssl-certfile", tls.certificate, "HTTPS: the server's certificate and those of its issuers [plain HTTP]");
  pem("--ssl-keyfile", tls.key, "the certificate's key, without a password [in --ssl-certfile]");
  pem("--ssl-ca-certs", tls.client_authorities, "whose certificates clients must show");
  app->add_option_function<std::string>(
         "--ssl-cert-reqs",
         [&tls](const std::string& text) {
           using Wanted = serve::TlsOptions::ClientCertificate;
           const bool optional = text == "1" || text == "optional";
           tls.client_certificate = text == "0" || text == "none" ? Wanted::kNone
                                    : optional                    ? Wanted::kOptional
                                                                  : Wanted::kRequired;
         },
         "whether clients must show one: none, optional or required, or 0, 1 or 2 [none]")
      ->check(CLI::IsMember({"none", "optional", "required", "0", "1", "2"}));
  app->add_option("--files-dir", command->files_dir,
                  "folder for what /v1/files and /v1/batches keep; without it they are refused")
      ->check(not_empty())
      ->type_name("FOLDER");
  app->add_option("--batch-concurrency", server.batch_concurrency,
                  "lines of batches kept open at once [half of --max-num-seqs]")
      ->check(positive());
  app->add_option_function<std::string>(
         "--kv-events-config",
         [&events = command->cache_events](const std::string& text) {
           auto parsed = serve::parse_cache_event_options(text);
           if (!parsed.ok()) throw CLI::ValidationError("--kv-events-config", parsed.error().message);
           events = std::move(*parsed);
         },
         "tells routers what the prefix cache holds, over ZeroMQ, as vLLM's option does: a JSON object with "
         "enable_kv_cache_events, endpoint, replay_endpoint, topic, ... [no events]")
      ->type_name("JSON");
  values_as_written(
      app->add_option("--cors-origin", server.cors_origins,
                      "origin whose web pages may read answers, or * for all; may be given several times [none]"))
      ->check(web_origin())
      ->type_name("ORIGIN");
  one_value_each(
      app->add_option("--allowed-hosts", server.allowed_hosts,
                      "names by which requests may call the server, beside those of this machine, separated by commas; "
                      "* for any [any, but where --host is a loopback address none]"))
      ->check(host_name())
      ->delimiter(',')
      ->type_name("HOST");
  one_value_each(
      app->add_option("--allow-image-hosts", command->image_hosts,
                      "hosts whose pictures are fetched for requests that name their URLs, over HTTPS, from public "
                      "addresses, without redirects, separated by commas [none]"))
      ->check(host_name())
      ->check([](const std::string& host) { return host == "*" ? "name the hosts: * is not taken" : ""; })
      ->delimiter(',')
      ->type_name("HOST");
  app->add_option_function<std::string>(
         "--log-format",
         [&server](const std::string& name) {
           server.log_format = name == "json" ? serve::LogFormat::kJson : serve::LogFormat::kText;
         },
         "text, or json: one object a line [text]")
      ->check(CLI::IsMember({"text", "json"}));
  app->add_option("--log-level", command->log_level, "debug, info (every request), warning or error [info]")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app->add_flag("--log-prompts", server.log_prompts, "log what the model reads, up to 8 KiB of each prompt");
}

}  // namespace

void add_serve_options(CLI::App* app, ServeCommand* command) {
  add_main_options(app, &command->engine);
  add_text_options(app, &command->engine);
  add_server_options(app, command);
  add_limits(app, command);
  add_speculation_options(app, &command->engine);
  add_engine_options(app, &command->engine);
}

}  // namespace volley::apps
