// What POST /v1/responses keeps, so that conversations can go on from it: bounded by count and by bytes. Past a bound
// the least recently used of the tenant who keeps most goes first. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "serve/response_items.h"

namespace volley::serve {

// One response, and the one that it goes on from, which lives at least as long, whether the store still has it or not.
class StoredTurn {
 public:
  ~StoredTurn();
  StoredTurn(const StoredTurn&) = delete;
  StoredTurn& operator=(const StoredTurn&) = delete;

  const std::vector<ResponseItem>& input() const { return input_; }
  const std::vector<ResponseItem>& output() const { return output_; }
  const std::string& json() const { return json_; }  // the response as its client got it
  // The conversation up to and with this turn.
  size_t conversation_bytes() const { return conversation_bytes_; }
  void add_conversation(ChatTurns& turns) const;

 private:
  friend class ResponseStore;
  struct Ledger;
  StoredTurn(std::shared_ptr<Ledger> all, std::shared_ptr<Ledger> own) : all_(std::move(all)), own_(std::move(own)) {}
  void take(size_t bytes);

  std::shared_ptr<Ledger> all_, own_;  // of the store, of the tenant
  std::shared_ptr<const StoredTurn> previous_;
  std::vector<ResponseItem> input_, output_;
  std::string json_;
  size_t bytes_ = 0;  // in the ledgers
  size_t conversation_bytes_ = 0;
};

class ResponseStore {
 public:
  // Nothing is kept if either is 0.
  ResponseStore(size_t max_count, size_t max_bytes);

  // The input of a response that is being generated for `tenant`, which counts from now on. Null: it does not fit, or
  // nothing is kept. `previous` may be null.
  std::shared_ptr<StoredTurn> begin(std::string_view tenant, std::shared_ptr<const StoredTurn> previous,
                                    std::vector<ResponseItem> input);
  // Keeps what begin() gave under `id` for the same tenant. Does nothing if it no longer fits.
  void finish(std::string_view tenant, const std::string& id, std::shared_ptr<StoredTurn> turn,
              std::vector<ResponseItem> output, std::string json);

  // Null: nothing of this tenant is kept under `id`.
  std::shared_ptr<const StoredTurn> find(std::string_view tenant, const std::string& id);
  // An item that an answer of this tenant's held.
  std::optional<ResponseItem> find_item(std::string_view tenant, const std::string& item_id);
  bool erase(std::string_view tenant, const std::string& id);

  size_t count() const;
  size_t bytes() const;  // of all turns that live, those no longer in the store too

 private:
  struct Tenant;
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredTurn> turn;
    Tenant* tenant = nullptr;
    uint64_t used = 0;  // when: a later one is higher
  };
  using Order = std::list<Entry>;
  struct Tenant {
    Order order;  // the most recently used first
    std::shared_ptr<StoredTurn::Ledger> ledger;
  };

  // All of these REQUIRE mutex_.
  Tenant& tenant_of(std::string_view name);
  bool make_room(const Tenant& asking, size_t bytes);
  void drop_oldest(Tenant& tenant);
  std::optional<Order::iterator> look_up(std::string_view tenant, const std::string& id);

  const size_t max_count_, max_bytes_;
  const std::shared_ptr<StoredTurn::Ledger> ledger_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Tenant, std::less<>> tenants_;
  std::unordered_map<std::string, Order::iterator> by_id_;
  uint64_t uses_ = 0;
};

}  // namespace volley::serve
