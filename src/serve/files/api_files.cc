// /v1/files and /v1/batches.
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/api.h"
#include "serve/json/fields.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFormBytes = size_t{64} << 10;  // a form's bytes beside its file: headers and boundaries of parts

ApiError no_store() {
  ApiError error =
      http_error(400,
                 "This server keeps no files and runs no batches: whoever starts it must give it a folder for "
                 "them, with --files-dir.");
  error.code = "unsupported";
  return error;
}

HttpResponse not_found(std::string_view what, const std::string& id) {
  ApiError error = http_error(404, "There is no " + std::string(what) + " " + in_quotes(id.substr(0, 100)) + ".");
  error.code = "not_found";
  return error_response(error);
}

HttpResponse batch_response(const ApiResult<Batch>& batch) {
  if (const auto* error = std::get_if<ApiError>(&batch)) return error_response(*error);
  return json_text(batch_json(std::get<Batch>(batch)));
}

}  // namespace

std::string Api::owner_of_key(size_t key) const {
  return options_.api_keys.empty() ? "" : options_.file_store->owner_of(options_.api_keys[key]);
}

std::string Api::owner_of(const HttpRequest& request) const {
  return owner_of_key(key_of(request).value_or(0));
}

ReadNamed Api::read_named(const Call& call) const {
  return [this, &request = call.request, line_owner = call.line_owner, cancelled = call.cancelled](
             const ChatPicture& picture, size_t most) -> Result<std::string> {
    if (!picture.is_file && options_.fetch_picture) return options_.fetch_picture(picture.url, most, cancelled);
    if (!picture.is_file) return invalid_argument(kNotFetched);
    if (!options_.file_store) {
      return invalid_argument("this server keeps no files (--files-dir): send the picture's bytes, as a data: URL");
    }
    const auto found = options_.file_store->find(line_owner ? *line_owner : owner_of(request), picture.url);
    auto bytes =
        found ? read_file(options_.file_store->path(found->id), most) : Result<std::string>(invalid_argument(""));
    if (bytes.ok()) return bytes;
    // Another sentence than that of the disk, which names a path.
    const std::string name = in_quotes(picture.url.substr(0, 100));
    if (!found || bytes.error().code == ErrorCode::kNotFound) return invalid_argument("there is no file " + name);
    if (std::cmp_greater(found->bytes, most)) {
      return invalid_argument("the file " + name + " has more bytes than the request's pictures may have");
    }
    log_.error("A picture cannot be read: " + bytes.error().message);
    return data_loss("the file " + name + " cannot be read: the server's log says why");
  };
}

// Without keys all files have one owner. A list then shows a client only files from its own address: other names are
// known only to those who got them.
std::string_view Api::listed_client(const HttpRequest& request) const {
  return options_.api_keys.empty() ? std::string_view(request.client) : std::string_view();
}

void Api::start_batches(const Engine& engine) {
  BatchService::Options options;
  for (const auto& [owner, key] : owners_) options.owners.insert(owner);
  options.max_open_lines =
      options_.batch_concurrency > 0 ? options_.batch_concurrency : std::max(1, engine.info().max_num_seqs / 2);
  batches_->start(std::move(options), [this](const HttpRequest& request, const std::string& owner,
                                             std::function<void()> wake, const std::atomic<bool>* given_up) {
    return guarded(request, [&] { return dispatch({request, std::move(wake), given_up, &owner}); });
  });
}

bool Api::takes_upload(const HttpRequest& request) const {
  const auto target = admit(request);
  const Route* found = std::get_if<Route>(&target);
  return found && found->row->endpoint == Endpoint::kUploadFile;
}

size_t Api::max_upload_bytes() const {
  return options_.file_store ? options_.file_store->limits().max_file_bytes + kFormBytes : 0;
}

std::variant<std::unique_ptr<FileUpload>, HttpResponse> Api::begin_upload(const HttpRequest& request) {
  if (!options_.file_store) return error_response(no_store());
  return std::make_unique<FileUpload>(options_.file_store, owner_of(request), request.client,
                                      *MultipartReader::boundary_of(request.content_type));
}

HttpResponse Api::answer_files(const Route& found, const HttpRequest& request) {
  if (!options_.file_store) return error_response(no_store());
  const std::string owner = owner_of(request);
  const std::string& id = found.rest;
  const Endpoint endpoint = found.row->endpoint;
  switch (endpoint) {
    case Endpoint::kUploadFile: {  // for callers without a connection, which have it in memory
      auto begun = begin_upload(request);
      const auto& upload = std::get<0>(begun);
      upload->feed(request.body);
      return upload->finish();
    }
    case Endpoint::kListFiles:
      return list_files(request, owner);
    case Endpoint::kCreateBatch:
      return batch_response(batches_->create(owner, request));
    case Endpoint::kListBatches:
      return list_batches(request, owner);
    case Endpoint::kCancelBatch:
      return cancel_batch(owner, id);
    case Endpoint::kGetBatch: {
      const auto batch = batches_->find(owner, id);
      return batch ? json_text(batch_json(*batch)) : not_found("batch", id);
    }
    default:
      break;
  }
  const auto file = options_.file_store->find(owner, id);
  if (!file) return not_found("file", id);
  if (endpoint == Endpoint::kFileContent) return file_content(*file);
  if (endpoint == Endpoint::kDeleteFile) return delete_file(*file);
  return json_text(file_json(*file));
}

HttpResponse Api::list_files(const HttpRequest& request, const std::string& owner) const {
  const auto query = page_query(request, 10000, 10000);
  if (const auto* error = std::get_if<ApiError>(&query)) return error_response(*error);
  const std::string purpose = query_value(request, "purpose");
  const auto files = options_.file_store->list(owner, listed_client(request));
  std::vector<const StoredFile*> wanted;
  for (const StoredFile& file : files) {
    if (purpose.empty() || file.purpose == purpose) wanted.push_back(&file);
  }
  return page_response(page_of(std::move(wanted), std::get<PageQuery>(query)), file_json);
}

HttpResponse Api::list_batches(const HttpRequest& request, const std::string& owner) const {
  const auto query = page_query(request, 20, 100);
  if (const auto* error = std::get_if<ApiError>(&query)) return error_response(*error);
  return page_response(batches_->list(owner, std::get<PageQuery>(query), listed_client(request)), batch_json);
}

HttpResponse Api::file_content(const StoredFile& file) const {
  auto content = options_.file_store->content(file);
  if (const auto* error = std::get_if<ApiError>(&content)) return error_response(*error);
  HttpResponse response;
  response.content_type = "application/octet-stream";
  // Keeps browsers from showing a client's upload as a page.
  response.headers = {{"Content-Disposition", "attachment"}, {"X-Content-Type-Options", "nosniff"}};
  response.file = std::make_shared<const OpenFile>(std::get<OpenFile>(std::move(content)));
  return response;
}

HttpResponse Api::delete_file(const StoredFile& file) {
  if (const auto batch = batches_->erase(file)) {
    ApiError error = http_error(
        409, "The file is read by the batch " + in_quotes(*batch) + ": cancel it first, or wait for its end.");
    error.code = "conflict";
    return error_response(error);
  }
  return json_text(Json({{"id", file.id}, {"object", "file"}, {"deleted", true}}).dump());
}

HttpResponse Api::cancel_batch(const std::string& owner, const std::string& id) {
  const auto cancelled = batches_->cancel(owner, id);
  return cancelled ? batch_response(*cancelled) : not_found("batch", id);
}

}  // namespace volley::serve
