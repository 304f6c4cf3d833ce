#include "serve/http/exchange.h"

#include <utility>

#include "serve/messages/messages_writer.h"

namespace volley::serve {
namespace {

constexpr size_t kHeadBytes = 4096;  // more than a response's head usually takes

}  // namespace

Exchange::Exchange(Api& api) : api_(&api), path_label_("other") {
  request_.request_id = api.request_id({});
}

Exchange::Exchange(Api& api, HttpRequest request, bool http_1_0, bool keep_alive)
    : api_(&api),
      request_(std::move(request)),
      path_label_(path_label(request_)),
      http_1_0_(http_1_0),
      keep_alive_(keep_alive) {
  request_.request_id = api.request_id(request_.request_id);
}

HttpRequest Exchange::hand_over() {
  std::string body = std::exchange(request_.body, {});
  HttpRequest request = request_;
  request.body = std::move(body);
  request.arrived = std::chrono::steady_clock::now();
  return request;
}

Framing Exchange::framing(bool chunked, bool draining) {
  Framing how;
  how.http_1_0 = http_1_0_;
  how.keep_alive = keep_alive_ && !draining && !(chunked && http_1_0_);
  how.chunked = chunked;
  how.now = std::time(nullptr);
  reusable_ = how.keep_alive;
  return how;
}

std::string Exchange::head(HttpResponse& response, const Framing& how) {
  for (auto& header : api_->common_headers(request_)) response.headers.push_back(std::move(header));
  status_ = response.status;
  error_ = std::move(response.error);
  reason_ = std::move(response.reason);
  api_->metrics().count_response(path_label_, response.status);
  return response_head(response, how);
}

std::string Exchange::whole(HttpResponse response, bool draining) {
  const bool has_body = request_.method != "HEAD";
  if (!response.error.empty() && is_messages_path(request_.target)) write_messages_error(request_.request_id, response);
  std::string bytes;
  bytes.reserve(kHeadBytes + (has_body ? response.body.size() : 0));
  bytes += head(response, framing(false, draining));
  if (has_body) bytes += response.body;
  return bytes;
}

std::string Exchange::piece(Generation::Output output, bool draining) {
  if (output.response) return whole(std::move(*output.response), draining);
  if (output.events.empty() && !output.done) return {};
  const Framing how = framing(true, draining);
  std::string bytes;
  if (!std::exchange(streaming_, true)) {
    HttpResponse response;
    response.content_type = "text/event-stream; charset=utf-8";
    response.headers = std::move(output.headers);
    response.headers.insert(response.headers.end(), {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
    bytes = head(response, how);
  }
  if (!output.events.empty()) bytes += body_piece(output.events, how);
  output.events = {};
  if (output.done) bytes += body_end(how);
  return bytes;
}

void Exchange::end(bool delivered, const Generation* generation) const {
  AccessRecord record;
  record.request_id = request_.request_id;
  record.method = request_.method;
  record.path = path_label_;
  record.status = status_;
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  record.delivered = delivered;
  record.error = error_;
  record.reason = reason_;
  if (generation && !generation->failure().empty()) record.error = generation->failure();
  if (generation && delivered && record.error.empty()) {
    const UsageTotals& usage = generation->usage();
    record.tokens = {usage.prompt_tokens(), usage.cached_tokens(), usage.completion_tokens()};
  }
  api_->log().access(record);
}

}  // namespace volley::serve
