#include "apps/client/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace volley::apps {
namespace {

struct Transfer {
  CURL* easy = curl_easy_init();
  curl_slist* headers = nullptr;
  HttpCall call;
  HttpClient::OnBytes on_bytes;
  HttpClient::OnEnd on_end;
  char error[CURL_ERROR_SIZE] = {};

  ~Transfer() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
  }
};

size_t take_bytes(char* data, size_t size, size_t count, void* transfer) {
  static_cast<Transfer*>(transfer)->on_bytes({data, size * count}, std::chrono::steady_clock::now());
  return size * count;
}

}  // namespace

void prepare_curl() {
  static const CURLcode prepared = curl_global_init(CURL_GLOBAL_DEFAULT);
  VOLLEY_CHECK_EQ(prepared, CURLE_OK);
}

struct HttpClient::State {
  CURLM* multi = nullptr;
  std::chrono::seconds timeout{};
  std::map<CURL*, std::unique_ptr<Transfer>> open;

  void end(CURL* easy, CURLcode code);
};

HttpClient::HttpClient(std::chrono::seconds timeout, int connections) : state_(std::make_unique<State>()) {
  prepare_curl();
  state_->multi = curl_multi_init();
  VOLLEY_CHECK(state_->multi != nullptr);
  state_->timeout = timeout;
  curl_multi_setopt(state_->multi, CURLMOPT_MAXCONNECTS, static_cast<long>(std::max(connections, 4)));
}

HttpClient::~HttpClient() {
  cancel_all();
  curl_multi_cleanup(state_->multi);
}

void HttpClient::start(HttpCall call, OnBytes on_bytes, OnEnd on_end) {
  auto transfer = std::make_unique<Transfer>();
  transfer->call = std::move(call);
  transfer->on_bytes = std::move(on_bytes);
  transfer->on_end = std::move(on_end);
  CURL* easy = transfer->easy;
  VOLLEY_CHECK(easy != nullptr);
  curl_easy_setopt(easy, CURLOPT_URL, transfer->call.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT, static_cast<long>(state_->timeout.count()));
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->error);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer.get());
  for (const std::string& header : transfer->call.headers) {
    transfer->headers = curl_slist_append(transfer->headers, header.c_str());
  }
  if (!transfer->call.body.empty()) {
    transfer->headers = curl_slist_append(transfer->headers, "Content-Type: application/json");
    transfer->headers = curl_slist_append(transfer->headers, "Expect:");  // saves a round trip before a large body
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(transfer->call.body.size()));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, transfer->call.body.c_str());
  }
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer->headers);
  VOLLEY_CHECK_EQ(curl_multi_add_handle(state_->multi, easy), CURLM_OK);
  state_->open.emplace(easy, std::move(transfer));
}

int HttpClient::open() const {
  return static_cast<int>(state_->open.size());
}

void HttpClient::poll(std::chrono::milliseconds limit) {
  int running = 0;
  VOLLEY_CHECK_EQ(curl_multi_perform(state_->multi, &running), CURLM_OK);
  int left = 0;
  bool ended = false;
  while (CURLMsg* message = curl_multi_info_read(state_->multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    state_->end(message->easy_handle, message->data.result);
    ended = true;
  }
  if (ended) return;
  curl_multi_poll(state_->multi, nullptr, 0, static_cast<int>(limit.count()), nullptr);
}

void HttpClient::State::end(CURL* easy, CURLcode code) {
  const auto now = std::chrono::steady_clock::now();
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  curl_multi_remove_handle(multi, easy);
  auto node = open.extract(easy);
  const std::unique_ptr<Transfer> transfer = std::move(node.mapped());
  std::string failure;
  if (code != CURLE_OK) failure = transfer->error[0] != '\0' ? transfer->error : curl_easy_strerror(code);
  transfer->on_end(static_cast<int>(status), failure, now);
}

void HttpClient::wake() {
  curl_multi_wakeup(state_->multi);
}

void HttpClient::cancel_all() {
  for (const auto& [easy, transfer] : state_->open) curl_multi_remove_handle(state_->multi, easy);
  state_->open.clear();
}

}  // namespace volley::apps
