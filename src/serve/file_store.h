// What /v1/files keeps: a folder of files with their owners, bounded by bytes and number, that outlives the process.
//
//   FOLDER/lock          held by the one server that uses the folder
//   FOLDER/owners        a random name space, so that an owner's name tells nothing about its key
//   FOLDER/files/ID      the bytes; ID.json says what they are; ID.part has not arrived yet
//   FOLDER/batches/      see batch_service.h
//
// A file is there once its ID.json is: what a crash leaves without one goes at the next start. Any thread.
#pragma once

#include <volley/result.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "serve/errors.h"

namespace volley::serve {

struct StoredFile {
  std::string id, owner, filename, purpose;
  int64_t bytes = 0;
  int64_t created_at = 0;  // seconds since 1970
  int64_t sequence = 0;    // grows with every file
};

// Writes `text` to a file of this name, whole or not at all, and on the disk. kDataLoss.
Status write_whole(const std::string& path, const std::string& text);

class FileStore {
 public:
  struct Limits {
    size_t max_file_bytes = size_t{512} << 20;
    size_t max_total_bytes = size_t{16} << 30;  // results of batches that are not over included
    size_t max_files = 10000;                   // and as many batches
  };

  // Makes the folder if there is none. kInvalidArgument: it cannot be used, or another server does.
  static Result<std::shared_ptr<FileStore>> open(const std::string& folder, Limits limits);

  const Limits& limits() const { return limits_; }
  std::string batch_folder() const { return folder_ + "/batches"; }
  // Where the bytes of a file are.
  std::string path(const std::string& id) const { return folder_ + "/files/" + id; }
  // The owner that a key stands for, the same after a restart. Without a key: "".
  std::string owner_of(std::string_view key) const;

  // Bytes that arrive. What is not kept goes with it.
  class Writer {
   public:
    ~Writer();
    Writer(const Writer&) = delete;
    std::optional<ApiError> append(std::string_view bytes);
    ApiResult<StoredFile> keep(StoredFile about);  // its owner, filename and purpose. Once, last

   private:
    friend class FileStore;
    Writer(FileStore* store, std::string id, int fd) : store_(*store), id_(std::move(id)), fd_(fd) {}
    FileStore& store_;
    const std::string id_;
    const FileDescriptor fd_;
    int64_t bytes_ = 0;
    bool kept_ = false;
  };
  ApiResult<std::unique_ptr<Writer>> begin();

  // Moves a finished file in, under an id that its caller has noted. Does nothing if it is there already. The bytes
  // must have been reserved.
  Status adopt(const std::string& from, StoredFile about);

  std::optional<StoredFile> find(std::string_view owner, const std::string& id) const;
  std::vector<StoredFile> list(std::string_view owner) const;  // the oldest first
  ApiResult<OpenFile> content(const StoredFile& file) const;
  void erase(const StoredFile& file);

  // Counts bytes against the limit. False: they would pass it.
  bool reserve(size_t bytes);
  void count(size_t bytes) { total_bytes_ += bytes; }  // of what is there already, whatever the limit
  void release(size_t bytes) { total_bytes_ -= bytes; }
  // A name that nothing else has.
  static std::string new_id(std::string_view kind);

 private:
  FileStore(std::string folder, Limits limits, FileDescriptor lock)
      : folder_(std::move(folder)), limits_(limits), lock_(std::move(lock)) {}
  Status load();
  Status load_owners();
  Status note(const StoredFile& file) const;
  void add(StoredFile file);
  StoredFile numbered(StoredFile file);

  const std::string folder_;
  const Limits limits_;
  const FileDescriptor lock_;
  std::string owner_space_;
  std::atomic<size_t> total_bytes_{0};
  mutable std::mutex mutex_;
  std::map<std::string, StoredFile> files_;  // guarded by mutex_; by id
  size_t arriving_ = 0;                      // guarded by mutex_
  int64_t next_sequence_ = 1;                // guarded by mutex_
};

}  // namespace volley::serve
