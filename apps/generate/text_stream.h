// Streams one request's text to stdout.
#pragma once

#include "apps/client/request_pool.h"
#include "apps/console.h"
#include "apps/generate/answer_parts.h"
#include "apps/interrupt.h"

namespace volley::apps {

// Runs the request to its end and prints its text with a final newline. A terminal with colours gets those of
// TokenColours if tokens are drafted. An interrupt cancels the request, and the completion says so; a failing stdout
// also cancels it, and the result is kDataLoss. REQUIRES: no other request is open in `pool`, and the interrupt's
// handler wakes it. Of an answer with parts, the content is printed and is the completion's text.
Result<Completion> stream_text(const Engine& engine, RequestPool* pool, ChatRequests::Built request,
                               const InterruptWatch& interrupt, const Console& console);

}  // namespace volley::apps
