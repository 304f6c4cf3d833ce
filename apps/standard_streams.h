// The process's own streams: what must hold of them before anything is written, and whether writing went well.
#pragma once

#include <volley/result.h>

namespace volley::apps {

// Once, before any file is opened and any thread exists. A stream that the caller closed is held by /dev/null, opened
// such that its use is an error: else the next file would get its number, and the program's texts. A reader that is
// gone and a file at its size limit become errors of the write instead of signals that end the process.
void prepare_standard_streams();

// Flushes stdout. kDataLoss if this or any earlier write to it failed: "Writing to standard output failed: …".
Status flush_standard_output();

}  // namespace volley::apps
