// The options of an engine. The fields stand in one table (engine_options.def), which the command line and its help,
// the configuration file, the variables, Python, the messages between processes and the checks of ranges read. A new
// option is a row there, and code that uses it.
#pragma once

#include <volley/cache_events.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace volley {

// A value as it is written.
template <typename T>
struct Word {
  std::string_view text;
  T value;
};

enum class ComputeType { kAuto, kBFloat16, kFloat32 };  // kAuto: bfloat16 for bf16 checkpoints, else float32
inline constexpr Word<ComputeType> kComputeTypes[] = {
    {"auto", ComputeType::kAuto}, {"bfloat16", ComputeType::kBFloat16}, {"float32", ComputeType::kFloat32}};

// The type in which keys and values are cached. kAuto: the type of the arithmetic. kFp8: e4m3, divided by the scales of
// the checkpoint's layers (k_scale, v_scale), or by 1; attention multiplies them in bf16.
enum class KvCacheType { kAuto, kBFloat16, kFloat32, kFp8 };
inline constexpr Word<KvCacheType> kKvCacheTypes[] = {{"auto", KvCacheType::kAuto},
                                                      {"bfloat16", KvCacheType::kBFloat16},
                                                      {"float32", KvCacheType::kFloat32},
                                                      {"fp8", KvCacheType::kFp8},
                                                      {"fp8_e4m3", KvCacheType::kFp8}};

enum class Speculation { kOn, kOff };
inline constexpr Word<Speculation> kSpeculations[] = {{"dflash", Speculation::kOn}, {"off", Speculation::kOff}};

// How the target's weights lie in memory; embedding, router and gates stay as they are. The checkpoint is quantised
// while it loads.
//   kFp8: e4m3. On GPUs of compute capability 9.0 with a scale for each row, and their input rows become e4m3, too;
//         the output head stays. On the CPU weights alone, with a scale for each 128 values.
//   kInt4: -8 to 7, with a scale for each 32 values; the output head as kFp8 on the CPU, and as it is on a GPU.
enum class Quantization { kNone, kFp8, kInt4 };
inline constexpr Word<Quantization> kQuantizations[] = {
    {"none", Quantization::kNone}, {"fp8", Quantization::kFp8}, {"int4", Quantization::kInt4}};

// The same for the drafter's weights, and on a GPU for its copy of the output head; the text never depends on it.
// kAuto: kFp8 where a GPU has a fast kernel for it, with bfloat16 arithmetic (compute capability 9.0, and sizes that it
// takes); on the CPU as the target's.
enum class DraftQuantization { kAuto, kNone, kFp8 };
inline constexpr Word<DraftQuantization> kDraftQuantizations[] = {
    {"auto", DraftQuantization::kAuto}, {"none", DraftQuantization::kNone}, {"fp8", DraftQuantization::kFp8}};

// How far a drafter's sliding-window layers see inside a block: only earlier positions (kCausal), or all of it. Another
// mask than the drafter was trained with costs acceptance; the text never depends on it. kAuto: what its config.json
// says, else causal.
enum class DraftWindowMask { kAuto, kCausal, kBidirectional };
inline constexpr Word<DraftWindowMask> kDraftWindowMasks[] = {{"auto", DraftWindowMask::kAuto},
                                                              {"causal", DraftWindowMask::kCausal},
                                                              {"bidirectional", DraftWindowMask::kBidirectional}};

inline constexpr Word<std::string_view> kAttentionBackends[] = {
    {"auto", "auto"}, {"wgmma", "wgmma"}, {"portable", "portable"}, {"plain", "plain"}};

// How many drafted tokens of a request a step verifies. Changes times, never tokens.
struct VerifyPolicy {
  enum class Kind {
    kAuto,   // each step drafts and verifies what commits the most tokens per second (docs/verify-budget.md)
    kFull,   // whole blocks, always
    kFixed,  // `tokens` of each request, always; 0: plain decoding
  };
  Kind kind = Kind::kAuto;
  int tokens = 0;
};

// Resolved once by Engine::create and immutable from then on.
struct EngineOptions {
#define VOLLEY_OPTION(type, field, otherwise, ...) type field = otherwise;
#include <volley/engine_options.def>

  // For restart_on_device_error: a program and its arguments; the program calls compute() with the number that is
  // appended to them.
  std::vector<std::string> device_command;
  // Receives a sentence when the device has failed or hangs. Every request has had its last event, with kUnavailable,
  // and submit() returns that error from now on; while the engine's destructor runs, requests of other replicas may
  // still end. Called once, on a thread of the engine's: must return fast, must not throw, may call no function of the
  // engine. Where the device hangs, the destructor waits for it: end the process. May be empty; must outlive the
  // engine.
  std::function<void(const std::string&)> on_device_failure;
  // Receives warnings that arise only while the engine runs (e.g. a drafter that does not help), a sentence, each at
  // most once. Called on the engine's thread, with several replicas never on two at once: must return fast, must not
  // throw. May be empty; must outlive the engine.
  std::function<void(const std::string&)> on_warning;
  // Receives the events of a replica's prefix cache (replica 0 if there is one), in order, from the first on. Called on
  // the replica's thread between two steps, for several replicas perhaps at once: must return fast, must not block or
  // throw, may call no function of the engine. Not after the engine's destructor has returned. May be empty, and events
  // then cost nothing.
  std::function<void(int replica, std::span<const CacheEvent>)> on_cache_events;
};

// The section of the command line's help that lists an option. kLimits: limits of a server. kNone: not a command-line
// option.
enum class OptionGroup { kNone, kModel, kEngine, kSpeculation, kLimits, kInternals };

// The permitted numbers. The number that stands for a default need not be among them.
struct NumberRange {
  double least = 0, most = 0;
  const char* phrase = "";  // "a number of threads from 1 to 1024"; empty: any number may be
  int64_t unit = 1;         // the name on the command line
};

template <typename T>
struct OptionValues {
  using Words = std::span<const Word<std::conditional_t<std::is_same_v<T, std::string>, std::string_view, T>>>;
  NumberRange range = {};
  Words words = {};        // only these values, if there are any
  const char* value = "";  // the value's name in the help
  // Whether all nodes must have the same value: a step's calls or its bits depend on it. Values that the engine chooses
  // itself are compared by node_facts() (engine/remote/node_setup.h).
  bool shared = false;
};

// A row of the table.
template <typename T>
struct EngineOption : OptionValues<T> {
  T EngineOptions::*field = nullptr;
  const char* field_name = "";  // in Python, too
  OptionGroup group = OptionGroup::kNone;
  const char* name = "";  // on the command line; "--no-…" turns off
  const char* text = "";
};

// Calls visit(const EngineOption<T>&) for every row of the table, in the order of the help.
template <typename Visit>
void for_each_option(const Visit& visit) {
  using enum OptionGroup;
  constexpr NumberRange kWhole{1, std::numeric_limits<int32_t>::max(), "a whole number from 1 to 2147483647"};
  constexpr NumberRange kMilliseconds{1, 3'600'000, "milliseconds from 1 to 3600000"};
  constexpr int64_t kMegabyte = 1 << 20;
  static constexpr Word<int> kRanks[] = {{"1", 1}, {"2", 2}, {"4", 4}, {"8", 8}, {"16", 16}};
  static constexpr Word<bool> kUniform[] = {{"uniform", true}};
#define VOLLEY_OPTION(type, field, otherwise, group, name, text, ...) \
  visit(EngineOption<type>{{__VA_ARGS__}, &EngineOptions::field, #field, group, name, text});
#include <volley/engine_options.def>
}

}  // namespace volley
