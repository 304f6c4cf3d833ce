#include "serve/response_store.h"

#include <algorithm>
#include <atomic>
#include <charconv>
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
  all_->bytes -= bytes_;
  own_->bytes -= bytes_;
  std::shared_ptr<const StoredTurn> last = std::move(previous_);
  while (last && last.use_count() == 1) {
    auto before = std::move(const_cast<StoredTurn&>(*last).previous_);  // nobody else has it
    last = std::move(before);
  }
}

void StoredTurn::take(size_t bytes) {
  all_->bytes += bytes;
  own_->bytes += bytes;
  bytes_ += bytes;
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

ResponseStore::Tenant& ResponseStore::tenant_of(std::string_view name) {
  auto found = tenants_.find(name);
  if (found == tenants_.end()) {
    found = tenants_.emplace(std::string(name), Tenant{{}, std::make_shared<StoredTurn::Ledger>()}).first;
  }
  return found->second;
}

void ResponseStore::drop_oldest(Tenant& tenant) {
  by_id_.erase(tenant.order.back().id);
  tenant.order.pop_back();
}

// One tenant's many answers take no room from those who keep less. What a conversation that still runs holds does not
// go with its entry, so this may drop all of a tenant's and still fail.
bool ResponseStore::make_room(const Tenant& asking, size_t bytes) {
  if (bytes > max_bytes_) return false;
  while (ledger_->bytes > max_bytes_ - bytes) {
    Tenant* most = nullptr;
    size_t kept = 0;
    for (auto& [name, tenant] : tenants_) {
      const bool asks = &tenant == &asking;
      const size_t own = tenant.ledger->bytes + (asks ? bytes : 0);
      if ((tenant.order.empty() && !asks) || (most != nullptr && own <= kept)) continue;
      most = &tenant;
      kept = own;
    }
    if (most->order.empty()) return false;  // whoever asks
    drop_oldest(*most);
  }
  return true;
}

std::shared_ptr<StoredTurn> ResponseStore::begin(std::string_view tenant, std::shared_ptr<const StoredTurn> previous,
                                                 std::vector<ResponseItem> input) {
  const size_t bytes = sizeof(StoredTurn) + total_bytes(input);
  const std::lock_guard lock(mutex_);
  const Tenant& asking = tenant_of(tenant);
  if (!make_room(asking, bytes)) return nullptr;
  std::shared_ptr<StoredTurn> turn(new StoredTurn(ledger_, asking.ledger));
  turn->take(bytes);
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
  Tenant& asking = tenant_of(tenant);
  if (!make_room(asking, bytes)) return;
  turn->take(bytes);
  turn->conversation_bytes_ += items;
  turn->output_ = std::move(output);
  turn->json_ = std::move(json);
  asking.order.push_front({id, std::move(turn), &asking, ++uses_});
  by_id_[id] = asking.order.begin();
  // The same where their number is the bound. Of several who keep as many it is the one whose oldest is the oldest.
  const auto goes_later = [](const auto& a, const auto& b) {
    const Order &one = a.second.order, &other = b.second.order;
    if (one.size() != other.size()) return one.size() < other.size();
    return !one.empty() && one.back().used > other.back().used;
  };
  while (by_id_.size() > max_count_) drop_oldest(std::ranges::max_element(tenants_, goes_later)->second);
}

std::optional<ResponseStore::Order::iterator> ResponseStore::look_up(std::string_view tenant, const std::string& id) {
  const auto found = by_id_.find(id);
  const auto known = tenants_.find(tenant);
  if (found == by_id_.end() || known == tenants_.end() || found->second->tenant != &known->second) return std::nullopt;
  return found->second;
}

std::shared_ptr<const StoredTurn> ResponseStore::find(std::string_view tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = look_up(tenant, id);
  if (!entry) return nullptr;
  Order& order = (*entry)->tenant->order;
  (*entry)->used = ++uses_;
  order.splice(order.begin(), order, *entry);
  return (*entry)->turn;
}

// An item's id is its kind's prefix, what follows its response's, and a number, of input with "in" before it. A
// response may have much input, and a request many references.
std::optional<ResponseItem> ResponseStore::find_item(std::string_view tenant, const std::string& item_id) {
  const size_t begin = item_id.find('_'), end = item_id.rfind('_');
  if (begin == std::string::npos || end <= begin) return std::nullopt;
  const auto turn = find(tenant, std::string(kResponsePrefix) + item_id.substr(begin + 1, end - begin - 1));
  if (!turn) return std::nullopt;
  constexpr std::string_view kInput = "in";
  std::string_view number = std::string_view(item_id).substr(end + 1);
  if (number.starts_with(kInput)) {
    number.remove_prefix(kInput.size());
    size_t index = 0;
    const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error != std::errc() || rest != number.data() + number.size() || index >= turn->input().size() ||
        turn->input()[index].id != item_id) {
      return std::nullopt;
    }
    return turn->input()[index];
  }
  const auto item = std::ranges::find(turn->output(), item_id, &ResponseItem::id);
  return item != turn->output().end() ? std::optional(*item) : std::nullopt;
}

bool ResponseStore::erase(std::string_view tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = look_up(tenant, id);
  if (!entry) return false;
  by_id_.erase(id);
  (*entry)->tenant->order.erase(*entry);
  return true;
}

size_t ResponseStore::count() const {
  const std::lock_guard lock(mutex_);
  return by_id_.size();
}

size_t ResponseStore::bytes() const {
  return ledger_->bytes;
}

}  // namespace volley::serve
