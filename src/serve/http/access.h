// Access control: API keys, addresses, pages of other origins (CORS), and names of the server. Immutable; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/http.h"

namespace volley::serve {

class ApiKeys {
 public:
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}  // empty: no key is needed

  // `authorization`: the header's value, "Bearer KEY". Returns the key's number, 0 without keys; nothing for a wrong
  // key. Its time depends on lengths alone, not on how much of a key was guessed.
  std::optional<size_t> find(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

// A sentence about a wrong origin or host in the options, with what to write; empty: it is right. Otherwise a value
// that no browser sends would let no page in, and the operator would not learn why.
std::string origin_problem(std::string_view origin);
std::string host_problem(std::string_view host);

// The hosts that requests may name. By DNS rebinding, a foreign page's name can point to 127.0.0.1 and share the origin
// of a server there. Only that name tells its requests from the user's own.
class AllowedHosts {
 public:
  AllowedHosts() = default;  // any
  // `names`: hosts without ports; "*": any. `loopback`: the server listens on loopback addresses alone. localhost,
  // names below it and loopback addresses are always allowed. Without `loopback` so are all addresses, which probes use
  // and which cannot be redirected; without any name then everything is.
  AllowedHosts(const std::vector<std::string>& names, bool loopback);

  // `host`: the request's, perhaps with a port. An empty one is allowed, because browsers always send one.
  bool allow(std::string_view host) const;

 private:
  bool any_ = true;
  bool addresses_ = true;
  std::vector<std::string> names_;  // in lower case
};

// Identifies a client without a key: its address, or the network's part (64 bits) of an IPv6 one, because a client
// chooses the rest. Other text stays unchanged.
std::string network_of(const std::string& address);

class Cors {
 public:
  // "https://a.example", or "*" for every page. Empty: no page of another origin may read an answer.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // Headers of every answer; empty if the request comes from no allowed page.
  HttpHeaders headers(const HttpRequest& request) const;
  // Answers a browser's question whether it may send a request; nothing for other requests.
  std::optional<HttpResponse> preflight(const HttpRequest& request) const;

 private:
  std::string allowed(const std::string& origin) const;  // value of Access-Control-Allow-Origin; empty: not allowed

  std::vector<std::string> origins_;
};

}  // namespace volley::serve
