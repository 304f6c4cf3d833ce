#include "apps/commands.h"

#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "apps/api_keys.h"
#include "apps/cli/text_defaults.h"
#include "apps/client/picture_fetch.h"
#include "apps/device_failure.h"
#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "apps/load_log.h"
#include "apps/ticker.h"
#include "base/environment.h"
#include "device/device.h"
#include "engine/run/queue_places.h"
#include "engine/run/validation.h"
#include "serve/events/cache_event_publisher.h"
#include "serve/http/log_sink.h"
#include "serve/http/server.h"
#include "text/grammar.h"

namespace volley::apps {
namespace {

std::string url_of(const std::string& host, uint16_t port, bool tls) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return std::string(tls ? "https://" : "http://") + (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

void open_log(const ServeCommand& command, serve::ServerOptions& options) {
  auto sink = std::make_shared<serve::LogSink>(STDERR_FILENO, options.log_format);
  options.log = std::make_shared<spdlog::logger>("volley", sink);
  options.log->set_level(spdlog::level::from_str(command.log_level));
  if (options.log_format == serve::LogFormat::kJson) options.log->set_pattern("%v");
  options.log_sink = std::move(sink);
}

// A shell's usual limit of 1,024 open files is below the server's connections. Raises it as far as possible without
// special rights, and warns if that is not enough.
void raise_file_limit(const serve::ServerOptions& options, const serve::ServerLog& log) {
  constexpr rlim_t kOtherFiles = 256;  // weights, threads' descriptors, the log
  const rlim_t wanted = static_cast<rlim_t>(options.max_connections) + kOtherFiles;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= wanted) return;
  log.warn("The process may open " + std::to_string(limit.rlim_cur) + " files, too few for " +
           std::to_string(options.max_connections) +
           " connections. Raise the limit (ulimit -n) or lower --max-connections.");
}

// Threads cannot use another heap's free memory. glibc may make eight heaps a core, and each keeps the most that its
// threads ever needed. Each also reserves 64 MiB of address space, so under a limit there is one. Call early: a thread
// that has allocated keeps its heap.
void limit_heaps() {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  mallopt(M_ARENA_MAX, limited ? 1 : static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

// With --log-level debug: logs the verify budget's last choice and its reason once a second, while a request decodes.
class DecisionLog {
 public:
  DecisionLog(const Engine& engine, const serve::ServerLog& log, bool wanted) {
    if (wanted) ticker_.emplace(std::chrono::seconds(1), [this, &engine, &log] { tick(engine, log); });
  }

 private:
  void tick(const Engine& engine, const serve::ServerLog& log) {
    const EngineStats::Verify verify = engine.stats().verify;
    if (verify.steps != std::exchange(steps_, verify.steps) && !verify.last.empty()) {
      log.debug("verify budget: " + verify.last);
    }
  }

  int64_t steps_ = 0;
  std::optional<Ticker> ticker_;
};

Result<serve::ServerOptions> server_options(const ServeCommand& command, const EngineSetup& setup) {
  serve::ServerOptions options = command.server;
  if (options.served_model_names.empty()) options.served_model_names = {setup.model_name};
  options.version = VOLLEY_VERSION;
  const AnswerDefaults chat = chat_defaults(setup.text, setup.options.model_dir);
  if (chat.milder) options.chat_sampling = chat.sampling;
  options.worker_threads = serve::good_worker_threads(usable_cores());
  options.grammar_threads = text::kMostCompiling;
  VOLLEY_ASSIGN(options.api_keys, read_api_keys(command.api_key_file, env_api_keys(), command.api_keys));
  // A single client may not fill the queue, so a request for more choices would always be a 429.
  const size_t places = engine::most_places_alone(static_cast<size_t>(setup.options.max_queue));
  if (options.api_keys.size() != 1) options.max_choices = std::min(options.max_choices, static_cast<int>(places));
  open_log(command, options);
  if (!command.image_hosts.empty()) {
    options.fetch_picture = [hosts = PictureHosts{.hosts = command.image_hosts}](const auto&... wanted) {
      return fetch_picture(hosts, wanted...);
    };
  }
  if (command.cache_events.enabled && !setup.options.prefix_cache) {
    return invalid_argument("--kv-events-config: without a prefix cache there are no events. Drop --no-prefix-cache.");
  }
  if (command.files_dir) {
    VOLLEY_ASSIGN(options.file_store, serve::FileStore::open(*command.files_dir, command.files));
  }
  return options;
}

// Runs a node other than the first: it has no server, and lives as long as node 0's engine. After a signal to all, node
// 0's requests end first; a second signal ends this process.
int run_follower(const ServeCommand& command, EngineSetup& setup, InterruptWatch* interrupt, Console* console) {
  serve::ServerOptions options = command.server;
  open_log(command, options);
  const serve::ServerLog log(options.log, options.log_format);
  const std::string name = "Node " + std::to_string(setup.options.node_rank);
  if (const Status folders = check_folders(setup.options); !folders.ok())
    return console->fail(folders.error().message, kExitModel);
  if (const Status nodes = engine::check_nodes(setup.options); !nodes.ok())
    return console->fail(nodes.error().message, kExitUsage);
  for (const std::string& note : setup.notes) console->note(note);
  setup.options.on_warning = [log](const std::string& warning) { log.warn(warning); };
  log.info(name + " looks for node 0 at " + setup.options.master_addr + ", port " +
           std::to_string(setup.options.master_port) + ".");
  // The process ends without its destructors, which would wait for the step.
  setup.options.on_device_failure = [console](const std::string& failure) {
    console->error(failure);
    std::_Exit(kExitDevice);
  };
  bool started = false;
  std::optional<InterruptScope> scope;
  const Status end = Engine::follow(
      setup.options, [console](std::string_view phase, double done) { console->progress(std::string(phase), done); },
      [&] {
        started = true;
        console->clear_progress();
        log.info(name + " is ready and computes for node 0. It serves nothing itself.");
        scope.emplace(interrupt,
                      [&log, name] { log.info(name + " ends when node 0 does; another signal ends it at once."); });
      });
  scope.reset();
  console->clear_progress();
  if (end.ok()) {
    log.info("Node 0 has ended in order.");
    return kExitOk;
  }
  return console->fail(end.error().message, started ? kExitDevice : creation_exit_status(setup, end.error()));
}

}  // namespace

int run_serve(const ServeCommand& command, InterruptWatch* interrupt, Console* console) {
  auto setup = resolve_engine(command.engine, 0);
  if (!setup.ok()) return console->fail(setup.error().message, setup_exit_code(setup.error()));
  limit_heaps();
  if (setup->options.node_rank > 0) return run_follower(command, *setup, interrupt, console);
  auto options = server_options(command, *setup);
  if (!options.ok()) return console->fail(options.error().message, kExitUsage);
  // Declared before the engine, which must not outlive it.
  std::shared_ptr<serve::CacheEventPublisher> publisher;
  if (command.cache_events.enabled) {
    auto started = serve::CacheEventPublisher::start(command.cache_events, setup->options.data_parallel_size);
    if (!started.ok()) return console->fail(started.error().message, kExitUsage);
    publisher = std::move(*started);
    options->cache_events = publisher;
    setup->options.on_cache_events = [publisher = publisher.get()](int replica, std::span<const CacheEvent> events) {
      publisher->publish(replica, events);
    };
  }
  ServedModel served{
      options->served_model_names.front(), setup->draft_name, "", options->api_keys.size(), {}, options->chat_sampling};
  const serve::ServerLog log(options->log, options->log_format);
  raise_file_limit(*options, log);
  // Listens before the models are loaded: a taken port shows at once, and probes learn that the server is loading. The
  // engine is declared first because it must outlive the server.
  DeviceFailure device(console);
  std::unique_ptr<Engine> engine;
  auto server = serve::Server::start(std::move(*options));
  if (!server.ok()) return console->fail(server.error().message, kExitUsage);
  serve::Server& running = *server.value();
  setup->options.on_warning = [log](const std::string& warning) { log.warn(warning); };
  // Every request has its error by then; the server only has to report and end.
  device.set_handler([&running, &log](const std::string& failure) {
    constexpr std::chrono::milliseconds kLastWords{1000};  // for answers under way
    log.error(failure);
    running.drain(kLastWords);
  });
  if (setup->options.nnodes > 1 && engine::check_nodes(setup->options).ok()) {
    log.info("Node 0 of " + std::to_string(setup->options.nnodes) + " waits for the others at " +
             setup->options.master_addr + ", port " + std::to_string(setup->options.master_port) + ".");
  }
  auto loaded = create_engine(*setup, console, &device);
  if (!loaded.ok()) return console->fail(loaded.error().message, creation_exit_status(*setup, loaded.error()));
  engine = std::move(*loaded);
  if (const Status attached = running.attach(*engine); !attached.ok()) {
    console->error(attached.error().message);
    device.leave();
    return kExitUsage;
  }
  const DecisionLog decisions(*engine, log, command.log_level == "debug");
  const LoadLog load(*engine, std::chrono::seconds(10), [&log](const std::string& line) { log.info(line); });
  const InterruptScope scope(
      interrupt, [&running, timeout = std::chrono::seconds(command.drain_timeout_s)] { running.drain(timeout); });
  served.url = url_of(command.server.host, running.port(), command.server.tls.has_value());
  const auto spelled = [&](TokenId id) { return engine->decode({&id, 1}, /*skip_special_tokens=*/false); };
  served.ends = ends_text(engine->info().eos_token_ids, spelled);
  std::printf("%s\n", start_line(engine->info(), served).c_str());
  std::fflush(stdout);
  if (console->stdout_terminal()) console->plain(agents_text(served));
  const bool idle = running.wait();
  device.leave();
  if (!idle) {
    log.warn("The process ends although work on a request that was given up is not over.");
    std::_Exit(kExitOk);
  }
  return kExitOk;
}

}  // namespace volley::apps
