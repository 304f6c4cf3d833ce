// The two halves of `volley batch`.
#pragma once

#include "apps/cli/options.h"
#include "apps/console.h"
#include "apps/device_failure.h"
#include "apps/interrupt.h"
#include "serve/batches/batch_index.h"
#include "serve/files/result_file.h"

namespace volley::apps {

// The files, opened before the models are loaded: a bad file should not cost minutes.
struct BatchFiles {
  serve::BatchIndex index;    // the input's lines; those that the output answers are marked as done
  serve::ResultFile results;  // takes the missing lines
  int64_t failed = 0;         // output lines that report a failure
  bool cut_torn_line = false;
};
// kInvalidArgument: an input that cannot run (serve::BatchIndex::read), an output that cannot be written, or one with
// ids that the input does not have. kDataLoss: names a damaged line in the output.
Result<BatchFiles> open_batch(const BatchCommand& command);

// Answers the open lines. `served`: model names that a request may use. After a failure of the device no more failures
// are written, because the same command can answer these lines later.
int answer_batch(Engine& engine, const BatchCommand& command, const std::vector<std::string>& served, BatchFiles* files,
                 const DeviceFailure& device, InterruptWatch* interrupt, Console* console);

}  // namespace volley::apps
