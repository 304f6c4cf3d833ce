// Who asks, and who may: API keys, addresses, pages of other origins (CORS), and by which name of the server.
// Immutable; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/http.h"

namespace volley::serve {

class ApiKeys {
 public:
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}  // none: everybody may ask

  // `authorization`: the header's value, "Bearer KEY". The number of the key, 0 where there are none; nothing: it is
  // none of them. How long it takes depends on the lengths alone, not on how much of a key was guessed.
  std::optional<size_t> find(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

// What is wrong with an origin or a host of the options, as a sentence that says what to write; empty: nothing. Without
// this a value that no browser sends would let nobody in, and nobody would learn why.
std::string origin_problem(std::string_view origin);
std::string host_problem(std::string_view host);

// Which hosts a request may be for. A page of a name that its owner points to 127.0.0.1 (DNS rebinding) belongs to the
// same origin as a server there: all that tells its requests from those of the machine's user is that name.
class AllowedHosts {
 public:
  AllowedHosts() = default;  // any
  // `names`: hosts without ports; "*": any. `loopback`: the server listens on loopback addresses alone. localhost,
  // names below it and loopback addresses are always allowed, and if not `loopback` all addresses, as probes use them:
  // they cannot be pointed elsewhere. If no name is given and not `loopback`, everything is.
  AllowedHosts(const std::vector<std::string>& names, bool loopback);

  // `host`: that a request is for, with its port if it has one; empty, which no browser sends, is allowed.
  bool allow(std::string_view host) const;

 private:
  bool any_ = true;
  bool addresses_ = true;
  std::vector<std::string> names_;  // in lower case
};

// What stands for a client that sends no key: its address, of IPv6 the network's part of it (64 bits), as a client
// chooses the rest. What is no address stays.
std::string network_of(const std::string& address);

class Cors {
 public:
  // "https://a.example", or "*" for every page. None: no page of another origin may read an answer.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // What every answer carries; empty for requests that do not come from an allowed page.
  HttpHeaders headers(const HttpRequest& request) const;
  // A browser's question whether it may send a request; nothing for other requests.
  std::optional<HttpResponse> preflight(const HttpRequest& request) const;

 private:
  std::string allowed(const std::string& origin) const;  // what Access-Control-Allow-Origin says; empty: not allowed

  std::vector<std::string> origins_;
};

}  // namespace volley::serve
