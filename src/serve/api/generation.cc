#include "serve/api/generation.h"

#include <chrono>
#include <limits>
#include <utility>

#include "serve/api/answer_size.h"

namespace volley::serve {
namespace {

using Clock = std::chrono::steady_clock;

// Runs on the engine's thread. Holds no Generation, because the last events of an abandoned one are still counted here.
class ChoiceSink {
 public:
  ChoiceSink(Engine& engine, std::shared_ptr<Metrics> metrics, std::shared_ptr<Mailbox> mailbox, int choice,
             std::shared_ptr<const Metrics::OpenRequest> request, size_t prompt_tokens)
      : engine_(&engine),
        metrics_(std::move(metrics)),
        mailbox_(std::move(mailbox)),
        choice_(choice),
        open_(std::make_shared<Metrics::OpenChoice>(std::move(request), static_cast<int64_t>(prompt_tokens))) {}

  void operator()(const Event& event) {
    std::optional<double> gap_s;
    if (!event.tokens.empty()) {
      const auto now = Clock::now();
      if (last_tokens_) gap_s = std::chrono::duration<double>(now - *last_tokens_).count();
      last_tokens_ = now;
    }
    metrics_->observe(event, gap_s);
    if (open_) open_->add_tokens(static_cast<int64_t>(event.tokens.size()));
    if (event.finish) open_.reset();
    if (!mailbox_->push(choice_, event) && !event.finish) engine_->cancel(event.id);
  }

 private:
  Engine* engine_;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<Mailbox> mailbox_;
  int choice_;
  std::optional<Clock::time_point> last_tokens_;
  std::shared_ptr<Metrics::OpenChoice> open_;  // shared only with copies of this that are not called
};

ApiError cancelled_error() {
  return api_error({ErrorCode::kCancelled, "The request was cancelled because the server is stopping. Send it again."});
}

ApiError too_slow_error(size_t limit) {
  return http_error(503, "The request was cancelled because the response was read too slowly: more than " +
                             std::to_string(limit) + " bytes were waiting to be sent.");
}

ApiError too_large_error(size_t limit) {
  ApiError error = http_error(400, "The answer has grown past " + std::to_string(limit) +
                                       " bytes, the most that this server keeps for a request. Ask for fewer tokens, " +
                                       "choices or log-probabilities, or stream a chat.");
  error.code = "response_too_large";
  return error;
}

}  // namespace

Generation::Generation(Engine& engine, Plan& plan, std::function<void()> wake)
    : engine_(engine),
      mailbox_(std::make_shared<Mailbox>(plan.stream ? plan.max_unsent_bytes : std::numeric_limits<size_t>::max(),
                                         std::move(wake))),
      stream_(plan.stream),
      holds_answer_(!plan.stream || plan.holds_answer),
      headers_(std::move(plan.headers)),
      max_unsent_bytes_(plan.max_unsent_bytes),
      max_response_bytes_(plan.max_response_bytes),
      running_(plan.choices.size()) {
  const int choices = static_cast<int>(plan.choices.size());
  if (plan.make_writer) {
    writer_ = plan.make_writer(std::move(plan.info), choices, stream_);
  } else {
    writer_ = stream_ ? stream_response_writer(std::move(plan.info), choices)
                      : whole_response_writer(std::move(plan.info), choices);
  }
}

ApiResult<std::shared_ptr<Generation>> Generation::start(Engine& engine, std::shared_ptr<Metrics> metrics, Plan plan,
                                                         std::function<void()> wake) {
  std::shared_ptr<Generation> generation(new Generation(engine, plan, std::move(wake)));
  const auto open = std::make_shared<const Metrics::OpenRequest>(metrics);
  for (size_t i = 0; i < plan.choices.size(); ++i) {
    const size_t prompt_tokens = plan.choices[i].prompt.size();
    auto id = engine.submit(std::move(plan.choices[i]), ChoiceSink(engine, metrics, generation->mailbox_,
                                                                   static_cast<int>(i), open, prompt_tokens));
    // Earlier checks leave only the grammar to be wrong.
    if (!id.ok()) return api_error(id.error(), plan.grammar_field);
    generation->ids_.push_back(*id);
  }
  return generation;
}

Generation::~Generation() {
  if (done_) {
    mailbox_->close();
  } else {
    abandon();
  }
}

Generation::Output Generation::take() {
  Output out;
  if (done_) return out;
  for (const Mailbox::Item& item : mailbox_->take()) {
    const auto& finish = item.event.finish;
    // A last event without room has lost its text.
    if (finish && (finish->reason == FinishReason::kError || finish->reason == FinishReason::kCancelled ||
                   mailbox_->overflowed())) {
      fail(*finish, out);
      return out;
    }
    has_tokens_ = has_tokens_ || !item.event.tokens.empty();
    if (finish && finish->reason == FinishReason::kTimeout && !has_tokens_) {
      fail_with(deadline_error(), out);
      return out;
    }
    if (holds_answer_) held_bytes_ += event_json_bytes(item.event) + prompt_logprobs_json_bytes(item.event);
    if (held_bytes_ > max_response_bytes_) {
      fail_with(too_large_error(max_response_bytes_), out);
      return out;
    }
    out.events += writer_->add(item.choice, item.event);
    if (finish) --running_;
  }
  if (running_ > 0 && expired_) {
    fail_with(timeout_error(), out);
    return out;
  }
  if (running_ == 0) {
    std::string rest = writer_->end();
    if (stream_) {
      out.events += rest;
    } else {
      out.response.emplace().body = std::move(rest);
      out.response->headers = headers_;
    }
    out.done = done_ = true;
  }
  if (!begun_ && !out.events.empty()) out.headers = headers_;
  begun_ = begun_ || !out.events.empty();
  return out;
}

// A failing choice fails the whole response: the schema has no place for half of an answer.
void Generation::fail(const Finish& finish, Output& out) {
  ApiError error = cancelled_error();
  if (finish.reason == FinishReason::kError) {
    error = run_error(finish.error.value_or(internal_error("The request failed and the engine gave no reason.")));
  } else if (mailbox_->overflowed()) {
    error = too_slow_error(max_unsent_bytes_);
  }
  fail_with(error, out);
}

void Generation::fail_with(const ApiError& error, Output& out) {
  failure_ = error.code.value_or(error.type);
  if (begun_ || !out.events.empty()) {
    out.events += writer_->fail(error);
  } else {
    out.response = error_response(error);
  }
  out.done = done_ = true;
  abandon();
}

bool Generation::running() const {
  return !done_ && !mailbox_->overflowed() && mailbox_->finished() < ids_.size();
}

void Generation::cancel() {
  for (const RequestId id : ids_) engine_.cancel(id);
}

void Generation::expire() {
  expired_ = true;
}

void Generation::abandon() {
  mailbox_->close();
  cancel();
}

}  // namespace volley::serve
