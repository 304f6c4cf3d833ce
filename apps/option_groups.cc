#include "apps/option_groups.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/option_aliases.h"
#include "families/generation.h"
#include "serve/access.h"
#include "serve/json_text.h"

namespace volley::apps {

namespace {

// "010" and "-01": CLI11 takes them for octal numbers.
bool is_octal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

std::string octal(const std::string& text, const std::string& description) {
  return text + " begins with a 0: it must be " + description;
}

}  // namespace

CLI::Validator between(double low, double high, const std::string& description) {
  return CLI::Validator(
      [low, high, description](std::string& text) -> std::string {
        double value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = end == text.data() + text.size() && !std::isnan(value);
        if (number && is_octal(text)) return octal(text, description);
        if (number && failure == std::errc() && value >= low && value <= high) return "";
        const bool large =
            failure == std::errc::result_out_of_range ? text.find("e-") == std::string::npos : value > high;
        return number && large ? text + " is too large: it must be " + description : text + " is not " + description;
      },
      "");
}

const CLI::Validator& seed() {
  static const CLI::Validator validator(
      [](std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = !text.empty() && end == text.data() + text.size();
        const std::string what = "a whole number from 0 to 2^64 - 1";
        if (number && is_octal(text)) return octal(text, what);
        if (number && failure == std::errc()) return "";
        return number ? text + " is too large: it must be " + what : text + " is not " + what;
      },
      "");
  return validator;
}

const CLI::Validator& not_empty() {
  static const CLI::Validator validator([](std::string& text) { return text.empty() ? "it must not be empty" : ""; },
                                        "");
  return validator;
}

const CLI::Validator& web_origin() {
  static const CLI::Validator validator([](std::string& text) { return serve::origin_problem(text); }, "");
  return validator;
}

const CLI::Validator& host_name() {
  static const CLI::Validator validator([](std::string& text) { return serve::host_problem(text); }, "");
  return validator;
}

const CLI::Validator& some_text() {
  static const CLI::Validator validator(
      [](std::string& text) {
        if (text.empty()) return "it must not be empty";
        return serve::find_invalid_utf8(text) ? "it is not valid UTF-8: check the terminal's encoding" : "";
      },
      "");
  return validator;
}

const CLI::Validator& positive() {
  static const CLI::Validator validator =
      between(1, std::numeric_limits<int32_t>::max(), "a whole number from 1 to 2147483647");
  return validator;
}

const CLI::Validator& not_negative() {
  static const CLI::Validator validator =
      between(0, std::numeric_limits<int32_t>::max(), "a whole number from 0 to 2147483647");
  return validator;
}

CLI::Option* one_value_each(CLI::Option* option) {
  return option->type_size(1)->expected(1)->take_all()->allow_extra_args(false);
}

CLI::Option* values_as_written(CLI::Option* option) {
  constexpr int kMost = 1000;  // as long as it is not CLI11's number for no limit
  return option->expected(1, kMost)->allow_extra_args(false);
}

namespace {

const CLI::Validator& json_object() {
  static const CLI::Validator validator(
      [](std::string& text) -> std::string {
        const auto json = nlohmann::json::parse(text, nullptr, false);
        return json.is_object() ? "" : R"(it must be a JSON object, such as {"enable_thinking": false})";
      },
      "");
  return validator;
}

const CLI::Validator& generation_overrides() {
  static const CLI::Validator validator(
      [](std::string& text) {
        const Status checked = families::check_sampling_overrides(text);
        return checked.ok() ? "" : checked.error().message;
      },
      "");
  return validator;
}

// Whether this build and this machine have it is the engine's to say.
const CLI::Validator& device_name() {
  static const CLI::Validator validator(
      [](std::string& text) {
        const bool named = text == "auto" || text == "cpu" || text == "cuda";
        const bool numbered = text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 &&
                              text.find_first_not_of("0123456789", 5) == std::string::npos;
        return named || numbered ? std::string() : text + " is not auto, cpu, cuda or cuda:N";
      },
      "");
  return validator;
}

DraftWindowMask draft_window_mask(const std::string& name) {
  if (name == "causal") return DraftWindowMask::kCausal;
  return name == "bidirectional" ? DraftWindowMask::kBidirectional : DraftWindowMask::kAuto;
}

DraftQuantization draft_quantization(const std::string& name) {
  if (name == "fp8") return DraftQuantization::kFp8;
  return name == "none" ? DraftQuantization::kNone : DraftQuantization::kAuto;
}

Quantization quantization(const std::string& name) {
  if (name == "fp8") return Quantization::kFp8;
  return name == "int4" ? Quantization::kInt4 : Quantization::kNone;
}

ComputeType compute_type(const std::string& name) {
  if (name == "bfloat16") return ComputeType::kBFloat16;
  return name == "float32" ? ComputeType::kFloat32 : ComputeType::kAuto;
}

// fp8 and fp8_e4m3 are one.
KvCacheType kv_cache_type(const std::string& name) {
  if (name == "bfloat16") return KvCacheType::kBFloat16;
  if (name == "float32") return KvCacheType::kFloat32;
  return name == "auto" ? KvCacheType::kAuto : KvCacheType::kFp8;
}

// Refuses by name what others have.
CLI::Validator kv_cache_is_built() {
  return CLI::Validator(
      [](const std::string& name) {
        return name == "fp8_e5m2" ? "fp8_e5m2 is not built: use fp8, which is e4m3" : std::string();
      },
      "");
}

CLI::Validator type_name() {
  return CLI::IsMember({"auto", "bfloat16", "float32"});
}

}  // namespace

GroupOfHelp::GroupOfHelp(CLI::App* app, std::string name)
    : app_(app), name_(std::move(name)), first_(app->get_options().size()) {}

GroupOfHelp::~GroupOfHelp() {
  const auto options = app_->get_options();
  for (size_t i = first_; i < options.size(); ++i) {
    if (!options[i]->get_group().empty()) options[i]->group(name_);  // else it is not shown
  }
}

VerifyPolicy verify_option(const std::string& text) {
  auto parsed = parse_verify(text);
  if (!parsed.ok()) throw CLI::ValidationError("--verify", parsed.error().message);
  return *parsed;
}

Speculation speculation_of(const std::string& name) {
  return name == "off" ? Speculation::kOff : Speculation::kOn;
}

void add_model_options(CLI::App* app, std::optional<std::string>* model, std::optional<std::string>* draft) {
  app->add_option("--model", *model,
                  "the target: a Hugging Face folder, or a name in the local Hugging Face cache [the pocket model that "
                  "comes with volley]")
      ->check(not_empty())
      ->type_name("DIR|ORG/NAME");
  app->add_option(
         "--draft", *draft,
         "its DFlash drafter, likewise; auto: the one that is known for it; or none [pocket's, or none beside --model]")
      ->check(not_empty())
      ->type_name("DIR|ORG/NAME|auto|none");
}

void add_dtype_option(CLI::App* app, ComputeType* dtype) {
  app->add_option_function<std::string>(
         "--dtype", [dtype](const std::string& name) { *dtype = compute_type(name); },
         "arithmetic: auto, bfloat16 or float32")
      ->check(type_name());
}

void add_main_options(CLI::App* app, EngineFlags* flags, const std::string& slots) {
  EngineOptions& base = flags->base;
  const GroupOfHelp group(app, "Model");
  add_model_options(app, &flags->model, &flags->draft);
  app->add_option("--device", base.device,
                  "what computes: auto (a GPU that can be used, else the CPU), cpu, cuda or cuda:N")
      ->check(device_name());
  add_dtype_option(app, &base.dtype);
  app->add_option_function<std::string>(
         "--quantization", [&base](const std::string& name) { base.quantization = quantization(name); },
         "the target's weights, quantised while they load: none, fp8 (8 bits) or int4 (4 bits)")
      ->check(CLI::IsMember({"none", "fp8", "int4"}));
  app->add_option("--max-model-len", base.max_model_len, "prompt and output tokens of a request [the model's]")
      ->check(positive());
  app->add_option("--max-num-seqs", base.max_num_seqs, "requests that run at once [" + slots + "]")->check(positive());
  app->add_option(
         "--memory-fraction", base.memory_fraction,
         "share of the free memory that weights and KV pages may take [0.9 on CUDA; on the CPU KV pages take at most "
         "half of what weights leave]")
      ->check(CLI::Range(0.01, 1.0));
}

void add_text_options(CLI::App* app, EngineFlags* flags) {
  TextFlags& text = flags->text;
  const GroupOfHelp group(app, "Model");
  app->add_option("--chat-template", text.chat_template, "a Jinja template instead of the model's own")
      ->check(not_empty())
      ->type_name("FILE");
  app->add_option("--default-chat-template-kwargs", text.template_kwargs,
                  "variables of the template for every chat; those of a request count before them")
      ->check(json_object())
      ->type_name("JSON");
  app->add_option_function<std::string>(
         "--generation-config",
         [&text](const std::string& source) { text.generation_config = source == "vllm" ? "none" : source; },
         "defaults of sampling: auto (the model's generation_config.json), none (temperature 1, all tokens), or a "
         "folder that has another such file [auto]")
      ->check(not_empty())
      ->type_name("auto|none|DIR");
  app->add_option("--override-generation-config", text.sampling_overrides,
                  "fields that count before it, such as {\"temperature\": 0.5}")
      ->check(generation_overrides())
      ->type_name("JSON");
}

void add_tensor_parallel_options(CLI::App* app, int* ranks, int* parts, bool* by_expert) {
  app->add_option("--tensor-parallel-size", *ranks,
                  "ranks that share every weight matrix and the KV heads: 1, 2, 4 or 8; on CUDA a GPU each, from "
                  "--device on; on the CPU they share --threads [1]")
      ->check(between(1, 8, "1, 2, 4 or 8"))
      ->check(CLI::IsMember({1, 2, 4, 8}));
  app->add_option("--tensor-parallel-parts", *parts,
                  "compute in so many parts, 1, 2, 4 or 8, whatever the ranks: with one number of parts tokens are the "
                  "same on 1, 2 and more GPUs, at a cost [--tensor-parallel-size]")
      ->check(between(1, 8, "1, 2, 4 or 8"))
      ->check(CLI::IsMember({1, 2, 4, 8}));
  app->add_flag(
      "--enable-expert-parallel", *by_expert,
      "these ranks divide the experts of a mixture among them, instead of the inner width of each expert; with "
      "one rank the replicas of --data-parallel-size do");
}

void add_data_parallel_option(CLI::App* app, int* replicas) {
  app->add_option("--data-parallel-size", *replicas,
                  "replicas of the models, on CUDA on a GPU each; sizes below are a replica's, but for --max-queue [1]")
      ->check(between(1, 256, "a number of replicas from 1 to 256"));
}

namespace {

void add_node_options(CLI::App* app, EngineOptions* options) {
  app->add_option("--nnodes", options->nnodes,
                  "processes, one a machine, that have equal parts of the ranks of --tensor-parallel-size; all are "
                  "started with the same options but for --node-rank; on GPUs they need NCCL [1]")
      ->check(between(1, 8, "a number of nodes from 1 to 8"));
  app->add_option("--node-rank", options->node_rank,
                  "which of them this is; 0 has the server, the others compute for it [0]")
      ->check(between(0, 7, "a number of a node from 0 to 7"));
  app->add_option("--master-addr", options->master_addr,
                  "node 0's address, where it listens for the others; without a password: in a trusted network only")
      ->type_name("HOST")
      ->check(not_empty());
  app->add_option("--master-port", options->master_port, "its port for that [29501]")
      ->check(between(1, 65535, "a port from 1 to 65535"));
  // What is an address has been translated into the two above: here it is for the help, and to say what it must be.
  app->add_option_function<std::string>(
         std::string(kDistInitAddr), [](const std::string&) {}, "both as SGLang writes them")
      ->type_name("HOST:PORT")
      ->check(CLI::Validator(
          [](std::string& text) {
            return split_address(text) ? "" : text + " is not an address and a port, as in gpu-1:29501";
          },
          ""));
}

}  // namespace

void add_engine_options(CLI::App* app, EngineFlags* flags) {
  EngineOptions& base = flags->base;
  const GroupOfHelp group(app, "Engine");
  app->add_option_function<std::string>(
         "--kv-cache-dtype", [&base](const std::string& name) { base.kv_cache_dtype = kv_cache_type(name); },
         "of cached keys and values: auto (as --dtype), bfloat16, float32, or fp8 (e4m3)")
      ->check(kv_cache_is_built())
      ->check(CLI::IsMember({"auto", "bfloat16", "float32", "fp8", "fp8_e4m3"}));
  const auto backends = CLI::IsMember({"auto", "wgmma", "portable", "plain"});
  app->add_option("--attention-backend", base.attention_backend,
                  "CUDA: attention of the target: auto, wgmma (Hopper), portable or plain (slow)")
      ->check(backends);
  app->add_option("--draft-attention-backend", base.draft_attention_backend, "CUDA: the same for the drafter")
      ->check(backends);
  app->add_option("--threads", base.threads, "threads that compute [the cores this process may use]")
      ->check(between(1, 1024, "a number of threads from 1 to 1024"));
  add_tensor_parallel_options(app, &base.tensor_parallel_size, &base.tensor_parallel_parts,
                              &base.enable_expert_parallel);
  add_data_parallel_option(app, &base.data_parallel_size);
  add_node_options(app, &base);
  app->add_option("--draft-window", base.draft_window, "last context positions that the drafter sees [all]")
      ->check(positive());
  app->add_option_function<std::string>(
         "--draft-quantization",
         [&base](const std::string& name) { base.draft_quantization = draft_quantization(name); },
         "the drafter's weights: fp8, none, or auto (fp8 on GPUs of compute capability 9.0 in bfloat16; on the CPU as "
         "--quantization); the text is the same")
      ->check(CLI::IsMember({"auto", "none", "fp8"}));
  app->add_option_function<std::string>(
         "--draft-window-mask", [&base](const std::string& name) { base.draft_window_mask = draft_window_mask(name); },
         "what the drafter's sliding-window layers see inside a block: causal, bidirectional, or auto (as its "
         "config.json says); the text is the same")
      ->check(CLI::IsMember({"auto", "causal", "bidirectional"}));
  app->add_option("--page-size", base.page_size, "KV positions a page, a multiple of 16 [16; on CUDA 64]")
      ->check(positive());
  app->add_option("--kv-pages", base.kv_pages,
                  "pages of KV memory, cached prefixes too; sliding windows get theirs beside them [full contexts of "
                  "--max-num-seqs requests; at least 2 GiB, or with "
                  "--memory-fraction and on CUDA half of what that leaves; never more than may be had]")
      ->check(between(1, 1e12, "a whole number from 1 to 10^12"));
  app->add_flag_callback(
      "--no-graphs", [&base] { base.graphs = false; }, "CUDA: launch every kernel instead of replaying recorded steps");
  app->add_flag_callback(
      "--exact", [] {},
      "tokens do not depend on what else runs, on any device: the only mode there is, and the default");
  app->add_flag("--profile", base.profile, "CUDA: measure the phases of the round; slower, one step at a time");
  app->add_option("--prefill-chunk", base.prefill_chunk, "most prompt tokens of one request a step [512; on CUDA 2048]")
      ->check(positive());
  app->add_option(
         "--target-step-ms", base.target_step_ms,
         "milliseconds that a step may take when prompts are computed beside requests that decode; 0: no bound "
         "[500; on CUDA 50]")
      ->check(between(0, 3'600'000, "milliseconds from 0 to 3600000"));
  app->add_option("--cost-cache", flags->cost_cache,
                  "folder that keeps what a step was measured to cost, or none [$XDG_CACHE_HOME/volley, else "
                  "~/.cache/volley]")
      ->check(not_empty())
      ->type_name("DIR|none");
  app->add_flag_callback(
      "--no-prefix-cache", [&base] { base.prefix_cache = false; }, "do not share the KV of equal prompt beginnings");
  app->add_option(
         "--state-snapshot-tokens", base.state_snapshot_tokens,
         "tokens of a prompt between snapshots of recurrent layers, from which others can go on; rounded up to "
         "pages [--prefill-chunk]")
      ->check(positive());
  app->add_option_function<int64_t>(
         "--state-snapshot-memory-mb", [&base](int64_t mb) { base.state_snapshot_memory_bytes = mb << 20; },
         "megabytes that these snapshots may take [two for each of --max-num-seqs, in at most a quarter of what "
         "weights "
         "and states leave]")
      ->check(between(1, 1e7, "megabytes from 1 to 10000000"));
  app->add_flag_callback(
      "--no-mmap", [&base] { base.mmap = false; },
      "read the weight files into memory instead of mapping them: for network disks, and files that others may change");
  app->add_option("--step-timeout", base.step_timeout_s,
                  "seconds that a step may take; a device that needs longer hangs, and the process ends; 0: no limit "
                  "[1800; on CUDA 4 and more for what it computes, with --nnodes 60]")
      ->check(between(0, 1e6, "a number of seconds from 0 to 1000000"))
      ->type_name("SECONDS");
  app->add_flag(
      "--restart-on-device-error", base.restart_on_device_error,
      "compute in a process of its own; when the device fails or hangs, or that process ends, load the models "
      "again and go on with every request");
  app->add_option("--grammar-compile-timeout-ms", base.grammar_compile_timeout_ms,
                  "milliseconds that compiling one grammar may take [2000]")
      ->check(between(1, 3'600'000, "milliseconds from 1 to 3600000"));
  app->add_option_function<int64_t>(
         "--grammar-memory-mb", [&base](int64_t mb) { base.grammar_memory_bytes = mb << 20; },
         "megabytes that grammars may take, kept ones and those of running requests [1024]")
      ->check(between(1, 1e6, "megabytes from 1 to 1000000"));
  app->add_option("--grammar-mask-timeout-ms", base.grammar_mask_timeout_ms,
                  "milliseconds that a grammar may compute in a step to say which tokens may follow [250]")
      ->check(between(1, 3'600'000, "milliseconds from 1 to 3600000"));
  app->add_option("--max-num-batched-tokens", base.max_num_batched_tokens,
                  "rows of one target pass [every slot's block and a prefill chunk]")
      ->check(positive());
  app->add_option("--dummy-weights", base.dummy_weights,
                  "random weights of this seed: only config.json is read; the texts mean nothing")
      ->check(seed())
      ->type_name("SEED");
  app->add_option_function<std::string>(
         "--simulate-routing", [&base](const std::string&) { base.simulate_routing = true; },
         "choose the experts of a mixture at random, independent of one another; the texts mean nothing")
      ->check(CLI::IsMember({"uniform"}));
  app->add_option("--simulate-confidence-odds", flags->confidence_odds,
                  "of simulated acceptance: the drafter says P with its odds multiplied by this [1]")
      ->check(between(1e-6, 1e6, "from 0.000001 to 1000000"))
      ->type_name("X");
}

void add_speculation_options(CLI::App* app, EngineFlags* flags) {
  const GroupOfHelp group(app, "Speculation");
  app->add_option_function<std::string>(
         "--spec", [flags](const std::string& name) { flags->speculation = speculation_of(name); },
         "how tokens are drafted: dflash or off [dflash where there is a drafter]")
      ->check(CLI::IsMember({"dflash", "off"}));
  app->add_option("--block-size", flags->base.block_size, "tokens of a block at most, from 2 up [the drafter's own]")
      ->check(between(2, 1024, "a block size from 2 to 1024"));
  app->add_option_function<std::string>(
         "--verify", [flags](const std::string& text) { flags->base.verify = verify_option(text); },
         "drafted tokens of a request that a step verifies: auto (what gives the most tokens a second), full blocks, "
         "or "
         "a number; the tokens of an answer are the same [auto]")
      ->type_name("auto|full|N");
  app->add_option_function<std::string>(
         "--simulate-acceptance",
         [flags](const std::string& text) {
           auto parsed = parse_simulation(text);
           if (!parsed.ok()) throw CLI::ValidationError("--simulate-acceptance", parsed.error().message);
           flags->simulations = {std::move(*parsed)};
         },
         "position i of a block is accepted with P^i, another P from a decoding step of the request on; the texts mean "
         "nothing")
      ->type_name("geometric:P[+STEP:P...]");
}

Status check_engine(const EngineFlags& flags) {
  if (flags.base.page_size % 16 != 0) {
    return invalid_argument("--page-size " + std::to_string(flags.base.page_size) +
                            " is not a multiple of 16: take 16, 32 or 64");
  }
  if (flags.speculation == Speculation::kOff && flags.base.block_size != 0) {
    return invalid_argument("--block-size needs a drafter: leave it out, or leave out --spec off");
  }
  if (flags.speculation == Speculation::kOff && flags.base.verify.kind != VerifyPolicy::Kind::kAuto) {
    return invalid_argument("--verify needs a drafter: leave it out, or leave out --spec off");
  }
  if (flags.confidence_odds != EngineFlags{}.confidence_odds && flags.simulations.empty()) {
    return invalid_argument("--simulate-confidence-odds is part of --simulate-acceptance: add that, or leave it out");
  }
  return {};
}

void add_sampling_options(CLI::App* app, RequestSettings* settings, const std::string& group) {
  app->add_option("--temperature", settings->temperature, "0 takes the likeliest token")
      ->check(between(0, 100, "a temperature from 0 to 100"))
      ->group(group);
  app->add_option("--top-p", settings->top_p, "likeliest tokens that reach this probability")
      ->check(between(1e-30, 1, "above 0 and at most 1"))
      ->group(group);
  app->add_option("--top-k", settings->top_k, "the k likeliest tokens; 0 or -1: all")
      ->check(between(-1, std::numeric_limits<int32_t>::max(), "a whole number from -1 to 2147483647"))
      ->group(group);
  app->add_option("--min-p", settings->min_p, "tokens at least this likely beside the likeliest")
      ->check(between(0, 1, "from 0 to 1"))
      ->group(group);
  app->add_option("--repetition-penalty", settings->repetition_penalty, "for tokens of prompt and output; 1: none")
      ->check(between(0.01, 100, "a penalty from 0.01 to 100"))
      ->group(group);
  app->add_option("--presence-penalty", settings->presence_penalty, "once for a token of the output")
      ->check(between(-2, 2, "from -2 to 2"))
      ->group(group);
  app->add_option("--frequency-penalty", settings->frequency_penalty, "for each time a token is in the output")
      ->check(between(-2, 2, "from -2 to 2"))
      ->group(group);
  app->add_option("--seed", settings->seed, "the same seed gives the same tokens [drawn for each request]")
      ->check(seed())
      ->group(group);
  app->add_flag_callback(
         "--ignore-eos", [settings] { settings->ignore_eos = true; }, "go on after the end-of-sequence token")
      ->group(group);
}

}  // namespace volley::apps
