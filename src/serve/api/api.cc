#include "serve/api/api.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "serve/api/generation_plan.h"
#include "serve/api/info_endpoints.h"
#include "serve/batches/batch_line.h"
#include "serve/events/cache_event_publisher.h"
#include "serve/http/log_sink.h"
#include "serve/http/random_id.h"
#include "serve/json/json_text.h"
#include "serve/messages/messages_writer.h"
#include "serve/web/page.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

// A browser may send any address JSON without asking, if it has type text or none. Such a request is refused here.
bool is_json(const HttpRequest& request) {
  std::string type = request.content_type.substr(0, request.content_type.find(';'));
  type.erase(std::remove(type.begin(), type.end(), ' '), type.end());
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type == "application/json" || (type.empty() && request.origin.empty());
}

// A browser sends forms to any address without asking. Only this server's pages and allowed ones may use them.
std::optional<HttpResponse> refuse_form(const HttpRequest& request, const Cors& cors) {
  const bool own = request.origin == "http://" + request.host || request.origin == "https://" + request.host;
  if (!request.origin.empty() && !own && cors.headers(request).empty()) {
    return error_response(http_error(403, "Pages of " + request.origin.substr(0, 200) + " may not upload files here."));
  }
  if (MultipartReader::boundary_of(request.content_type)) return std::nullopt;
  return error_response(http_error(415,
                                   "The body must be a form with a file: send \"Content-Type: "
                                   "multipart/form-data\" with a boundary."));
}

// Returns nothing for a body that is sent uncompressed.
std::optional<HttpResponse> refuse_coding(const std::string& content_encoding) {
  std::string codings = content_encoding;
  std::erase_if(codings, [](char c) { return c == ' ' || c == '\t'; });
  std::transform(codings.begin(), codings.end(), codings.begin(), [](unsigned char c) { return std::tolower(c); });
  for (std::string_view rest = codings; !rest.empty();) {
    const std::string_view coding = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), coding.size() + 1));
    if (coding.empty() || coding == "identity") continue;
    HttpResponse response = error_response(
        http_error(415, "The body is sent with \"Content-Encoding: " + content_encoding.substr(0, 100) +
                            "\", which this server does not decode: send it as it is, without that header."));
    response.headers.emplace_back("Accept-Encoding", "identity");
    return response;
  }
  return std::nullopt;
}

HttpResponse unauthorized(bool sent_one) {
  ApiError error = http_error(401, sent_one ? "The API key is not one of this server's."
                                            : "This server wants an API key: send \"Authorization: Bearer KEY\".");
  error.code = "invalid_api_key";
  HttpResponse response = error_response(error);
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

// All choices of a request that have a grammar have the same one.
bool compiles(const Engine& engine, const std::vector<GenerateRequest>& choices) {
  const auto found = std::ranges::find_if(choices, [](const auto& choice) { return choice.grammar.has_value(); });
  return found != choices.end() && engine.compiles(*found->grammar);
}

// A request's time starts when it has arrived, not when the engine gets it.
void take_off(std::chrono::steady_clock::duration waited, GenerateRequest& choice) {
  if (choice.timeout_s <= 0) return;
  constexpr double kOver = 1e-9;  // 0 would mean no limit
  choice.timeout_s = std::max(choice.timeout_s - std::chrono::duration<double>(waited).count(), kOver);
}

HttpResponse loading(const char* sentence = "The model is still being loaded. Try again in a moment.") {
  ApiError error = http_error(503, sentence);
  error.code = "loading";
  return error_response(error);
}

HttpResponse page(const HttpRequest& request) {
  const std::string_view target = request.target;
  const std::string_view path = target.substr(0, target.find_first_of("?#"));
  const PageFile* file = find_page_file(path);
  if (!file) return error_response(path_not_found(request.method, path.substr(0, 200)));
  const bool gzip = !file->gzip.empty() && accepts_gzip(request.accept_encoding);
  if (!gzip && file->bytes.empty()) {
    return error_response(http_error(406, "This file is sent compressed alone: send \"Accept-Encoding: gzip\"."));
  }
  HttpResponse response;
  for (const auto& [name, value] : page_headers()) response.headers.emplace_back(name, value);
  const std::string etag = "\"" + std::string(file->version) + (gzip ? "-gzip\"" : "\"");
  response.headers.emplace_back("ETag", etag);
  if (request.if_none_match.find(etag) != std::string::npos) {
    response.status = 304;
    response.content_type = "";
    return response;
  }
  if (gzip) response.headers.emplace_back("Content-Encoding", "gzip");
  response.content_type = file->content_type;
  response.body = gzip ? file->gzip : file->bytes;
  return response;
}

}  // namespace

