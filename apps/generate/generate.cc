#include "apps/generate/generate.h"

#include <cstdio>
#include <iostream>
#include <iterator>
#include <utility>

#include "apps/client/request_pool.h"
#include "apps/commands.h"
#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "apps/generate/answer_parts.h"
#include "apps/generate/result_line.h"
#include "apps/generate/text_stream.h"
#include "apps/generate/token_colours.h"
#include "apps/standard_streams.h"
#include "serve/json/json_text.h"

namespace volley::apps {
namespace {

// "-" reads stdin, without the line end that a shell appends.
Result<std::string> given_text(const std::string& option, const std::string& text) {
  if (text != "-") return text;
  std::string input(std::istreambuf_iterator<char>(std::cin), {});
  if (input.ends_with('\n')) input.pop_back();
  if (input.empty()) return invalid_argument(option + " - reads stdin, which is empty.");
  if (serve::find_invalid_utf8(input)) return invalid_argument(option + " - reads stdin, which is not valid UTF-8.");
  return input;
}

Result<Prompt> command_line_prompt(const GenerateCommand& command) {
  if (command.prompt) {
    VOLLEY_ASSIGN(std::string text, given_text("--prompt", *command.prompt));
    return Prompt(PromptText{std::move(text)});
  }
  VOLLEY_ASSIGN(const std::string text, given_text("--chat", *command.chat));
  VOLLEY_ASSIGN(std::string messages, user_message_json(text));
  return Prompt(PromptMessages{std::move(messages)});
}

Result<Completion> answer(Engine& engine, const GenerateCommand& command, RequestPool* pool,
                          const InterruptWatch& interrupt, const Console& console) {
  auto prompt = command_line_prompt(command);
  ChatRequests requests(engine);
  auto request =
      prompt.ok() ? requests.build(*prompt, command.settings, {}) : Result<ChatRequests::Built>(prompt.error());
  if (!request.ok()) {
    pool->count_refused();
    return request.error();
  }
  return stream_text(engine, pool, std::move(request).value(), interrupt, console);
}

}  // namespace

Result<GenerateFiles> open_files(const GenerateCommand& command) {
  GenerateFiles files;
  if (command.input) {
    VOLLEY_ASSIGN(LineReader reader, LineReader::open(*command.input));
    files.input.emplace(std::move(reader));
  }
  if (command.input || command.output) {
    VOLLEY_ASSIGN(OrderedOutput output, OrderedOutput::open(command.output.value_or("-"), command.input));
    files.output.emplace(std::move(output));
  }
  return files;
}

int finish_run(const RunSummary& summary, bool json, const Status& written, const InterruptWatch& interrupt,
               Console* console) {
  console->clear_progress();
  if (!written.ok()) console->error(written.error().message);
  console->note(describe_summary(summary));
  if (json) std::printf("%s\n", summary_line(summary).c_str());
  const Status flushed = flush_standard_output();
  if (written.ok() && !flushed.ok()) console->error(flushed.error().message);
  if (interrupt.interrupted()) return interrupt.exit_status();
  if (!written.ok() || !flushed.ok()) return kExitUsage;
  return summary.errors > 0 ? kExitRequestsFailed : kExitOk;
}

int generate_one(Engine& engine, const GenerateCommand& command, GenerateFiles* files, InterruptWatch* interrupt,
                 Console* console) {
  RequestPool pool(engine);
  const InterruptScope scope(interrupt, [&pool] { pool.wake(); });
  if (engine.info().block_size > 1) console->coloured(TokenColours::legend());
  const auto completion = answer(engine, command, &pool, *interrupt, *console);
  Status written;
  if (completion.ok()) {
    if (completion->finish.error) console->error(completion->finish.error->message);
    if (files->output) written = files->output->put(0, result_line("1", *completion));
  } else if (completion.error().code == ErrorCode::kDataLoss) {
    written = completion.error();
  } else {
    console->error(completion.error().message);
    if (files->output) written = files->output->put(0, error_line("1", completion.error()));
  }
  return finish_run(pool.summary(), command.json, written, *interrupt, console);
}

int run_generate(const GenerateCommand& command, InterruptWatch* interrupt, Console* console) {
  auto setup = resolve_engine(command.engine, command.concurrency);
  if (!setup.ok()) return console->fail(setup.error().message, setup_exit_code(setup.error()));
  auto files = open_files(command);
  if (!files.ok()) return console->fail(files.error().message, kExitUsage);
  DeviceFailure device(console);
  auto engine = create_engine(*setup, console, &device);
  if (!engine.ok()) return console->fail(engine.error().message, creation_exit_status(*setup, engine.error()));
  const auto mode = command.input ? generate_file : generate_one;
  const int status = mode(*engine.value(), command, &files.value(), interrupt, console);
  device.leave();
  return status;
}

}  // namespace volley::apps
