// POST /v1/files: receives a file from a connection into the store. One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/files/file_store.h"
#include "serve/files/multipart.h"

namespace volley::serve {

class FileUpload {
 public:
  // Bytes go to the disk in pieces of about this size.
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  // `client`: see StoredFile.
  FileUpload(std::shared_ptr<FileStore> store, std::string owner, std::string client, const std::string& boundary);

  // Writes to the disk, which may take time. False: it has failed, and further bytes are dropped.
  bool feed(std::string_view bytes);
  // REQUIRES: feed() was false.
  HttpResponse failure() const { return error_response(*failure_); }
  // Ends the body and returns the answer. Call once, last.
  HttpResponse finish();

 private:
  MultipartReader::Verdict begin(const MultipartReader::Part& part);
  MultipartReader::Verdict data(std::string_view bytes);
  std::optional<ApiError> missing() const;

  const std::shared_ptr<FileStore> store_;
  const std::string owner_, client_;
  MultipartReader reader_;
  std::unique_ptr<FileStore::Writer> file_;  // set when its part begins
  std::string filename_;
  std::optional<std::string> purpose_;
  bool in_file_ = false;
  std::optional<ApiError> failure_;
};

std::string file_json(const StoredFile& file);

}  // namespace volley::serve
