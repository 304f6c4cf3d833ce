// POST /v1/responses and what is asked of the responses that are kept.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api.h"
#include "serve/json_text.h"
#include "serve/responses_request.h"
#include "serve/responses_writer.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPage = 20;  // items of a list, unless a client asks for another number
constexpr size_t kMaxPage = 100;

HttpResponse json_text(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

HttpResponse not_kept(const std::string& id) {
  ApiError error = http_error(404, "The response " + json_quote(id.substr(0, 100)) +
                                       " is not kept here: it was deleted, made with \"store\": false, or is too old.");
  error.code = "not_found";
  return error_response(error);
}

}  // namespace

Api::Reply Api::respond(Call call) {
  const std::string suffix = new_id();
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
  // A stream has it three times.
  if (request.echo.size() > options_.max_unsent_bytes) {
    return error_response(invalid_field(
        "tools", "What the answer repeats of the request (\"tools\", \"instructions\", \"text\", \"metadata\") takes " +
                     std::to_string(request.echo.size()) + " bytes, but may take " +
                     std::to_string(options_.max_unsent_bytes) + " (--max-unsent-bytes)."));
  }
  ResponseObject object{suffix, std::move(request.echo), {}};
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
  prepared.field_names = responses_field_names();
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

// The newest first unless "order" is "asc", a page behind the item that "after" names.
HttpResponse Api::response_input(const HttpRequest& request, const std::string& id) {
  const auto turn = responses_->find(tenant_of(request), id);
  if (!turn) return not_kept(id);
  std::vector<const ResponseItem*> items;
  for (const ResponseItem& item : turn->input()) items.push_back(&item);
  if (query_value(request, "order") != "asc") std::reverse(items.begin(), items.end());
  auto begin = items.begin();
  if (const std::string after = query_value(request, "after"); !after.empty()) {
    begin = std::find_if(begin, items.end(), [&](const ResponseItem* item) { return item->id == after; });
    if (begin == items.end())
      return error_response(invalid_field("after", "\"after\" names no item of this response."));
    ++begin;
  }
  size_t limit = kPage;
  if (const std::string text = query_value(request, "limit"); !text.empty()) {
    const bool digits =
        text.size() <= 3 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    limit = digits ? std::stoul(text) : 0;
    if (limit < 1 || limit > kMaxPage) {
      return error_response(invalid_field("limit", "\"limit\" must be an integer from 1 to 100."));
    }
  }
  const auto end =
      begin + static_cast<std::ptrdiff_t>(std::min<size_t>(limit, static_cast<size_t>(items.end() - begin)));
  std::string data;
  for (auto item = begin; item != end; ++item) {
    data.append(data.empty() ? "" : ",").append(item_json(**item, "completed"));
  }
  const auto id_of = [&](bool any, auto item) { return any ? json_quote((*item)->id) : std::string("null"); };
  return json_text(R"({"object":"list","data":[)" + data + R"(],"first_id":)" + id_of(begin != end, begin) +
                   R"(,"last_id":)" + id_of(begin != end, begin == end ? begin : end - 1) + R"(,"has_more":)" +
                   (end != items.end() ? "true" : "false") + "}");
}

HttpResponse Api::cancel_response(const HttpRequest& request, const std::string& id) {
  if (!responses_->find(tenant_of(request), id)) return not_kept(id);
  return error_response(
      http_error(400, "Only a response of the background can be cancelled, and there are none: close the connection."));
}

}  // namespace volley::serve