Api::Api(const ServerOptions& options)
    : options_(options),
      keys_(options.api_keys),
      cors_(options.cors_origins),
      log_(options.log, options.log_format),
      metrics_(std::make_shared<Metrics>(options.served_model_names.front())),
      started_(std::time(nullptr)),
      responses_(std::make_shared<ResponseStore>(options.max_stored_responses, options.max_stored_bytes)) {
  if (!options_.file_store) return;
  for (size_t key = 0; key < std::max<size_t>(options_.api_keys.size(), 1); ++key) owners_[owner_of_key(key)] = key;
  if (owners_.size() > 1) options_.file_store->share();
  batches_ = std::make_unique<BatchService>(*options_.file_store, log_);
}

Api::Api(Engine& engine, const ServerOptions& options) : Api(options) {
  if (const Status attached = attach(engine); !attached.ok()) throw std::invalid_argument(attached.error().message);
}

Status Api::attach(Engine& engine) {
  VOLLEY_ASSIGN(const OutputFormat format,
                find_output_format(engine, options_.tool_call_parser, options_.reasoning_parser));
  serving_owner_.reset(new Serving{engine, format});
  serving_ = serving_owner_.get();
  if (batches_) start_batches(engine);
  return {};
}

Wait Api::wait_of(const HttpRequest& request) const {
  const auto target = admit(request);  // refusing is quick
  const Route* found = std::get_if<Route>(&target);
  return found ? found->row->wait : Wait::kNothing;
}

Api::Reply Api::handle(const HttpRequest& request, std::function<void()> wake, const std::atomic<bool>* cancelled,
                       Rest* rest) {
  return guarded(request, [&] { return dispatch({request, std::move(wake), cancelled, nullptr, rest}); });
}

Api::Reply Api::guarded(const HttpRequest& request, const std::function<Reply()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    log_.error(for_log(request.method, 32) + " " + std::string(path_label(request)) + " failed: " + error.what());
    return error_response(http_error(500, "The server failed on this request; its log says why."));
  }
}

std::variant<Route, HttpResponse> Api::admit(const HttpRequest& request) const {
  if (auto preflight = cors_.preflight(request)) return std::move(*preflight);
  auto target = route(request);
  if (std::holds_alternative<HttpResponse>(target)) return target;
  const Route& found = std::get<Route>(target);
  if (found.row->needs_key && !key_of(request)) {
    return unauthorized(!request.authorization.empty() || !request.api_key.empty());
  }
  if (found.row->needs_engine && !serving_.load()) return loading();
  if (found.row->method == "POST") {
    if (auto refused = refuse_coding(request.content_encoding)) return std::move(*refused);
  }
  if (found.row->endpoint == Endpoint::kUploadFile) {
    if (auto refused = refuse_form(request, cors_)) return std::move(*refused);
  } else if (found.row->method == "POST" && !is_json(request)) {
    return error_response(http_error(415, "The body must be JSON: send \"Content-Type: application/json\"."));
  }
  return target;
}

Api::Reply Api::dispatch(Call call) {
  auto target = call.line_owner ? route(call.request) : admit(call.request);
  if (auto* response = std::get_if<HttpResponse>(&target)) return std::move(*response);
  return answer(std::get<Route>(target), std::move(call));
}

