// The subcommands of `volley`. Each returns the process's exit status (exit_codes.h).
#pragma once

#include "apps/cli/options.h"
#include "apps/console.h"
#include "apps/interrupt.h"

namespace volley::apps {

// Generates for one prompt as streaming text, or for a file of requests. Messages go to stdout, stderr or the output.
int run_generate(const GenerateCommand& command, InterruptWatch* interrupt, Console* console);

// Holds a conversation in the terminal, with a model in this process or with an endpoint. If stdin is no terminal, all
// of it is one message, and stdout gets the answer alone.
int run_chat(const ChatCommand& command, InterruptWatch* interrupt, Console* console);

// Runs the HTTP server until SIGTERM or Ctrl-C, which let running requests end first.
int run_serve(const ServeCommand& command, InterruptWatch* interrupt, Console* console);

// Answers a file of requests in OpenAI's batch format, with the engine in this process and the server's own request and
// response code. docs/batch.md is for users.
int run_batch(const BatchCommand& command, InterruptWatch* interrupt, Console* console);

// Measures throughput over concurrency, with and without speculation, beside the machine's limits.
int run_bench(const BenchCommand& command, InterruptWatch* interrupt, Console* console);

// Replaces the process by volley-suite, the Python program in suite/, with the same arguments, signals and streams.
// Returns only if it is not on the PATH, after the console has said how to install it. Call it before the process has
// threads or blocked signals, because the program inherits blocked signals.
int run_bench_serving(const BenchServingCommand& command, Console* console);

// Describes a model, its memory, and whether a drafter fits it: kExitModel when a file cannot be read or does not fit.
// It reads configurations and headers of weight files, which must name every tensor to load, but no weights.
int run_inspect(const InspectCommand& command, Console* console);

// Shows three answers of the pocket models, then the same answers without speculation.
int run_demo(const DemoCommand& command, InterruptWatch* interrupt, Console* console);

// Prints what a problem report needs: program, machine, model and options.
int run_collect_env(const CollectEnvCommand& command, Console* console);

}  // namespace volley::apps
