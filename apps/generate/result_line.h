// One line of an --output file, and the statistics line of --json.
#pragma once

#include <volley/result.h>

#include <string>

#include "apps/client/request_pool.h"
#include "apps/client/statistics.h"

namespace volley::apps {

// A JSON object on one line: id, token_ids, text, reasoning and logprobs if any, finish_reason, prompt_tokens,
// cached_tokens, tokens_per_step, and error (code, message) for a request that failed. `id_json` is a JSON value.
std::string result_line(const std::string& id_json, const Completion& completion);

// For a request that never ran: id, finish_reason "error", error.
std::string error_line(const std::string& id_json, const Error& error);

// requests, errors, prompt_tokens, completion_tokens, wall_s, decode_tok_s, steps, acceptance_length, ttft_ms, tpot_ms.
std::string summary_line(const RunSummary& summary);

// [{"role": "user", "content": text}]. kInvalidArgument: not UTF-8.
Result<std::string> user_message_json(const std::string& text);

}  // namespace volley::apps