Api::Reply Api::answer(const Route& found, Call call) {
  const Serving* serving = serving_;
  HttpResponse response;
  switch (found.row->endpoint) {
    case Endpoint::kChatCompletions:
      return complete(ApiKind::kChat, std::move(call));
    case Endpoint::kCompletions:
      return complete(ApiKind::kCompletion, std::move(call));
    case Endpoint::kResponses:
      return respond(std::move(call));
    case Endpoint::kGetResponse:
      return kept_response(call.request, found.rest);
    case Endpoint::kDeleteResponse:
      return delete_response(call.request, found.rest);
    case Endpoint::kResponseInput:
      return response_input(call.request, found.rest);
    case Endpoint::kCancelResponse:
      return cancel_response(call.request, found.rest);
    case Endpoint::kUploadFile:
    case Endpoint::kListFiles:
    case Endpoint::kGetFile:
    case Endpoint::kDeleteFile:
    case Endpoint::kFileContent:
    case Endpoint::kCreateBatch:
    case Endpoint::kListBatches:
    case Endpoint::kGetBatch:
    case Endpoint::kCancelBatch:
      return answer_files(found, call.request);
    case Endpoint::kMessages:
      return message(std::move(call));
    case Endpoint::kCountMessageTokens:
      return count_message_tokens(std::move(call));
    case Endpoint::kTokenize:
      return tokenize(serving->engine, serving->format, call.request.body, rules(), call.cancelled, read_named(call));
    case Endpoint::kDetokenize:
      return detokenize(serving->engine, call.request.body, rules());
    case Endpoint::kModels:
      return models();
    case Endpoint::kModel:
      return model(found.rest);
    case Endpoint::kHealth:
      return readiness("ok");
    case Endpoint::kReady:
      return readiness("ready");
    case Endpoint::kVersion:
      return json_response({{"version", options_.version}});
    case Endpoint::kMetrics:
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = metrics_text();
      return response;
    case Endpoint::kLoad:
      return json_response(load_json(metrics_->load()));
    case Endpoint::kReplicaLoads:
      return json_response(replica_loads_json(metrics_->load(), serving->engine.stats()));
    case Endpoint::kServerInfo:
      return json_response(server_info_json(options_, serving->engine.info()));
    case Endpoint::kModelInfo:
      return json_response(model_info_json(options_, serving->engine.info()));
    case Endpoint::kOpenApi:
      response.body = openapi_document();
      return response;
    case Endpoint::kPage:
      return page(call.request);
  }
  return error_response(http_error(500, "The endpoint has no handler."));
}

RequestRules Api::rules() const {
  return {serving_.load()->engine.info(), options_.served_model_names, options_.max_n,
          options_.max_choices,           options_.max_response_bytes, options_.refuse_hosted_tools,
          options_.open_json_objects};
}

HttpResponse Api::models() const {
  const Serving* serving = serving_;
  Json data = Json::array();
  for (const std::string& name : options_.served_model_names) {
    data.push_back(model_card(name, started_, serving->engine.info(), serving->format, options_.chat_sampling));
  }
  return json_response({{"object", "list"}, {"data", std::move(data)}});
}

HttpResponse Api::model(const std::string& name) const {
  const Serving* serving = serving_;
  const auto& names = options_.served_model_names;
  // The path has lost the leading slashes of a name like "/models/a".
  const auto is_meant = [&](const std::string& served) {
    return single_slashes("/" + served) == single_slashes("/" + name);
  };
  const auto found = std::find_if(names.begin(), names.end(), is_meant);
  if (found == names.end()) return error_response(model_not_found(name));
  return json_response(model_card(*found, started_, serving->engine.info(), serving->format, options_.chat_sampling));
}

std::string Api::metrics_text() const {
  const Engine& engine = serving_.load()->engine;
  OtherCounts others;
  if (options_.log_sink) others.dropped_log_lines = options_.log_sink->dropped();
  if (options_.cache_events) others.cache_events = options_.cache_events->counts();
  return metrics_->text(engine.info(), engine.stats(), others);
}

