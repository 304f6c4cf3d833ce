#include "apps/hub/hub.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "apps/cli/model_location.h"
#include "base/check.h"
#include "base/file.h"
#include "base/text.h"

namespace volley::apps {
namespace {

constexpr size_t kMaxListingBytes = 32 << 20;
constexpr int kMaxRedirects = 8;
constexpr int kMaxFailures = 5;  // consecutive failures without a new byte

std::optional<int64_t> number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size() && value >= 0 ? std::optional(value) : std::nullopt;
}

bool is_word(std::string_view text, const char* more) {
  return !text.empty() && text.size() <= 128 && text.front() != '.' && std::ranges::all_of(text, [more](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view(more).find(c) != std::string_view::npos;
  });
}

// W/"abc" and "abc" are both abc.
std::string etag_of(std::string_view value) {
  if (value.starts_with("W/")) value.remove_prefix(2);
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
  return std::string(value);
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

bool is_plain_path(const std::string& path) {
  if (path.size() > 1024 || path.starts_with('/') || path.ends_with('/')) return false;
  if (std::ranges::any_of(path, [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '\\'; })) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

struct Hub::Transfer {
  // Takes an answer's body; false ends the transfer.
  std::function<bool(std::string_view)> on_bytes;

  long status = 0;
  std::string etag, range;  // the last answer's
  int64_t bytes = -1;       // the last answer's length; -1: unknown
  std::string linked_etag;  // the first one sent: the hub's own statement on a file that lies elsewhere
  int64_t linked_bytes = -1;
  bool away = false;     // the last answer is another host's
  std::string failure;   // why the answer is not complete; a sentence without its full stop
  bool lasting = false;  // a retry would not help: no such host, or an invalid certificate

  bool good() const { return failure.empty() && (status == 200 || status == 206); }
  // By the endpoint; empty: unknown.
  std::string file_etag() const { return !linked_etag.empty() ? linked_etag : away ? "" : etag; }

  void take_header(std::string_view line) {
    if (line.starts_with("HTTP/")) {
      const size_t space = line.find(' ');
      status = space == std::string_view::npos ? 0 : number_of(line.substr(space + 1, 3)).value_or(0);
      etag.clear(), range.clear(), bytes = -1;
      return;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const std::string_view value = trim(line.substr(colon + 1));
    if (name == "etag") etag = etag_of(value);
    if (name == "content-range") range = value;
    if (name == "content-length") bytes = number_of(value).value_or(-1);
    if (away) return;  // another host's statements on the hub's files do not count
    if (name == "x-linked-etag" && linked_etag.empty()) linked_etag = etag_of(value);
    if (name == "x-linked-size" && linked_bytes < 0) linked_bytes = number_of(value).value_or(-1);
  }

  static size_t on_header(char* data, size_t size, size_t count, void* transfer) {
    static_cast<Transfer*>(transfer)->take_header(trim({data, size * count}));
    return size * count;
  }
  static size_t on_body(char* data, size_t size, size_t count, void* self) {
    auto* transfer = static_cast<Transfer*>(self);
    const bool wanted = transfer->status == 200 || transfer->status == 206;
    return !wanted || transfer->on_bytes({data, size * count}) ? size * count : 0;
  }
};

class Hub::Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new()) { restart(); }
  ~Digest() { EVP_MD_CTX_free(context_); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void restart() { VOLLEY_CHECK_EQ(EVP_DigestInit_ex(context_, EVP_sha256(), nullptr), 1); }
  void add(std::string_view bytes) { VOLLEY_CHECK_EQ(EVP_DigestUpdate(context_, bytes.data(), bytes.size()), 1); }
  std::string hex() {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    VOLLEY_CHECK_EQ(EVP_DigestFinal_ex(context_, bytes, &size), 1);
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      constexpr const char* kDigits = "0123456789abcdef";
      text += {kDigits[bytes[i] >> 4], kDigits[bytes[i] & 15]};
    }
    return text;
  }

 private:
  EVP_MD_CTX* context_;
};

Hub::Hub(std::string endpoint, std::string token)
    : endpoint_(std::move(endpoint)), token_(std::move(token)), easy_(curl_easy_init()) {
  VOLLEY_CHECK(easy_ != nullptr);
}

Hub::~Hub() {
  curl_easy_cleanup(easy_);
}

void Hub::ask(std::string url, bool head, int64_t from, Transfer* transfer) {
  for (int redirects = 0;; ++redirects) {
    transfer->away = !url.starts_with(endpoint_ + "/");
    curl_easy_reset(easy_);
    char error[CURL_ERROR_SIZE] = {};
    const std::string range = std::to_string(from) + "-";
    // The token is never sent to hosts that the endpoint redirects to.
    curl_slist* headers = nullptr;
    if (!token_.empty() && !transfer->away) {
      headers = curl_slist_append(headers, ("Authorization: Bearer " + token_).c_str());
    }
    curl_easy_setopt(easy_, CURLOPT_URL, url.c_str());
    curl_easy_setopt(easy_, CURLOPT_PROTOCOLS_STR, endpoint_.starts_with("https:") ? "https" : "http,https");
    curl_easy_setopt(easy_, CURLOPT_USERAGENT, "volley");
    curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy_, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(easy_, CURLOPT_CONNECTTIMEOUT, 20L);
    curl_easy_setopt(easy_, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy_, CURLOPT_LOW_SPEED_TIME, 30L);
    curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(easy_, CURLOPT_NOBODY, head ? 1L : 0L);
    if (from > 0) curl_easy_setopt(easy_, CURLOPT_RANGE, range.c_str());
    curl_easy_setopt(easy_, CURLOPT_HEADERFUNCTION, Transfer::on_header);
    curl_easy_setopt(easy_, CURLOPT_HEADERDATA, transfer);
    curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, Transfer::on_body);
    curl_easy_setopt(easy_, CURLOPT_WRITEDATA, transfer);
    const CURLcode code = curl_easy_perform(easy_);
    curl_slist_free_all(headers);
    char* next = nullptr;
    curl_easy_getinfo(easy_, CURLINFO_REDIRECT_URL, &next);
    const std::string location = next == nullptr ? "" : next;
    curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, nullptr);
    if (code != CURLE_OK && transfer->failure.empty()) {
      transfer->failure = error[0] != '\0' ? error : curl_easy_strerror(code);
      transfer->lasting = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY ||
                          code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_UNSUPPORTED_PROTOCOL ||
                          code == CURLE_URL_MALFORMAT;
    }
    if (!transfer->failure.empty() || location.empty() || (head && !transfer->linked_etag.empty())) return;
    if (redirects == kMaxRedirects) {
      transfer->failure = "its redirects lead nowhere";
      return;
    }
    url = location;
  }
}

