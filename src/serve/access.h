// Who may ask: API keys, and pages of other origins (CORS). Immutable; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http.h"

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

class Cors {
 public:
  // "https://a.example", or "*" for every page. None: no page of another origin may read an answer.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // Of every answer; empty for requests that do not come from an allowed page.
  HttpHeaders headers(const HttpRequest& request) const;
  // A browser's question whether it may send a request; nothing for other requests.
  std::optional<HttpResponse> preflight(const HttpRequest& request) const;

 private:
  std::string allowed(const std::string& origin) const;  // what Access-Control-Allow-Origin says; empty: not allowed

  std::vector<std::string> origins_;
};

}  // namespace volley::serve
