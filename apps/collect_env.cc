#include "apps/commands.h"

#include <curl/curl.h>
#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <boost/version.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/exit_codes.h"
#include "apps/inspect/inspect.h"
#include "apps/standard_streams.h"
#include "base/environment.h"
#include "base/text.h"
#include "device/device.h"
#include "engine/start/memory_plan.h"
#include "ops/cpu_features.h"

namespace volley::apps {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The rest of the first line that begins with `start`; empty: none.
std::string line_of(const char* path, std::string_view start) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(start)) continue;
    std::string_view rest = trim(std::string_view(line).substr(start.size()));
    if (rest.starts_with(':')) rest = trim(rest.substr(1));
    if (rest.size() >= 2 && rest.front() == '"' && rest.back() == '"') rest = rest.substr(1, rest.size() - 2);
    return std::string(rest);
  }
  return "";
}

void add_text(OrderedJson& json, const char* key, const std::string& text) {
  if (!text.empty()) json[key] = text;
}

OrderedJson program_facts() {
  return {{"version", VOLLEY_VERSION},
          {"build", VOLLEY_BUILD_TYPE},
          {"hardened", VOLLEY_HARDENED != 0},
          {"compiler", VOLLEY_COMPILER},
          {"flags", VOLLEY_CXX_FLAGS}};
}

OrderedJson library_facts() {
  const auto part = [](int number) { return std::to_string(number); };
  return {{"boost",
           part(BOOST_VERSION / 100000) + "." + part(BOOST_VERSION / 100 % 1000) + "." + part(BOOST_VERSION % 100)},
          {"libcurl", curl_version()},
          {"libc", gnu_get_libc_version()}};
}

OrderedJson system_facts() {
  OrderedJson json;
  utsname name{};
  if (uname(&name) == 0) json["kernel"] = std::string(name.sysname) + " " + name.release + " " + name.machine;
  add_text(json, "distribution", line_of("/etc/os-release", "PRETTY_NAME="));
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max != RLIM_INFINITY) json["open_files"] = files.rlim_max;
  return json;
}

OrderedJson cpu_facts() {
  OrderedJson json;
  add_text(json, "model", line_of("/proc/cpuinfo", "model name"));
  json["instruction_set"] = ops::cpu_instruction_set();
  json["features"] = line_of("/proc/cpuinfo", "flags");
  json["cores"] = std::thread::hardware_concurrency();
  json["usable_cores"] = usable_cores();
  add_text(json, "cgroup_cpu_max", line_of("/sys/fs/cgroup/cpu.max", ""));
  return json;
}

OrderedJson memory_facts() {
  OrderedJson json;
  add_text(json, "total", line_of("/proc/meminfo", "MemTotal"));
  json["available_bytes"] = engine::available_memory_bytes();
  add_text(json, "cgroup_memory_max", line_of("/sys/fs/cgroup/memory.max", ""));
  return json;
}

OrderedJson gpu_facts() {
  OrderedJson json;
  add_text(json, "driver", line_of("/proc/driver/nvidia/version", "NVRM version"));
  add_text(json, "CUDA_VISIBLE_DEVICES", env_cuda_visible_devices().value_or(""));
  for (int ordinal = 0;; ++ordinal) {
    const Result<GpuFacts> gpu = examine_cuda_device(ordinal);
    if (!gpu.ok()) {
      if (ordinal == 0) json["devices"] = gpu.error().message;
      return json;
    }
    json["devices"].push_back(
        {{"name", gpu->name}, {"compute_capability", gpu->info.compute_capability}, {"free_bytes", gpu->free_bytes}});
  }
}

// VOLLEY_ARGS of the unit file is a command line, which may hold a key.
bool is_secret(const std::string& option, const std::string& value) {
  if (option == "VOLLEY_ARGS") return value.find("api-key") != std::string::npos;
  return option == "--api-key" || option == "VOLLEY_API_KEYS";
}

OrderedJson option_facts(const CollectEnvCommand& command) {
  OrderedJson json = OrderedJson::array();
  for (const GivenOption& given : command.options) {
    std::string value;
    for (const std::string& part : given.values) value += (value.empty() ? "" : ", ") + part;
    if (is_secret(given.name, value)) value = "(hidden)";
    json.push_back({{"option", given.name}, {"value", value}, {"source", given.source}});
  }
  return json;
}

OrderedJson collect(const CollectEnvCommand& command) {
  OrderedJson json = {{"volley", program_facts()}, {"libraries", library_facts()}, {"system", system_facts()},
                      {"cpu", cpu_facts()},        {"memory", memory_facts()},     {"gpu", gpu_facts()}};
  const EngineFlags& engine = command.serve.engine;
  if (engine.model) {
    auto model = inspect_models({.model = engine.model, .draft = engine.draft, .base = engine.base});
    json["models"] = model.ok() ? std::move(*model) : OrderedJson(model.error().message);
  }
  json["options"] = option_facts(command);
  return json;
}

std::string text_of(const std::string& key, const OrderedJson& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_integer() && key.ends_with("_bytes")) return engine::format_bytes(value.get<int64_t>());
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Options as "--port 80 (VOLLEY_PORT)", all else as "name: value", a level in for each level down.
void print(const OrderedJson& json, int depth) {
  for (const auto& [key, value] : json.items()) {
    const std::string indent(static_cast<size_t>(2 * depth), ' ');
    if (key == "options") {
      std::printf("options: %s\n", value.empty() ? "none" : "");
      for (const OrderedJson& option : value) {
        const auto text = [&option](const char* field) { return escape_controls(option[field].get<std::string>()); };
        std::printf("  %s %s (%s)\n", text("option").c_str(), text("value").c_str(), text("source").c_str());
      }
    } else if (value.is_object()) {
      std::printf("%s%s:\n", indent.c_str(), key.c_str());
      print(value, depth + 1);
    } else {
      std::printf("%s%s: %s\n", indent.c_str(), key.c_str(), escape_controls(text_of(key, value)).c_str());
    }
  }
}

}  // namespace

int run_collect_env(const CollectEnvCommand& command, Console* console) {
  const OrderedJson json = collect(command);
  if (command.json) {
    std::printf("%s\n", json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace).c_str());
  } else {
    print(json, 0);
  }
  const Status written = flush_standard_output();
  if (!written.ok()) console->error(written.error().message);
  return written.ok() ? kExitOk : kExitUsage;
}

}  // namespace volley::apps
