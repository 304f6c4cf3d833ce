#include "serve/files/file_upload.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "serve/json/fields.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxPurpose = 64;
constexpr std::string_view kPurposes[] = {"batch", "vision", "user_data"};
constexpr size_t kMaxFilename = 255;

ApiError other_purpose() {
  return invalid_field("purpose", "\"purpose\" must be \"batch\", or of a picture \"vision\" or \"user_data\".");
}

}  // namespace

std::string file_json(const StoredFile& file) {
  return Json({{"id", file.id},
               {"object", "file"},
               {"bytes", file.bytes},
               {"created_at", file.created_at},
               {"expires_at", nullptr},
               {"filename", file.filename},
               {"purpose", file.purpose},
               {"status", "processed"},
               {"status_details", nullptr}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

FileUpload::FileUpload(std::shared_ptr<FileStore> store, std::string owner, std::string client,
                       const std::string& boundary)
    : store_(std::move(store)),
      owner_(std::move(owner)),
      client_(std::move(client)),
      reader_(boundary, {[this](const MultipartReader::Part& part) { return begin(part); },
                         [this](std::string_view bytes) { return data(bytes); }}) {}

bool FileUpload::feed(std::string_view bytes) {
  if (failure_) return false;
  failure_ = reader_.feed(bytes);
  if (failure_) file_.reset();
  return !failure_;
}

MultipartReader::Verdict FileUpload::begin(const MultipartReader::Part& part) {
  in_file_ = part.name == "file";
  if (in_file_) {
    if (file_) return invalid_field("file", "The field \"file\" is there twice.");
    filename_ = part.filename.value_or("");
    if (filename_.empty() || filename_.size() > kMaxFilename) {
      return invalid_field("file", "The field \"file\" must have a file name of 1 to 255 bytes.");
    }
    auto begun = store_->begin(owner_);
    if (auto* error = std::get_if<ApiError>(&begun)) return std::move(*error);
    file_ = std::get<0>(std::move(begun));
    return std::nullopt;
  }
  if (part.name != "purpose") {
    std::string name = part.name.substr(0, 64);
    name.resize(find_invalid_utf8(name).value_or(name.size()));  // no half of a character
    return unsupported_field(name,
                             "The field " + in_quotes(name) + " is not supported: send \"purpose\" and \"file\".");
  }
  if (purpose_) return invalid_field("purpose", "The field \"purpose\" is there twice.");
  purpose_.emplace();
  return std::nullopt;
}

MultipartReader::Verdict FileUpload::data(std::string_view bytes) {
  if (in_file_) return file_->append(bytes);
  purpose_->append(bytes.substr(0, kMaxPurpose));
  return purpose_->size() < kMaxPurpose ? std::nullopt : std::optional(other_purpose());
}

std::optional<ApiError> FileUpload::missing() const {
  if (failure_) return failure_;
  if (auto error = reader_.finish()) return error;
  if (!purpose_ || std::ranges::find(kPurposes, *purpose_) == std::end(kPurposes)) {
    return other_purpose();
  }
  if (!file_) return invalid_field("file", "The field \"file\" is missing.");
  return std::nullopt;
}

HttpResponse FileUpload::finish() {
  if (const auto error = missing()) return error_response(*error);
  StoredFile about;
  about.filename = filename_;
  about.purpose = *purpose_;
  about.client = client_;
  const auto kept = file_->keep(std::move(about));
  if (const auto* error = std::get_if<ApiError>(&kept)) return error_response(*error);
  return json_text(file_json(std::get<StoredFile>(kept)));
}

}  // namespace volley::serve
