// Stores the files of /v1/files: a folder of files with owners, bounded by bytes and number, that outlives the process.
//
//   FOLDER/lock          held by the one server that uses the folder
//   FOLDER/owners        a random name space, so that an owner's name tells nothing about its key
//   FOLDER/files/ID      the bytes; ID.json describes them; ID.part is still arriving
//   FOLDER/batches/      see batch_service.h
//
// A file exists once its ID.json does; the next start removes files that a crash left without one. Any thread.
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
  std::string client = {};  // HttpRequest::client of its creator
};

// Writes a file's `text` whole or not at all, and syncs it. kDataLoss.
Status write_whole(const std::string& path, const std::string& text);

class FileStore {
 public:
  struct Limits {
    size_t max_file_bytes = size_t{512} << 20;
    size_t max_total_bytes = size_t{16} << 30;  // including results of unfinished batches
    size_t max_files = 10000;                   // also bounds batches
    size_t max_owner_bytes = 0;                 // one owner's bytes, including results; 0: no further limit
  };
  // The least that a file counts for its owner, because a disk gives it no less.
  static constexpr size_t kLeastBytes = 4096;

  // Makes the folder if it is missing. kInvalidArgument: it cannot be used, or another server uses it.
  static Result<std::shared_ptr<FileStore>> open(const std::string& folder, Limits limits);

  const Limits& limits() const { return limits_; }
  // Prepares for several owners: each may then keep no more files and bytes than it leaves for the others.
  void share();
  size_t fair_share() const;  // FairSpace::Limits::share for each owner
  std::string batch_folder() const { return folder_ + "/batches"; }
  // The path of a file's bytes.
  std::string path(const std::string& id) const { return folder_ + "/files/" + id; }
  // The owner that a key stands for, the same after a restart; "" without a key.
  std::string owner_of(std::string_view key) const;

  // Receives bytes. Its destructor removes what was not kept.
  class Writer {
   public:
    ~Writer();
    Writer(const Writer&) = delete;
    std::optional<ApiError> append(std::string_view bytes);
    ApiResult<StoredFile> keep(StoredFile about);  // sets filename and purpose. Call once, last

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

  // Moves a finished file in, under an id that its caller has noted. Does nothing if the file is already there. Its
  // bytes must be reserved.
  Status adopt(const std::string& from, StoredFile about);

  std::optional<StoredFile> find(std::string_view owner, const std::string& id) const;
  // The oldest first; with `client`, only those from there.
  std::vector<StoredFile> list(std::string_view owner, std::string_view client = {}) const;
  ApiResult<OpenFile> content(const StoredFile& file) const;
  void erase(const StoredFile& file);

  using Room = FairSpace::Room;
  // Counts an owner's bytes, unless they would pass a limit.
  Room reserve(const std::string& owner, size_t bytes);
  // Counts existing bytes whatever the limit, for the total, and for the owner if known.
  void count(const std::optional<std::string>& owner, size_t bytes);
  void release(const std::string& owner, size_t bytes);

 private:
  FileStore(std::string folder, Limits limits, FileDescriptor lock);
  Status load();
  Status load_owners();
  Status note(const StoredFile& file) const;
  void add(StoredFile file);
  // own_bytes: bytes for the owner's quota.
  Room reserve(const std::string& owner, size_t bytes, size_t own_bytes);
  void forget(const std::string& owner, size_t bytes);  // releases a file's place, bytes and quota
  StoredFile numbered(StoredFile file);

  const std::string folder_;
  const Limits limits_;
  const FileDescriptor lock_;
  std::string owner_space_;
  mutable std::mutex mutex_;                 // guards the members below
  std::map<std::string, StoredFile> files_;  // by id
  FairSpace places_;                         // including files that still arrive
  FairSpace bytes_;
  FairSpace quota_;  // at least kLeastBytes a file
  int64_t next_sequence_ = 1;
};

}  // namespace volley::serve
