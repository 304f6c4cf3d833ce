// Runs a batch with serve/batches/batch_run.h, and adds a console, an interrupt and a single output file.
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <optional>
#include <utility>

#include "apps/batch/batch.h"
#include "apps/batch/progress.h"
#include "apps/exit_codes.h"
#include "serve/api/api.h"
#include "serve/batches/batch_run.h"

namespace volley::apps {
namespace {

// Prints the request code's warnings (unknown fields) as the program's notes.
class ConsoleSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit ConsoleSink(Console* console) : console_(console) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    console_->note(std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

  Console* console_;
};

serve::ServerOptions api_options(const std::vector<std::string>& served, Console* console) {
  serve::ServerOptions options;
  options.served_model_names = served;
  options.log = std::make_shared<spdlog::logger>("volley", std::make_shared<ConsoleSink>(console));
  return options;
}

int finish(const Status& ended, BatchProgress* progress, const EngineStats& stats, const DeviceFailure& device,
           const InterruptWatch& interrupt, Console* console) {
  progress->finish(stats);
  if (device.happened()) {
    console->note("The device has failed: the same command answers the rest.");
    return kExitDevice;
  }
  if (!ended.ok()) return console->fail(ended.error().message, kExitUsage);
  if (interrupt.interrupted()) {
    console->note("Interrupted: the same command answers the rest.");
    return interrupt.exit_status();
  }
  return progress->failed() > 0 ? kExitRequestsFailed : kExitOk;
}

}  // namespace

int answer_batch(Engine& engine, const BatchCommand& command, const std::vector<std::string>& served, BatchFiles* files,
                 const DeviceFailure& device, InterruptWatch* interrupt, Console* console) {
  serve::Api api(engine, api_options(served, console));
  BatchProgress progress(console, files->index.lines(), files->index.done(), files->failed);
  serve::BatchRun::Hooks hooks;
  hooks.ask = [&](const serve::HttpRequest& request, std::function<void()> wake) {
    return api.handle(request, std::move(wake));
  };
  hooks.may_start = [&](size_t open) { return static_cast<int>(open) < command.concurrency; };
  hooks.write = [&](std::string line, bool failed) -> Status {
    if (failed && device.happened()) return Error{ErrorCode::kUnavailable, "The device has failed."};
    Status written = files->results.append(std::move(line));
    if (written.ok()) progress.count(failed);
    return written;
  };
  hooks.beat = [&](size_t open) {
    progress.show(static_cast<int64_t>(open));
    return files->results.sync_if_due();
  };
  hooks.stopped = [&] { return interrupt->interrupted() || device.happened(); };
  hooks.count_tokens = [&](int64_t tokens) { progress.count_tokens(tokens); };
  // A request may hear of the device's failure before this command does. By its second try the command has.
  serve::BatchRun run(command.input, &files->index, std::move(hooks), {.retries = 1});
  const InterruptScope scope(interrupt, [&run] { run.wake(); });
  Status status = run.run();
  if (const Status synced = files->results.sync(); status.ok()) status = synced;
  return finish(status, &progress, engine.stats(), device, *interrupt, console);
}

}  // namespace volley::apps
