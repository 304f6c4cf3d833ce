// The two halves of `volley batch`.
#pragma once

#include "apps/cli/options.h"
#include "apps/console.h"
#include "apps/device_failure.h"
#include "apps/interrupt.h"
#include "serve/batches/batch_index.h"
#include "serve/files/result_file.h"

namespace volley::apps {

// What is there before the models are loaded: a bad file should not cost minutes.
struct BatchFiles {
  serve::BatchIndex index;    // of the input, with the lines that the output answers marked as done
  serve::ResultFile results;  // open for the lines that are missing
  int64_t failed = 0;         // lines of the output that tell of a failure
  bool cut_torn_line = false;
};
// kInvalidArgument: an input that cannot be run (serve::BatchIndex::read), an output that cannot be written, or one
// that holds ids that the input does not. kDataLoss: a damaged line in the output, named.
Result<BatchFiles> open_batch(const BatchCommand& command);

// Answers what is open. `served`: the model names that a request may use. Once the device has failed it writes no more
// failures: the same command answers these lines.
int answer_batch(Engine& engine, const BatchCommand& command, const std::vector<std::string>& served, BatchFiles* files,
                 const DeviceFailure& device, InterruptWatch* interrupt, Console* console);

}  // namespace volley::apps
