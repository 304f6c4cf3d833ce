// Explains the end of a process whose mapped weight file was cut short.
#pragma once

namespace volley::apps {

// From now on a read behind the end of a mapped weight file (SIGBUS) ends the process with kExitModel and a sentence on
// stderr that names the file. Any other SIGBUS ends the process as usual. Call once, early in main().
void report_lost_files();

}  // namespace volley::apps
