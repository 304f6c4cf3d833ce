#include "apps/serve.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>

#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "serve/server.h"

namespace volley::apps {
namespace {

constexpr std::chrono::seconds kDrainDeadline{30};  // what still runs after that is cancelled

std::string url_of(const std::string& host, uint16_t port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return "http://" + (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace

int run_serve(const ServeCommand& command, InterruptWatch* interrupt, Console* console) {
  auto setup = resolve_engine(command.engine, 0);
  if (!setup.ok()) {
    console->error(setup.error().message);
    return setup.error().code == ErrorCode::kNotFound ? kExitModel : kExitUsage;
  }
  auto engine = create_engine(*setup, console);
  if (!engine.ok()) {
    console->error(engine.error().message);
    return creation_exit_status(*setup, engine.error());
  }
  serve::ServerOptions options;
  options.host = command.host;
  options.port = static_cast<uint16_t>(command.port);
  options.served_model_names = command.served_model_names;
  if (options.served_model_names.empty()) options.served_model_names = {setup->model_name};
  options.log = std::make_shared<spdlog::logger>("volley", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  const std::string name = options.served_model_names.front();
  auto server = serve::Server::start(*engine.value(), std::move(options));
  if (!server.ok()) {
    console->error(server.error().message);
    return kExitUsage;
  }
  serve::Server& running = *server.value();
  const InterruptScope scope(interrupt, [&running, console] {
    console->note("Draining: running requests may end; a second signal stops at once.");
    running.drain(kDrainDeadline);
  });
  std::printf("Serving %s at %s\n", name.c_str(), url_of(command.host, running.port()).c_str());
  std::fflush(stdout);
  running.wait();
  return kExitOk;
}

}  // namespace volley::apps