std::string Hub::url_of(const HubListing& listing, const std::string& file) const {
  std::string escaped;
  for (const char c : file) {
    char code[4];
    std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned char>(c));
    escaped +=
        std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("/-_.~").find(c) != std::string::npos
            ? std::string(1, c)
            : code;
  }
  return endpoint_ + "/" + listing.id + "/resolve/" + listing.commit + "/" + escaped;
}

Error Hub::refusal(const std::string& name, const Transfer& transfer) const {
  if (!transfer.failure.empty()) {
    return {ErrorCode::kUnavailable, name + " could not be fetched from " + endpoint_ + " (" + transfer.failure +
                                         "): try again where there is a network; what is here stays."};
  }
  const std::string page = endpoint_ + "/" + name;
  if (transfer.status == 401 || transfer.status == 403) {
    return invalid_argument(endpoint_ + " does not give " + name + " to " +
                            (token_.empty() ? "anybody without a token" : "the owner of this token") +
                            ": check the name, accept the model's terms on " + page +
                            " if it has some, and set HF_TOKEN to a token that may read it.");
  }
  if (transfer.status == 404) return not_found("There is no " + name + " on " + endpoint_ + ": check the name.");
  return {ErrorCode::kUnavailable,
          endpoint_ + " answered " + std::to_string(transfer.status) + " for " + name + ": try again later."};
}

Result<HubListing> Hub::list(const std::string& name) {
  std::string body;
  Transfer transfer;
  transfer.on_bytes = [&](std::string_view bytes) {
    if (body.size() + bytes.size() > kMaxListingBytes) transfer.failure = "its list of files has no end";
    body += bytes;
    return transfer.failure.empty();
  };
  ask(endpoint_ + "/api/models/" + name + "/revision/main", false, 0, &transfer);
  if (!transfer.good()) return refusal(name, transfer);
  const Error senseless = data_loss(endpoint_ + " does not answer as a Hugging Face hub: check HF_ENDPOINT.");
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object() || !json.contains("siblings") || !json["siblings"].is_array()) return senseless;
  const auto text = [](const nlohmann::json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
  };
  HubListing listing{text(json, "id"), text(json, "sha"), {}};
  if (!is_hub_name(listing.id)) listing.id = name;
  if (!is_word(listing.commit, "")) return senseless;
  for (const auto& sibling : json["siblings"]) {
    listing.files.push_back(text(sibling, "rfilename"));
    if (!is_plain_path(listing.files.back())) {
      return data_loss(endpoint_ + " names a file of " + name + " \"" + listing.files.back() +
                       "\", which may lie outside its folder: nothing was fetched.");
    }
  }
  std::ranges::sort(listing.files);
  return listing;
}

