// The interpreter's lock, given up while the engine works.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace volley::python {

// For a scope, of a thread that holds the lock. An interpreter that has ended meanwhile ends the thread that asks for
// its lock (before Python 3.14), by unwinding its stack, which no destructor survives: a daemon thread then sleeps here
// until the process has ended.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      for (;;) pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

}  // namespace volley::python
