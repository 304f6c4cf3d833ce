// The subcommands of `volley`. Each returns the process's exit status (exit_codes.h).
#pragma once

#include "apps/cli/options.h"
#include "apps/console.h"
#include "apps/interrupt.h"

namespace volley::apps {

// One prompt as streaming text, or a file of requests. What the user must know is on stdout, on stderr or in the output
// file.
int run_generate(const GenerateCommand& command, InterruptWatch* interrupt, Console* console);

// A conversation in the terminal, with a model in this process or with an endpoint. Where stdin is no terminal, all of
// it is one message, and stdout gets the answer alone.
int run_chat(const ChatCommand& command, InterruptWatch* interrupt, Console* console);

// The HTTP server until SIGTERM or Ctrl-C, which let running requests end first.
int run_serve(const ServeCommand& command, InterruptWatch* interrupt, Console* console);

// A file of requests in OpenAI's batch format, answered by the engine in this process through the same request and
// response code as the server's. docs/batch.md is for users.
int run_batch(const BatchCommand& command, InterruptWatch* interrupt, Console* console);

// Throughput over concurrency, with and without speculation, beside what the machine could do.
int run_bench(const BenchCommand& command, InterruptWatch* interrupt, Console* console);

// Becomes volley-suite, the Python program in suite/, with the same arguments, signals and streams. Returns only if
// there is none on the PATH; the console then says how to install it. Call it before the process has threads or blocked
// signals: the program inherits what is blocked.
int run_bench_serving(const BenchServingCommand& command, Console* console);

// What a model is, what memory it takes, and whether a drafter fits it: kExitModel when something cannot be read or
// does not fit. Reads configurations and the headers of weight files, which must name every tensor that loading would
// ask for; no weights.
int run_inspect(const InspectCommand& command, Console* console);

// Three answers of the pocket models, then the same answers without speculation.
int run_demo(const DemoCommand& command, InterruptWatch* interrupt, Console* console);

// What a report of a problem should say of program, machine, model and options.
int run_collect_env(const CollectEnvCommand& command, Console* console);

}  // namespace volley::apps
