#include "weights/named.h"

#include <algorithm>

#include "base/check.h"

namespace volley::weights {
namespace {

class NamedCheckpoint final : public Checkpoint {
 public:
  NamedCheckpoint(std::shared_ptr<const Checkpoint> files, NameRules rules)
      : files_(std::move(files)), rules_(std::move(rules)) {
    VOLLEY_CHECK(!rules_.prefixes.empty());
  }

  bool has(std::string_view name) const override { return files_->has(stored(name)); }
  Result<SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    return files_->get(stored(name), shape);
  }
  DType dtype_of(std::string_view name) const override { return files_->dtype_of(stored(name)); }
  DType main_dtype() const override { return files_->main_dtype(); }
  void done_with(const SourceTensor& tensor) const override { files_->done_with(tensor); }
  std::string origin() const override { return files_->origin(); }

  std::vector<std::string> names() const override {
    std::vector<std::string> names = files_->names();
    for (std::string& name : names) name = ours(std::move(name));
    std::erase_if(names, [this](const std::string& name) {
      return std::find(rules_.copies.begin(), rules_.copies.end(), name) != rules_.copies.end();
    });
    return names;
  }

 private:
  std::string stored(std::string_view name) const {
    for (const std::string& prefix : rules_.prefixes) {
      std::string full = prefix + std::string(name);
      if (files_->has(full)) return full;
      for (const NameRules::Alias& alias : rules_.aliases) {
        if (!name.starts_with(alias.ours)) continue;
        full = prefix + alias.stored + std::string(name.substr(alias.ours.size()));
        if (files_->has(full)) return full;
      }
    }
    return rules_.prefixes.front() + std::string(name);  // get() will say that it is missing, by the usual name
  }

  std::string ours(std::string name) const {
    for (const std::string& prefix : rules_.prefixes) {
      if (prefix.empty() || !name.starts_with(prefix)) continue;
      name.erase(0, prefix.size());
      break;
    }
    for (const NameRules::Alias& alias : rules_.aliases) {
      if (name.starts_with(alias.stored)) return alias.ours + name.substr(alias.stored.size());
    }
    return name;
  }

  std::shared_ptr<const Checkpoint> files_;
  NameRules rules_;
};

}  // namespace

std::shared_ptr<const Checkpoint> with_names(std::shared_ptr<const Checkpoint> files, NameRules rules) {
  return std::make_shared<NamedCheckpoint>(std::move(files), std::move(rules));
}

}  // namespace volley::weights
