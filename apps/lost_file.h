// A sentence for the end that a mapped weight file brings about when it is cut short.
#pragma once

namespace volley::apps {

// From now on a read of a mapped weight file that is no longer there (SIGBUS) ends the process with kExitModel and a
// sentence on stderr that names the file. Any other SIGBUS ends it as it always does. Once, early in main().
void report_lost_files();

}  // namespace volley::apps