Result<HubFile> Hub::describe(const HubListing& listing, const std::string& file) {
  Transfer transfer;
  ask(url_of(listing, file), true, 0, &transfer);
  if (transfer.linked_etag.empty() && !transfer.good()) return refusal(listing.id, transfer);
  const int64_t own_bytes = transfer.good() ? transfer.bytes : -1;  // otherwise the size is the redirect's
  HubFile found{file, transfer.file_etag(), transfer.linked_bytes >= 0 ? transfer.linked_bytes : own_bytes};
  found.etag_is_sha256 = !transfer.linked_etag.empty() && is_sha256(found.etag);
  if (!is_word(found.etag, "-_.") || found.bytes < 0) {
    return data_loss(endpoint_ + " does not say which bytes " + file + " of " + listing.id +
                     " has (ETag, Content-Length): check HF_ENDPOINT.");
  }
  return found;
}

Status Hub::complete(const HubListing& listing, const HubFile& file, int fd, Digest* digest,
                     const std::function<void(int64_t)>& on_bytes) {
  const std::string name = listing.id + "/" + file.name;
  int64_t have = lseek(fd, 0, SEEK_END);
  const auto restart = [&] {
    digest->restart();
    have = 0;
    return ftruncate(fd, 0) == 0;
  };
  if (have > file.bytes && !restart()) return write_error(name);
  std::string chunk(size_t{1} << 20, '\0');
  for (int64_t at = 0; at < have;) {
    const ssize_t got = pread(fd, chunk.data(), chunk.size(), at);
    if (got <= 0) return data_loss(name + ": what was fetched before cannot be read. Check the disk.");
    digest->add({chunk.data(), static_cast<size_t>(got)});
    at += got;
  }
  int64_t most = have;
  for (int failures = 0; have < file.bytes;) {
    std::optional<Error> fatal;
    bool first = true;
    Transfer transfer;
    // An answer must be of this file, and begin where asked, before its bytes count.
    const auto begins_well = [&] {
      if (!transfer.file_etag().empty() && transfer.file_etag() != file.etag) {
        fatal = data_loss(name + " changed on " + endpoint_ + " while it was fetched: start again.");
      } else if (transfer.status == 206) {
        const std::string wanted = "bytes " + std::to_string(have) + "-";
        if (!transfer.range.starts_with(wanted)) fatal = data_loss(endpoint_ + " sends another part of " + name + ".");
      } else if (have > 0 && !restart()) {
        fatal = write_error(name);
      }
      return !fatal;
    };
    transfer.on_bytes = [&](std::string_view bytes) {
      if (std::exchange(first, false) && !begins_well()) return false;
      if (have + static_cast<int64_t>(bytes.size()) > file.bytes) {
        fatal = data_loss(endpoint_ + " sends more of " + name + " than it has: start again.");
        return false;
      }
      for (std::string_view rest = bytes; !rest.empty();) {
        const ssize_t written = pwrite(fd, rest.data(), rest.size(), have);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
          fatal = write_error(name);
          return false;
        }
        digest->add(rest.substr(0, static_cast<size_t>(written)));
        rest.remove_prefix(static_cast<size_t>(written));
        have += written;
      }
      on_bytes(have);
      return true;
    };
    ask(url_of(listing, file.name), false, have, &transfer);
    if (fatal) return *fatal;
    if (have > most) failures = 0;  // an answer that always starts over must not reset the count
    most = std::max(most, have);
    if (have == file.bytes) break;
    const bool busy = transfer.status == 429 || transfer.status >= 500 || transfer.good() || !transfer.failure.empty();
    if (!busy || transfer.lasting || ++failures == kMaxFailures) {
      if (transfer.good()) transfer.failure = "its answer ends early";
      return refusal(listing.id, transfer);
    }
    std::this_thread::sleep_for(std::chrono::seconds(failures - 1));
  }
  return {};
}

Status Hub::fetch(const HubListing& listing, const HubFile& file, const std::string& blob, const std::string& lock,
                  const std::function<void()>& waits, const std::function<void(int64_t)>& on_bytes) {
  const FileDescriptor held(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (held.get() < 0) return write_error(lock);
  if (flock(held.get(), LOCK_EX | LOCK_NB) != 0) {
    waits();
    while (flock(held.get(), LOCK_EX) != 0) {
      if (errno != EINTR) return write_error(lock);
    }
  }
  if (::access(blob.c_str(), F_OK) == 0) return {};
  const std::string incomplete = blob + ".incomplete";
  const FileDescriptor fd(::open(incomplete.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (fd.get() < 0) return write_error(incomplete);
  Digest digest;
  VOLLEY_RETURN_IF_ERROR(complete(listing, file, fd.get(), &digest, on_bytes));
  if (file.etag_is_sha256 && digest.hex() != file.etag) {
    ::unlink(incomplete.c_str());
    return data_loss(listing.id + "/" + file.name + " arrived damaged (its SHA-256 is not " + file.etag +
                     ") and was thrown away: start again.");
  }
  if (fsync(fd.get()) != 0 || std::rename(incomplete.c_str(), blob.c_str()) != 0) return write_error(blob);
  return {};
}

}  // namespace volley::apps
