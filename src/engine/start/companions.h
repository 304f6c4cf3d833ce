// What replicas in lockstep need before they have workers: one runs steps, the others take part.
#pragma once

#include <functional>
#include <span>

#include "engine/run/executor.h"

namespace volley::engine {

// f(), which may run steps of replicas[index] on this thread, while a thread for each other replica takes part in its
// passes. Nothing but f() where they are not in lockstep. Errors are f()'s; kResourceExhausted where the system gives
// no more threads. Throws what f() or a companion threw; the replicas can then only be destroyed. REQUIRES: none has a
// worker.
Status with_companions(std::span<Executor* const> replicas, size_t index, const std::function<Status()>& f);

}  // namespace volley::engine
