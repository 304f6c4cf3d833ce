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
  std::string id;  // "ORG/NAME", as the server calls it now
  std::string commit;
  std::vector<std::string> files;  // relative paths without "..", sorted
};

struct HubFile {
  std::string name;
  std::string etag;  // the name of its blob
  int64_t bytes = 0;
  bool etag_is_sha256 = false;  // else the size alone is checked
};

class Hub {
 public:
  // `token`: a secret for this endpoint alone, or empty. Redirects to other hosts go without it.
  Hub(std::string endpoint, std::string token);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // The revision main of `name`. kNotFound, kUnavailable (no network), kInvalidArgument (no right to it), kDataLoss (an
  // answer that makes no sense): a sentence that says what to do.
  Result<HubListing> list(const std::string& name);
  Result<HubFile> describe(const HubListing& listing, const std::string& file);

  // Makes `blob` of the file, unless it is there. What arrives goes to blob + ".incomplete", from where a later call
  // goes on. While it runs it holds `lock`, a file; `waits` is called before it waits for another process. `on_bytes`:
  // how many bytes of the file there are.
  Status fetch(const HubListing& listing, const HubFile& file, const std::string& blob, const std::string& lock,
               const std::function<void()>& waits, const std::function<void(int64_t)>& on_bytes);

 private:
  struct Transfer;
  class Digest;

  // Follows redirects; a HEAD only until the server has said what the file is. `from`: the first byte that is wanted.
  void ask(std::string url, bool head, int64_t from, Transfer* transfer);
  // Appends to `fd` what the file lacks, and puts all of it through `digest`.
  Status complete(const HubListing& listing, const HubFile& file, int fd, Digest* digest,
                  const std::function<void(int64_t)>& on_bytes);
  std::string url_of(const HubListing& listing, const std::string& file) const;
  // Why there is no file.
  Error refusal(const std::string& name, const Transfer& transfer) const;

  const std::string endpoint_, token_;
  void* easy_;  // libcurl's, which keeps its connections
};

// Whether a server may name a file so: a relative path of plain parts.
bool is_plain_path(const std::string& path);

}  // namespace volley::apps
