// Lets one replica in lockstep run steps before there are workers, while the others take part.
#pragma once

#include <functional>
#include <span>

#include "engine/run/executor.h"

namespace volley::engine {

// Calls f(), which may run steps of replicas[index] on this thread, while a thread for each other replica takes part in
// its passes. Without lockstep it only calls f(). Errors are f()'s; kResourceExhausted where the system gives no more
// threads. Throws what f() or a companion threw; the replicas can then only be destroyed. REQUIRES: no replica has a
// worker.
Status with_companions(std::span<Executor* const> replicas, size_t index, const std::function<Status()>& f);

}  // namespace volley::engine
