#include "apps/client/http_client.h"

#include <curl/curl.h>

#include <memory>

#include "base/check.h"

namespace volley::apps {
namespace {

constexpr int kWaitMs = 200;

size_t take_bytes(char* data, size_t size, size_t count, void* on_bytes) {
  (*static_cast<const HttpClient::OnBytes*>(on_bytes))({data, size * count});
  return size * count;
}

}  // namespace

void prepare_curl() {
  static const CURLcode prepared = curl_global_init(CURL_GLOBAL_DEFAULT);
  VOLLEY_CHECK_EQ(prepared, CURLE_OK);
}

HttpClient::HttpClient(std::chrono::seconds timeout) : multi_((prepare_curl(), curl_multi_init())), timeout_(timeout) {
  VOLLEY_CHECK(multi_ != nullptr);
}

HttpClient::~HttpClient() {
  curl_multi_cleanup(multi_);
}

HttpEnd HttpClient::run(const HttpCall& call, const OnBytes& on_bytes, const std::function<bool()>& go_on) {
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> owned(curl_easy_init(), curl_easy_cleanup);
  CURL* easy = owned.get();
  VOLLEY_CHECK(easy != nullptr);
  char error[CURL_ERROR_SIZE] = {};
  curl_easy_setopt(easy, CURLOPT_URL, call.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT, static_cast<long>(timeout_.count()));
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &on_bytes);
  curl_slist* headers = nullptr;
  for (const std::string& header : call.headers) headers = curl_slist_append(headers, header.c_str());
  if (!call.body.empty()) {
    headers = curl_slist_append(headers, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");  // saves a round trip before a large body
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call.body.c_str());
  }
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> owned_headers(headers, curl_slist_free_all);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  VOLLEY_CHECK_EQ(curl_multi_add_handle(multi_, easy), CURLM_OK);
  HttpEnd end;
  for (bool done = false; !done && !end.stopped; end.stopped = !done && !go_on()) {
    int running = 0, left = 0;
    VOLLEY_CHECK_EQ(curl_multi_perform(multi_, &running), CURLM_OK);
    const CURLMsg* message = curl_multi_info_read(multi_, &left);
    done = message != nullptr && message->msg == CURLMSG_DONE;
    if (!done) {
      curl_multi_poll(multi_, nullptr, 0, kWaitMs, nullptr);
    } else if (const CURLcode code = message->data.result; code != CURLE_OK) {
      end.failure = error[0] != '\0' ? error : curl_easy_strerror(code);
    }
  }
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  end.status = static_cast<int>(status);
  curl_multi_remove_handle(multi_, easy);
  return end;
}

void HttpClient::wake() {
  curl_multi_wakeup(multi_);
}

}  // namespace volley::apps
