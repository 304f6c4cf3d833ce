// Files of the Hugging Face hub, or of a server that speaks as it does, into the cache of its tools:
//   models--ORG--NAME/blobs/ETAG, snapshots/COMMIT/FILE (links to blobs), refs/main; .locks/models--ORG--NAME/ETAG.lock
// Whatever the server says is checked before it names a file here. Threads: one.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace volley::apps {

struct HubListing {
  std::string id;  // "ORG/NAME", the server's current name
  std::string commit;
  std::vector<std::string> files;  // relative paths without "..", sorted
};

struct HubFile {
  std::string name;
  std::string etag;  // the name of its blob
  int64_t bytes = 0;
  bool etag_is_sha256 = false;  // false: only the size is checked
};

class Hub {
 public:
  // `token`: a secret for this endpoint alone; may be empty. Redirects to other hosts go without it.
  Hub(std::string endpoint, std::string token);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // Lists the revision main of `name`. kNotFound, kUnavailable (no network), kInvalidArgument (no access) and kDataLoss
  // (a senseless answer) have a sentence that says what to do.
  Result<HubListing> list(const std::string& name);
  Result<HubFile> describe(const HubListing& listing, const std::string& file);

  // Downloads the file to `blob`, unless it is there. Bytes go to blob + ".incomplete", which a later call continues.
  // Holds `lock`, a file, meanwhile, and calls `waits` before it waits for another process. `on_bytes`: gets the file's
  // bytes so far.
  Status fetch(const HubListing& listing, const HubFile& file, const std::string& blob, const std::string& lock,
               const std::function<void()>& waits, const std::function<void(int64_t)>& on_bytes);

 private:
  struct Transfer;
  class Digest;

  // Follows redirects. A HEAD stops when the server has described the file. `from`: the first wanted byte.
  void ask(std::string url, bool head, int64_t from, Transfer* transfer);
  // Appends the file's missing bytes to `fd`, and feeds all bytes to `digest`.
  Status complete(const HubListing& listing, const HubFile& file, int fd, Digest* digest,
                  const std::function<void(int64_t)>& on_bytes);
  std::string url_of(const HubListing& listing, const std::string& file) const;
  // Explains why there is no file.
  Error refusal(const std::string& name, const Transfer& transfer) const;

  const std::string endpoint_, token_;
  void* easy_;  // libcurl's handle, which keeps its connections
};

// Whether a server may use this name: a relative path of plain parts.
bool is_plain_path(const std::string& path);

}  // namespace volley::apps