// A draining server answers every request before this point.
HttpResponse Api::readiness(const char* status) const {
  const Serving* serving = serving_;
  if (!serving) return loading();
  if (serving->engine.stats().devices_restarting >= serving->engine.info().data_parallel_size) {
    return loading("The device has failed, and the model is loaded again: requests wait. Try again in a moment.");
  }
  return json_response({{"status", status}});
}

Api::Reply Api::complete(ApiKind kind, Call call) {
  auto parsed = kind == ApiKind::kChat ? parse_chat_request(call.request.body, rules())
                                       : parse_completion_request(call.request.body, rules());
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error_response(*error);
  const char* id_kind = kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-";
  return generate({std::get<ApiRequest>(std::move(parsed)), id_kind + random_id()}, std::move(call));
}

// Logs the hosted tools that were left out, and lists their types for a header.
std::string Api::name_ignored_tools(const ApiRequest& request) {
  std::string list;
  for (const std::string& type : request.ignored_tools) {
    warn_once("leaving out tools of type \"" + type + "\", which cannot run here");
    list.append(list.empty() ? "" : ", ").append(type);
  }
  return list;
}

Api::Reply Api::generate(Prepared prepared, Call call) {
  const Serving& serving = *serving_.load();
  for (const std::string& field : prepared.request.ignored_fields) {
    // Written as JSON, because a name may hold line ends.
    warn_once("ignoring the request field " +
              Json(field.substr(0, 100)).dump(-1, ' ', true, Json::error_handler_t::replace));
  }
  const OutputFormat& format = serving.format;
  std::vector<std::string> notes(prepared.request.notes.begin(), prepared.request.notes.end());
  const std::string ignored_tools = name_ignored_tools(prepared.request);
  if (!prepared.request.tools.tools.empty() && !format.tool_warning.empty()) warn_once(format.tool_warning);
  const PlanContext context{serving.engine, format,           options_.max_response_bytes,
                            call.cancelled, read_named(call), space_of(call)};
  auto planned = plan_generation(context, std::move(prepared.request), std::move(prepared.id));
  if (const auto* error = std::get_if<ApiError>(&planned)) return error_response(*error);
  auto& plan = std::get<Generation::Plan>(planned);
  plan.max_unsent_bytes = options_.max_unsent_bytes;
  plan.make_writer = std::move(prepared.make_writer);
  plan.holds_answer = prepared.holds_answer;
  if (!ignored_tools.empty()) plan.headers.emplace_back("X-Volley-Ignored-Tools", ignored_tools);
  if (!call.rest || !compiles(serving.engine, plan.choices)) {
    return start(std::move(plan), std::move(notes), std::move(call));
  }
  Rest& rest = *std::exchange(call.rest, nullptr);
  rest = [this, call = std::move(call), plan = std::make_shared<Generation::Plan>(std::move(plan)),
          notes = std::move(notes)] {
    return guarded(call.request, [&] { return start(std::move(*plan), notes, call); });
  };
  return HttpResponse{};
}

Api::Reply Api::start(Generation::Plan plan, std::vector<std::string> notes, Call call) {
  Engine& engine = serving_.load()->engine;
  set_share(call, plan);
  if (const auto error = check_grammar(engine, plan, notes)) return error_response(*error);
  add_notes(notes, plan);
  log_prompts(call.request, plan);
  auto started = Generation::start(engine, metrics_, std::move(plan), std::move(call.wake));
  if (const auto* error = std::get_if<ApiError>(&started)) return error_response(*error);
  return std::get<0>(std::move(started));
}

// `notes` gets what is read otherwise than the request's grammar says.
std::optional<ApiError> Api::check_grammar(const Engine& engine, const Generation::Plan& plan,
                                           std::vector<std::string>& notes) {
  const auto choice = std::ranges::find_if(plan.choices, [](const auto& one) { return one.grammar.has_value(); });
  if (choice == plan.choices.end()) return std::nullopt;
  const auto said = engine.check_grammar(*choice);
  if (!said.ok()) return api_error(said.error(), plan.grammar_field);
  notes.insert(notes.end(), said->begin(), said->end());
  return std::nullopt;
}

