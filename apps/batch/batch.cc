#include "apps/batch/batch.h"

#include <utility>

#include "apps/commands.h"
#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "base/file.h"
#include "serve/batches/batch_line.h"

namespace volley::apps {
namespace {

Status read_results(const BatchCommand& command, BatchFiles* files) {
  auto cut = files->results.recover([&](int64_t number, std::string_view line) -> Status {
    const std::string where = command.output + " line " + std::to_string(number);
    const auto id = serve::read_custom_id(line);
    if (!id.ok()) {
      return data_loss(where + " is damaged: " + id.error().message + " Remove the line: it is then answered again.");
    }
    switch (files->index.mark_done(*id)) {
      case serve::BatchIndex::Mark::kMarked:
        files->failed += serve::is_failure(line);
        return {};
      case serve::BatchIndex::Mark::kAlreadyDone:
        return invalid_argument(where + " is a second result for \"" + *id + "\": remove one of the two.");
      case serve::BatchIndex::Mark::kUnknown:
        break;
    }
    return invalid_argument(where + " is a result for \"" + *id + "\", which " + command.input +
                            " does not hold: give each input an output of its own.");
  });
  if (!cut.ok()) return cut.error();
  files->cut_torn_line = *cut;
  return {};
}

Status check_input(const std::string& path) {
  const auto file = open_regular_file(path);
  return file.ok() ? Status() : Status(file.error());
}

}  // namespace

Result<BatchFiles> open_batch(const BatchCommand& command) {
  if (command.input == "-") {
    return invalid_argument("batch reads its input twice, and again when it is resumed: give a file instead of -.");
  }
  // A pipe cannot be read a second time.
  VOLLEY_RETURN_IF_ERROR(check_input(command.input));
  VOLLEY_ASSIGN(serve::BatchIndex index, serve::BatchIndex::read(command.input));
  VOLLEY_ASSIGN(serve::ResultFile results, serve::ResultFile::open(command.output, command.input));
  BatchFiles files{std::move(index), std::move(results)};
  VOLLEY_RETURN_IF_ERROR(read_results(command, &files));
  return files;
}

int run_batch(const BatchCommand& command, InterruptWatch* interrupt, Console* console) {
  auto setup = resolve_engine(command.engine, command.concurrency);
  if (!setup.ok()) return console->fail(setup.error().message, setup_exit_code(setup.error()));
  auto files = open_batch(command);
  if (!files.ok()) return console->fail(files.error().message, kExitUsage);
  if (files->cut_torn_line) console->note("The last line of " + command.output + " was torn: it is answered again.");
  if (files->index.done() == files->index.lines()) {
    console->note("Nothing to do: " + command.output + " answers all " + std::to_string(files->index.lines()) +
                  " lines.");
    return files->failed > 0 ? kExitRequestsFailed : kExitOk;
  }
  DeviceFailure device(console);
  auto engine = create_engine(*setup, console, &device);
  if (!engine.ok()) return console->fail(engine.error().message, creation_exit_status(*setup, engine.error()));
  std::vector<std::string> served = command.served_model_names;
  if (served.empty()) served = {setup->model_name};
  const int status = answer_batch(*engine.value(), command, served, &files.value(), device, interrupt, console);
  device.leave();
  return status;
}

}  // namespace volley::apps
