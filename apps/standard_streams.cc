#include "apps/standard_streams.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace volley::apps {

void prepare_standard_streams() {
  // In this order: open() takes the lowest number that is free.
  for (const auto& [fd, flags] :
       {std::pair(STDIN_FILENO, O_WRONLY), {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_RDONLY}}) {
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) (void)!open("/dev/null", flags);
  }
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

Status flush_standard_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return write_error("standard output");
}

Error write_error(const std::string& where) {
  const int code = errno;
  // The error of a write that was not the last one: its number is lost.
  const std::string reason = code != 0 ? std::strerror(code) : "an earlier write did not go through";
  const bool full = code == ENOSPC || code == EDQUOT;
  return data_loss("Writing to " + where + " failed: " + reason + (full ? ". Free some space and run again." : "."));
}

}  // namespace volley::apps
