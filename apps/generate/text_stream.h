// One request whose text appears on stdout while it is made.
#pragma once

#include "apps/client/request_pool.h"
#include "apps/console.h"
#include "apps/generate/answer_parts.h"
#include "apps/interrupt.h"

namespace volley::apps {

// Runs the request to its end and prints its text with a final newline, in the colours of TokenColours on a terminal
// that has them, unless nothing is drafted. An interrupt cancels the request; the completion then says so. So does a
// failing stdout, which is then the result: kDataLoss. REQUIRES: nothing else is open in `pool`, and the interrupt's
// handler wakes it. Of an answer with parts its content is printed and is the completion's text.
Result<Completion> stream_text(const Engine& engine, RequestPool* pool, ChatRequests::Built request,
                               const InterruptWatch& interrupt, const Console& console);

}  // namespace volley::apps
