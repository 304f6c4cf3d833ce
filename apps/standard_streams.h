// Prepares the process's standard streams, and reports failed writes.
#pragma once

#include <volley/result.h>

namespace volley::apps {

// Call once, before any file is opened and any thread exists. /dev/null takes the place of closed streams, opened so
// that its use is an error; otherwise the next opened file would get that number, and the program's texts. A lost
// reader and a file at its size limit become write errors instead of fatal signals.
void prepare_standard_streams();

// Flushes stdout. kDataLoss if this or any earlier write to it failed: "Writing to standard output failed: …".
Status flush_standard_output();

}  // namespace volley::apps
