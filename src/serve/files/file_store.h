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

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fair_space.h"
#include "base/file.h"
#include "serve/json/errors.h"

namespace volley::serve {

struct StoredFile {
  std::string id, owner, filename, purpose;
  int64_t bytes = 0;
  int64_t created_at = 0;   // seconds since 1970
  int64_t sequence = 0;     // grows with every file
  std::string client = {};  // HttpRequest::client of who made it
};

// Writes `text` to a file of this name, whole or not at all, and on the disk. kDataLoss.
Status write_whole(const std::string& path, const std::string& text);

class FileStore {
 public:
  struct Limits {
    size_t max_file_bytes = size_t{512} << 20;
    size_t max_total_bytes = size_t{16} << 30;  // results of batches that are not over included
    size_t max_files = 10000;                   // and as many batches
    size_t max_owner_bytes = 0;                 // of one owner, results included; 0: no other limit
  };
  // What a file takes at least of its owner's bytes: a disk gives it no less.
  static constexpr size_t kLeastBytes = 4096;

  // Makes the folder if there is none. kInvalidArgument: it cannot be used, or another server does.
  static Result<std::shared_ptr<FileStore>> open(const std::string& folder, Limits limits);

  const Limits& limits() const { return limits_; }
  // Several owners use it from now on: one may keep no more files, and no more bytes, than are left for the others.
  void share();
  size_t fair_share() const;  // FairSpace::Limits::share of what each owner keeps
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
    ApiResult<StoredFile> keep(StoredFile about);  // its filename and purpose. Once, last

   private:
    friend class FileStore;
    Writer(FileStore* store, std::string owner, std::string id, int fd)
        : store_(*store), owner_(std::move(owner)), id_(std::move(id)), fd_(fd) {}
    FileStore& store_;
    const std::string owner_, id_;
    const FileDescriptor fd_;
    int64_t bytes_ = 0;
    bool kept_ = false;
  };
  ApiResult<std::unique_ptr<Writer>> begin(std::string owner);

  // Moves a finished file in, under an id that its caller has noted. Does nothing if it is there already. The bytes
  // must have been reserved.
  Status adopt(const std::string& from, StoredFile about);

  std::optional<StoredFile> find(std::string_view owner, const std::string& id) const;
  // The oldest first; with `client` those alone that came from there.
  std::vector<StoredFile> list(std::string_view owner, std::string_view client = {}) const;
  ApiResult<OpenFile> content(const StoredFile& file) const;
  void erase(const StoredFile& file);

  using Room = FairSpace::Room;
  // Counts an owner's bytes, unless they would pass a limit.
  Room reserve(const std::string& owner, size_t bytes);
  // Counts what is there already, whatever the limit: for all, and for its owner, where that is known.
  void count(const std::optional<std::string>& owner, size_t bytes);
  void release(const std::string& owner, size_t bytes);

 private:
  FileStore(std::string folder, Limits limits, FileDescriptor lock);
  Status load();
  Status load_owners();
  Status note(const StoredFile& file) const;
  void add(StoredFile file);
  // own_bytes: what an owner's quota counts of `bytes`.
  Room reserve(const std::string& owner, size_t bytes, size_t own_bytes);
  void forget(const std::string& owner, size_t bytes);  // a file's place, bytes and quota
  StoredFile numbered(StoredFile file);

  const std::string folder_;
  const Limits limits_;
  const FileDescriptor lock_;
  std::string owner_space_;
  mutable std::mutex mutex_;                 // guards what follows
  std::map<std::string, StoredFile> files_;  // by id
  FairSpace places_;                         // of files, arriving ones too
  FairSpace bytes_;
  FairSpace quota_;  // at least kLeastBytes a file
  int64_t next_sequence_ = 1;
};

}  // namespace volley::serve
