#include "apps/client/picture_fetch.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "apps/client/http_client.h"
#include "base/check.h"

namespace volley::apps {
namespace {

struct Prefix {
  const char* address;
  int bits;
};
constexpr Prefix kNotPublic4[] = {
    {"0.0.0.0", 8},     {"10.0.0.0", 8},      {"100.64.0.0", 10},  {"127.0.0.0", 8},    {"169.254.0.0", 16},
    {"172.16.0.0", 12}, {"192.0.0.0", 24},    {"192.0.2.0", 24},   {"192.88.99.0", 24}, {"192.168.0.0", 16},
    {"198.18.0.0", 15}, {"198.51.100.0", 24}, {"203.0.113.0", 24}, {"224.0.0.0", 3},
};
constexpr Prefix kGlobal6 = {"2000::", 3};  // all of IPv6 that is handed out; mapped IPv4 and fc00::/7 lie outside
// Within it: Teredo and other protocols, documentation, 6to4.
constexpr Prefix kNotPublic6[] = {{"2001::", 23}, {"2001:db8::", 32}, {"2002::", 16}, {"3fff::", 20}};

bool within(int family, const void* address, const Prefix& prefix) {
  unsigned char of[sizeof(in6_addr)] = {}, given[sizeof(in6_addr)] = {};
  VOLLEY_CHECK_EQ(inet_pton(family, prefix.address, of), 1);
  std::memcpy(given, address, family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr));
  for (int bit = 0; bit < prefix.bits; ++bit) {
    if (((of[bit / 8] ^ given[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
  }
  return true;
}

// One transfer. libcurl calls the static functions with it.
struct Fetch {
  const PictureHosts& hosts;
  const size_t most_bytes;
  const std::atomic<bool>* cancelled;
  std::string bytes = {};
  bool too_many = false, private_address = false;

  static curl_socket_t open(void* fetch, curlsocktype, curl_sockaddr* address) {
    auto* self = static_cast<Fetch*>(fetch);
    if (!self->hosts.any_address && !is_public_address(&address->addr)) {
      self->private_address = true;
      return CURL_SOCKET_BAD;
    }
    return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  }
  static size_t take(char* data, size_t size, size_t count, void* fetch) {
    auto* self = static_cast<Fetch*>(fetch);
    self->too_many = self->bytes.size() + size * count > self->most_bytes;
    if (self->too_many) return 0;
    self->bytes.append(data, size * count);
    return size * count;
  }
  static int look(void* fetch, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const auto* cancelled = static_cast<Fetch*>(fetch)->cancelled;
    return cancelled != nullptr && *cancelled ? 1 : 0;
  }
};

// Names of hosts have no case.
bool equal(std::string_view a, std::string_view b) {
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  return std::ranges::equal(a, b, {}, lower, lower);
}

// A part of the URL, or nothing.
std::string part_of(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0) != CURLUE_OK) return "";
  std::string copy(text);
  curl_free(text);
  return copy;
}

}  // namespace

bool is_public_address(const sockaddr* address) {
  const bool v4 = address->sa_family == AF_INET;
  if (!v4 && address->sa_family != AF_INET6) return false;
  const void* bytes = v4 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                         : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (!v4 && !within(AF_INET6, bytes, kGlobal6)) return false;
  return std::ranges::none_of(v4 ? std::span<const Prefix>(kNotPublic4) : kNotPublic6,
                              [&](const Prefix& prefix) { return within(address->sa_family, bytes, prefix); });
}

Result<std::string> fetch_picture(const PictureHosts& hosts, const std::string& url, size_t most_bytes,
                                  const std::atomic<bool>* cancelled) {
  prepare_curl();
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed(curl_url(), curl_url_cleanup);
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> owned(curl_easy_init(), curl_easy_cleanup);
  VOLLEY_CHECK(parsed && owned);
  CURL* easy = owned.get();
  const char* const scheme = hosts.plain_http ? "http" : "https";
  if (curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), CURLU_DISALLOW_USER) != CURLUE_OK ||
      part_of(parsed.get(), CURLUPART_SCHEME) != scheme) {
    return invalid_argument("the picture's URL must begin with \"" + std::string(scheme) +
                            "://\" and the name of a host, without a user's name");
  }
  const std::string host = part_of(parsed.get(), CURLUPART_HOST), port = part_of(parsed.get(), CURLUPART_PORT);
  const std::string listed = port == "443" ? host : host + ":" + port;
  if (std::ranges::none_of(hosts.hosts, [&](const std::string& name) { return equal(name, listed); })) {
    return invalid_argument("this server fetches no pictures from " + listed.substr(0, 200) +
                            ": send the bytes, as \"data:image/png;base64,\" and Base64");
  }
  Fetch fetch{hosts, most_bytes, cancelled};
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> addresses(
      [&] {
        curl_slist* list = nullptr;
        for (const std::string& address : hosts.addresses) list = curl_slist_append(list, address.c_str());
        return list;
      }(),
      curl_slist_free_all);
  curl_easy_setopt(easy, CURLOPT_CURLU, parsed.get());  // the URL that was checked, not another reading of the text
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, scheme);
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_PROXY, "");  // a proxy would resolve the name itself
  curl_easy_setopt(easy, CURLOPT_RESOLVE, addresses.get());
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // leaves a resolver that hangs behind, instead of joining its thread
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "volley");
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(hosts.timeout.count()));
  curl_easy_setopt(easy, CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(most_bytes));
  curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, Fetch::open);
  curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, &fetch);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, Fetch::take);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &fetch);
  curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, Fetch::look);
  curl_easy_setopt(easy, CURLOPT_XFERINFODATA, &fetch);
  const CURLcode code = curl_easy_perform(easy);
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  if (code == CURLE_OK && status == 200) return std::move(fetch.bytes);
  if (code == CURLE_ABORTED_BY_CALLBACK) return Error{ErrorCode::kCancelled, "The picture is not wanted any more."};
  std::string why = curl_easy_strerror(code);
  if (code == CURLE_OK) why = "it answered " + std::to_string(status);
  if (code == CURLE_OK && status / 100 == 3) why = "it redirects, which is not followed: send the last URL";
  if (fetch.too_many || code == CURLE_FILESIZE_EXCEEDED)
    why = "it has more than " + std::to_string(most_bytes) + " bytes";
  if (fetch.private_address && code == CURLE_COULDNT_CONNECT) why = "the name stands for an address that is not public";
  return invalid_argument("the picture at " + listed + " could not be fetched: " + why);
}

}  // namespace volley::apps