// Sends notes to the client and to the log.
void Api::add_notes(const std::vector<std::string>& notes, Generation::Plan& plan) {
  constexpr size_t kMaxHeader = 1024;
  std::string header;
  for (const std::string& note : notes) {
    const std::string line = Json(note).dump(-1, ' ', true, Json::error_handler_t::replace);  // no line ends, ASCII
    warn_once("a request: " + line);
    header += (header.empty() ? "" : ", ") + line;
  }
  if (!header.empty()) plan.headers.emplace_back("X-Volley-Notes", header.substr(0, kMaxHeader));
}

// Either header may have the key; Anthropic's clients send the second.
std::optional<size_t> Api::key_of(const HttpRequest& request) const {
  const auto key = keys_.find(request.authorization);
  return key || request.api_key.empty() ? key : keys_.find("Bearer " + request.api_key);
}

// Returns the key's number, because a key must appear nowhere.
std::string Api::tenant_of(const HttpRequest& request) const {
  return "key " + std::to_string(key_of(request).value_or(0));
}

std::string Api::tenant_of(const Call& call) const {
  if (!call.line_owner) return tenant_of(call.request);
  const auto key = owners_.find(*call.line_owner);
  return "key " + std::to_string(key == owners_.end() ? 0 : key->second);
}

// A tenant of the engine is an API key, or a client on a server without keys. A single key has no name, because no
// other tenant needs a free part of the queue.
std::string Api::sharer_of(const Call& call) const {
  if (options_.api_keys.empty()) return call.request.client;
  return options_.api_keys.size() > 1 ? tenant_of(call) : "";
}

// Comes before the client's own salt, so that no client can name another key's space.
std::string Api::space_of(const Call& call) const {
  return options_.prefix_cache_per_key ? sharer_of(call) + "\n" : "";
}

// Sets how the engine shares itself. A group is an HTTP request.
void Api::set_share(const Call& call, Generation::Plan& plan) {
  const std::string tenant = sharer_of(call), space = space_of(call);
  const uint64_t group = next_group_.fetch_add(1);
  for (GenerateRequest& choice : plan.choices) {
    choice.tenant = tenant;
    choice.cache_namespace.insert(0, space);
    choice.group = group;
    choice.priority = queue_priority(choice.priority, call.line_owner != nullptr);
    choice.compiles_at_once = call.line_owner != nullptr;  // a batch has other lines to answer
    if (call.request.arrived) take_off(std::chrono::steady_clock::now() - *call.request.arrived, choice);
  }
}

// Logs the model's input: a chat as its template rendered it.
void Api::log_prompts(const HttpRequest& request, const Generation::Plan& plan) const {
  if (!options_.log_prompts) return;
  for (size_t i = 0; i < plan.choices.size(); i += static_cast<size_t>(plan.info.n)) {
    log_.prompt(request.request_id, serving_.load()->engine.decode(plan.choices[i].prompt, false));
  }
}

std::string Api::request_id(const std::string& sent) {
  constexpr size_t kMaxId = 128;
  const auto fits = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == ':'; };
  if (!sent.empty() && sent.size() <= kMaxId && std::all_of(sent.begin(), sent.end(), fits)) return sent;
  return "req-" + random_id();
}

HttpHeaders Api::common_headers(const HttpRequest& request) const {
  HttpHeaders headers = cors_.headers(request);
  if (request.request_id.empty()) return headers;
  headers.emplace_back("X-Request-Id", request.request_id);
  // The name that Anthropic's clients read.
  if (is_messages_path(request.target)) headers.emplace_back("Request-Id", request.request_id);
  return headers;
}

// Logs each message once, so that a field in every request does not fill the log, and only a bounded number.
void Api::warn_once(const std::string& message) {
  constexpr size_t kMaxMessages = 256;
  {
    const std::lock_guard lock(warned_mutex_);
    if (warned_.size() >= kMaxMessages || !warned_.insert(message).second) return;
  }
  log_.warn(message);
}

}  // namespace volley::serve
