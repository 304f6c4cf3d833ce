#include "kv/prefix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace volley::kv {
namespace {

struct TokensLess {
  using is_transparent = void;
  bool operator()(std::span<const TokenId> a, std::span<const TokenId> b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
};

}  // namespace

// A run of whole pages. All of them were last used by the same operation: match() and insert() cut a run where they
// leave it, so that what was not used keeps its age.
struct PrefixTree::Node {
  using Children = std::map<std::vector<TokenId>, std::unique_ptr<Node>, TokensLess>;  // by their first page's tokens

  Node* parent = nullptr;              // null in a root
  Children::iterator self;             // in the parent's children
  const std::string* space = nullptr;  // a root's namespace; null elsewhere
  std::vector<TokenId> tokens;         // empty in a root
  std::vector<PageId> pages;
  uint64_t last_used = 0;
  Children children;

  bool is_root() const { return parent == nullptr; }
  bool is_leaf() const { return children.empty() && !is_root(); }
  Node& adopt(std::unique_ptr<Node> child, size_t page_size) {
    Node& node = *child;
    node.parent = this;
    std::vector<TokenId> key(node.tokens.begin(), node.tokens.begin() + static_cast<ptrdiff_t>(page_size));
    const auto [place, added] = children.emplace(std::move(key), std::move(child));
    VOLLEY_CHECK(added);
    node.self = place;
    return node;
  }
};

PrefixTree::PrefixTree(PagePool& pool, int32_t page_size) : pool_(pool), page_size_(page_size) {
  VOLLEY_CHECK_GT(page_size, 0);
}

PrefixTree::~PrefixTree() {
  while (!leaves_.empty()) {
    Node& leaf = *leaves_.begin()->second;
    for (const PageId page : leaf.pages) pool_.release_from_cache(page);
    remove_leaf(leaf);
  }
}

std::vector<PageId> PrefixTree::match(const std::string& space, std::span<const TokenId> tokens) {
  std::vector<PageId> found;
  const auto root = roots_.find(space);
  if (root == roots_.end()) return found;
  descend(*root->second, tokens, found);
  for (const PageId page : found) pool_.retain(page);
  return found;
}

void PrefixTree::insert(const std::string& space, std::span<const TokenId> tokens, std::span<PageId> pages) {
  VOLLEY_CHECK_EQ(tokens.size(), page_tokens(pages.size()));
  if (pages.empty()) return;
  const auto root = roots_.try_emplace(space).first;
  if (root->second == nullptr) {
    root->second = std::make_unique<Node>();
    root->second->space = &root->first;
  }
  std::vector<PageId> found;
  Node* end = descend(*root->second, tokens, found);
  for (size_t i = 0; i < found.size(); ++i) {
    if (pages[i] == found[i]) continue;
    pool_.retain(found[i]);
    pool_.release(pages[i]);
    pages[i] = found[i];
  }
  append(*end, tokens.subspan(page_tokens(found.size())), pages.subspan(found.size()));
}

int64_t PrefixTree::evict(int64_t pages) {
  int64_t freed = 0;
  for (auto oldest = leaves_.begin(); oldest != leaves_.end() && freed < pages;) {
    const uint64_t age = oldest->first;
    Node& leaf = *oldest->second;
    while (freed < pages && !leaf.pages.empty() && pool_.references(leaf.pages.back()) == 1) {
      pool_.release_from_cache(leaf.pages.back());
      leaf.pages.pop_back();
      --pages_;
      ++freed;
    }
    leaf.tokens.resize(page_tokens(leaf.pages.size()));
    if (leaf.pages.empty()) {
      remove_leaf(leaf);
      oldest = leaves_.lower_bound(age);  // the parent may be a leaf now, and is as old or younger
    } else {
      ++oldest;
    }
  }
  return freed;
}

// Follows `tokens` from `root` as far as the tree has whole pages, appends those to `found` and marks them as just
// used. Returns the node whose run ends there.
PrefixTree::Node* PrefixTree::descend(Node& root, std::span<const TokenId> tokens, std::vector<PageId>& found) {
  ++clock_;
  Node* node = &root;
  const size_t page_size = page_tokens(1);
  while (tokens.size() >= page_size) {
    const auto child = node->children.find(tokens.first(page_size));
    if (child == node->children.end()) break;
    node = child->second.get();
    const size_t length = std::min(tokens.size(), node->tokens.size());
    const auto end = node->tokens.begin() + static_cast<ptrdiff_t>(length);
    const auto differs = std::mismatch(node->tokens.begin(), end, tokens.begin()).first;
    const size_t shared = static_cast<size_t>(differs - node->tokens.begin()) / page_size;
    if (shared < node->pages.size()) split(*node, shared);
    touch(*node);
    found.insert(found.end(), node->pages.begin(), node->pages.end());
    tokens = tokens.subspan(page_tokens(shared));
  }
  return node;
}

void PrefixTree::touch(Node& node) {
  if (node.is_leaf()) {
    leaves_.erase(node.last_used);
    VOLLEY_CHECK(leaves_.emplace(clock_, &node).second);
  }
  node.last_used = clock_;
}

// Leaves the first `pages` pages in `node` and moves the rest, with its children, into a new node below it.
void PrefixTree::split(Node& node, size_t pages) {
  auto tail = std::make_unique<Node>();
  tail->tokens.assign(node.tokens.begin() + static_cast<ptrdiff_t>(page_tokens(pages)), node.tokens.end());
  tail->pages.assign(node.pages.begin() + static_cast<ptrdiff_t>(pages), node.pages.end());
  tail->last_used = node.last_used;
  tail->children.swap(node.children);  // keeps the iterators that the children hold
  for (auto& [key, child] : tail->children) child->parent = tail.get();
  node.tokens.resize(page_tokens(pages));
  node.pages.resize(pages);
  Node& lower = node.adopt(std::move(tail), page_tokens(1));
  if (lower.is_leaf()) leaves_[lower.last_used] = &lower;
}

// Adds a run behind the node at which descend() stopped.
void PrefixTree::append(Node& end, std::span<const TokenId> tokens, std::span<const PageId> pages) {
  if (pages.empty()) return;
  Node* node = &end;
  if (!end.is_leaf()) {  // a leaf just grows: a conversation of many turns stays one run
    auto child = std::make_unique<Node>();
    child->tokens.assign(tokens.begin(), tokens.end());
    node = &end.adopt(std::move(child), page_tokens(1));
    touch(*node);
  } else {
    node->tokens.insert(node->tokens.end(), tokens.begin(), tokens.end());
  }
  node->pages.insert(node->pages.end(), pages.begin(), pages.end());
  for (const PageId page : pages) pool_.retain_for_cache(page);
  pages_ += static_cast<int64_t>(pages.size());
}

// Unlinks a leaf whose pages are gone. A namespace without pages goes too.
void PrefixTree::remove_leaf(Node& leaf) {
  Node& parent = *leaf.parent;
  leaves_.erase(leaf.last_used);
  parent.children.erase(leaf.self);
  if (!parent.children.empty()) return;
  if (parent.is_root()) {
    roots_.erase(roots_.find(*parent.space));
  } else {
    VOLLEY_CHECK(leaves_.emplace(parent.last_used, &parent).second);
  }
}

}  // namespace volley::kv
