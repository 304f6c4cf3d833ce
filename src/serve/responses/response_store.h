// Stores responses of POST /v1/responses, so that conversations can continue: bounded by count and bytes. Past a bound,
// the tenant that keeps most loses its least recently used. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fair_space.h"
#include "serve/responses/response_items.h"

namespace volley::serve {

// A response with the one that it continues, which lives as long, stored or not.
class StoredTurn {
 public:
  ~StoredTurn();
  StoredTurn(const StoredTurn&) = delete;
  StoredTurn& operator=(const StoredTurn&) = delete;

  const std::vector<ResponseItem>& input() const { return input_; }
  const std::vector<ResponseItem>& output() const { return output_; }
  const std::string& json() const { return json_; }  // the response as its client got it
  // The conversation including this turn.
  size_t conversation_bytes() const { return conversation_bytes_; }
  void for_each(const std::function<void(const std::vector<ResponseItem>&)>& read) const;

 private:
  friend class ResponseStore;
  explicit StoredTurn(std::shared_ptr<SharedSpace> space) : space_(std::move(space)), bytes_(*space_) {}

  const std::shared_ptr<SharedSpace> space_;  // the store's
  SharedSpace::Hold bytes_;
  std::shared_ptr<const StoredTurn> previous_;
  std::vector<ResponseItem> input_, output_;
  std::string json_;
  size_t conversation_bytes_ = 0;
};

class ResponseStore {
 public:
  // Stores nothing if either is 0.
  ResponseStore(size_t max_count, size_t max_bytes);

  // The input of a response being generated for `tenant`, which counts from now on. Null: it does not fit, or nothing
  // is stored. `previous` may be null.
  std::shared_ptr<StoredTurn> begin(std::string_view tenant, std::shared_ptr<const StoredTurn> previous,
                                    std::vector<ResponseItem> input);
  // Stores begin()'s turn under `id` for the same tenant. Does nothing if it no longer fits.
  void finish(std::string_view tenant, const std::string& id, std::shared_ptr<StoredTurn> turn,
              std::vector<ResponseItem> output, std::string json);

  // Null: nothing of this tenant under `id`.
  std::shared_ptr<const StoredTurn> find(std::string_view tenant, const std::string& id);
  // An item of one of this tenant's answers.
  std::optional<ResponseItem> find_item(std::string_view tenant, const std::string& item_id);
  bool erase(std::string_view tenant, const std::string& id);

  size_t count() const;
  size_t bytes() const;  // bytes of all living turns, stored or not

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredTurn> turn;
    uint64_t used = 0;        // time of use: a later one is higher
    SharedSpace::Hold place;  // in its tenant's share
  };
  using Order = std::list<Entry>;  // the most recently used first

  // All of these REQUIRE mutex_.
  bool grow(SharedSpace& space, SharedSpace::Hold& hold, const std::string& tenant, size_t n);
  void drop(Order::iterator entry);
  std::optional<Order::iterator> look_up(std::string_view tenant, const std::string& id);

  SharedSpace places_;
  const std::shared_ptr<SharedSpace> bytes_;  // bytes of all living turns
  mutable std::mutex mutex_;                  // guards the members below
  std::map<std::string, Order> tenants_;      // tenants with stored responses
  std::unordered_map<std::string, Order::iterator> by_id_;
  uint64_t uses_ = 0;
};

}  // namespace volley::serve
