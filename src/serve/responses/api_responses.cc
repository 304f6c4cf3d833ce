// POST /v1/responses, and requests about stored responses.
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/api.h"
#include "serve/api/page.h"
#include "serve/http/random_id.h"
#include "serve/json/json_text.h"
#include "serve/responses/responses_request.h"
#include "serve/responses/responses_writer.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPage = 20;  // default items of a list
constexpr size_t kMaxPage = 100;

HttpResponse not_kept(const std::string& id) {
  ApiError error = http_error(404, "The response " + json_quote(id.substr(0, 100)) +
                                       " is not kept here: it was deleted, made with \"store\": false, or is too old.");
  error.code = "not_found";
  return error_response(error);
}

}  // namespace

Api::Reply Api::respond(Call call) {
  const std::string suffix = random_id();
  const std::string tenant = tenant_of(call);
  const std::string id = "resp_" + suffix;
  auto parsed =
      parse_responses_request(call.request.body, {rules(), *responses_, tenant, suffix, options_.max_body_bytes});
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error_response(*error);
  auto& request = std::get<ResponsesRequest>(parsed);
  const bool parsed_text = !request.chat.tools.tools.empty() || serving_.load()->format.reasoning;
  if (request.chat.generate.sampling.logprobs >= 0 && parsed_text) {
    return error_response(unsupported_field(
        "include",
        "Log-probabilities are of answers that are text alone: leave out \"message.output_text.logprobs\" "
        "with tools and with models that think."));
  }
  // A stream repeats it three times.
  if (request.echo.size() > options_.max_unsent_bytes) {
    return error_response(invalid_field(
        "tools", "What the answer repeats of the request (\"tools\", \"instructions\", \"text\", \"metadata\") takes " +
                     std::to_string(request.echo.size()) + " bytes, but may take " +
                     std::to_string(options_.max_unsent_bytes) + " (--max-unsent-bytes)."));
  }
  ResponseObject object{suffix, std::move(request.echo), std::move(request.tools), request.seals_thoughts, {}};
  if (request.turn) {
    object.keep = [store = responses_, tenant, id, turn = std::move(request.turn)](std::vector<ResponseItem> output,
                                                                                   std::string json) {
      store->finish(tenant, id, turn, std::move(output), std::move(json));
    };
  }
  Prepared prepared{std::move(request.chat), id};
  prepared.make_writer = [object = std::move(object)](ResponseInfo info, int, bool stream) mutable {
    return responses_writer(std::move(info), std::move(object), stream);
  };
  prepared.holds_answer = true;
  return generate(std::move(prepared), std::move(call));
}

HttpResponse Api::kept_response(const HttpRequest& request, const std::string& id) {
  if (query_value(request, "stream") == "true") {
    return error_response(unsupported_field("stream", "A response that is kept cannot be streamed again."));
  }
  const auto turn = responses_->find(tenant_of(request), id);
  return turn ? json_text(turn->json()) : not_kept(id);
}

HttpResponse Api::delete_response(const HttpRequest& request, const std::string& id) {
  if (!responses_->erase(tenant_of(request), id)) return not_kept(id);
  return json_text(Json({{"id", id}, {"object", "response"}, {"deleted", true}}).dump());
}

HttpResponse Api::response_input(const HttpRequest& request, const std::string& id) {
  const auto turn = responses_->find(tenant_of(request), id);
  if (!turn) return not_kept(id);
  const auto query = page_query(request, kPage, kMaxPage);
  if (const auto* error = std::get_if<ApiError>(&query)) return error_response(*error);
  std::vector<const ResponseItem*> items;
  for (const ResponseItem& item : turn->input()) items.push_back(&item);
  return page_response(page_of(std::move(items), std::get<PageQuery>(query)),
                       [](const ResponseItem& item) { return item_json(item, "completed"); });
}

HttpResponse Api::cancel_response(const HttpRequest& request, const std::string& id) {
  if (!responses_->find(tenant_of(request), id)) return not_kept(id);
  return error_response(
      http_error(400, "Only a response of the background can be cancelled, and there are none: close the connection."));
}

}  // namespace volley::serve
