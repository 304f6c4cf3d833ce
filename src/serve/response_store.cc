#include "serve/response_store.h"

#include <atomic>
#include <utility>

namespace volley::serve {
namespace {

constexpr std::string_view kResponsePrefix = "resp_";

size_t total_bytes(const std::vector<ResponseItem>& items) {
  size_t bytes = 0;
  for (const ResponseItem& item : items) bytes += item.bytes();
  return bytes;
}

}  // namespace

struct StoredTurn::Ledger {
  std::atomic<size_t> bytes{0};
};

// One by one: a long conversation would take the stack if each turn ended the one before it.
StoredTurn::~StoredTurn() {
  ledger_->bytes -= bytes_;
  std::shared_ptr<const StoredTurn> last = std::move(previous_);
  while (last && last.use_count() == 1) {
    auto before = std::move(const_cast<StoredTurn&>(*last).previous_);  // nobody else has it
    last = std::move(before);
  }
}

void StoredTurn::add_conversation(ChatTurns& turns) const {
  std::vector<const StoredTurn*> chain;
  for (const StoredTurn* turn = this; turn; turn = turn->previous_.get()) chain.push_back(turn);
  for (auto turn = chain.rbegin(); turn != chain.rend(); ++turn) {
    add_turns((*turn)->input_, turns);
    add_turns((*turn)->output_, turns);
  }
}

ResponseStore::ResponseStore(size_t max_count, size_t max_bytes)
    : max_count_(max_count), max_bytes_(max_count > 0 ? max_bytes : 0), ledger_(new StoredTurn::Ledger) {}

// What a conversation that still runs holds does not go with its entry, so this may drop all and still fail.
bool ResponseStore::make_room(size_t bytes) {
  if (bytes > max_bytes_) return false;
  while (ledger_->bytes > max_bytes_ - bytes) {
    if (order_.empty()) return false;
    by_id_.erase(order_.back().id);
    order_.pop_back();
  }
  return true;
}

std::shared_ptr<StoredTurn> ResponseStore::begin(std::shared_ptr<const StoredTurn> previous,
                                                 std::vector<ResponseItem> input) {
  const size_t bytes = sizeof(StoredTurn) + total_bytes(input);
  const std::lock_guard lock(mutex_);
  if (!make_room(bytes)) return nullptr;
  std::shared_ptr<StoredTurn> turn(new StoredTurn(ledger_));
  ledger_->bytes += turn->bytes_ = bytes;
  turn->conversation_bytes_ = bytes + (previous ? previous->conversation_bytes() : 0);
  turn->previous_ = std::move(previous);
  turn->input_ = std::move(input);
  return turn;
}

void ResponseStore::finish(std::string_view tenant, const std::string& id, std::shared_ptr<StoredTurn> turn,
                           std::vector<ResponseItem> output, std::string json) {
  const size_t items = total_bytes(output);
  const size_t bytes = items + json.size() + sizeof(Entry) + 2 * id.size();
  const std::lock_guard lock(mutex_);
  if (!make_room(bytes)) return;
  ledger_->bytes += bytes;
  turn->bytes_ += bytes;
  turn->conversation_bytes_ += items;
  turn->output_ = std::move(output);
  turn->json_ = std::move(json);
  order_.push_front({std::string(tenant), id, std::move(turn)});
  by_id_[id] = order_.begin();
  while (order_.size() > max_count_) {
    by_id_.erase(order_.back().id);
    order_.pop_back();
  }
}

ResponseStore::Order::iterator ResponseStore::look_up(std::string_view tenant, const std::string& id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() || found->second->tenant != tenant ? order_.end() : found->second;
}

std::shared_ptr<const StoredTurn> ResponseStore::find(std::string_view tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = look_up(tenant, id);
  if (entry == order_.end()) return nullptr;
  order_.splice(order_.begin(), order_, entry);
  return entry->turn;
}

// An item's id is its kind's prefix, what follows its response's, and a number.
std::optional<ResponseItem> ResponseStore::find_item(std::string_view tenant, const std::string& item_id) {
  const size_t begin = item_id.find('_'), end = item_id.rfind('_');
  if (begin == std::string::npos || end <= begin) return std::nullopt;
  const auto turn = find(tenant, std::string(kResponsePrefix) + item_id.substr(begin + 1, end - begin - 1));
  if (!turn) return std::nullopt;
  for (const auto* items : {&turn->output(), &turn->input()}) {
    for (const ResponseItem& item : *items) {
      if (item.id == item_id) return item;
    }
  }
  return std::nullopt;
}

bool ResponseStore::erase(std::string_view tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = look_up(tenant, id);
  if (entry == order_.end()) return false;
  by_id_.erase(id);
  order_.erase(entry);
  return true;
}

size_t ResponseStore::count() const {
  const std::lock_guard lock(mutex_);
  return order_.size();
}

size_t ResponseStore::bytes() const {
  return ledger_->bytes;
}

}  // namespace volley::serve
