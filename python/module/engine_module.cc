// volley._engine: the public C++ API as Python sees it, one to one. What users meet is src/volley/*.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>
#include <volley/chat.h>
#include <volley/engine.h>

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "apps/cli/known_drafters.h"
#include "apps/cli/verify_spec.h"
#include "module/gil.h"
#include "module/session.h"
#include "module/warning_log.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace volley::python {
namespace {

// An Error on its way through nanobind to the classes of volley/_errors.py.
struct EngineException : std::runtime_error {
  explicit EngineException(const Error& error) : std::runtime_error(error.message), code(error_code_name(error.code)) {}
  const char* code;
};

void raise_in_python(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const EngineException& error) {
    const nb::object type = nb::module_::import_("volley._errors").attr("error_class")(error.code);
    PyErr_SetObject(type.ptr(), type(error.what(), error.code).ptr());
  }
}

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw EngineException(result.error());
  return std::move(result).value();
}

void check(const Status& status) {
  if (!status.ok()) throw EngineException(status.error());
}

// Marks attributes that may be None.
const auto kOptional = nb::for_setter(nb::arg("value").none());

// "EngineInfo(architecture='…', …)": all attributes, in the order in which they are bound.
std::string describe(nb::handle self) {
  std::string text = nb::cast<std::string>(self.type().attr("__name__")) + "(";
  const char* separator = "";
  for (nb::handle name : self.type().attr("__dict__")) {
    const auto attribute = nb::cast<std::string>(name);
    if (attribute.starts_with('_')) continue;
    text += separator + attribute + "=" + nb::cast<std::string>(nb::repr(self.attr(attribute.c_str())));
    separator = ", ";
  }
  return text + ")";
}

// A word of the option's, as users write it. std::invalid_argument, which is a ValueError, lists what may be said.
template <typename T>
T value_of_word(const EngineOption<T>& option, const std::string& text) {
  std::string list;
  for (const auto& word : option.words) {
    if (word.text == text) return T(word.value);
    list.append(list.empty() ? "" : ", ").append(word.text);
  }
  throw std::invalid_argument(option.field_name + (" is '" + text) + "': it must be one of " + list);
}

template <typename T>
void bind_option(nb::class_<EngineOptions>& options, const EngineOption<T>& option) {
  if constexpr (std::is_same_v<T, std::optional<uint64_t>>) {
    options.def_rw(option.field_name, option.field, kOptional);
  } else if constexpr (std::is_same_v<T, VerifyPolicy>) {
    options.def_prop_rw(
        option.field_name, [option](const EngineOptions& self) { return apps::verify_name(self.*option.field); },
        [option](EngineOptions& self, const std::string& text) {
          const auto policy = apps::parse_verify(text);
          if (!policy.ok()) throw std::invalid_argument("verify: " + policy.error().message);
          self.*option.field = *policy;
        });
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, std::string>) {
    if (option.words.empty()) {
      if constexpr (std::is_same_v<T, std::string>) options.def_rw(option.field_name, option.field);
      return;
    }
    options.def_prop_rw(
        option.field_name,
        [option](const EngineOptions& self) {
          const auto same = [&](const auto& word) { return T(word.value) == self.*option.field; };
          return std::string(std::ranges::find_if(option.words, same)->text);
        },
        [option](EngineOptions& self, const std::string& text) { self.*option.field = value_of_word(option, text); });
  } else {
    options.def_rw(option.field_name, option.field);
  }
}

void bind_options(nb::module_& m) {
  nb::class_<EngineOptions> options(m, "EngineOptions");
  options.def(nb::init<>());
  for_each_option([&](const auto& option) { bind_option(options, option); });
  nb::class_<WarningLog>(m, "WarningLog")
      .def(nb::init<>())
      .def("attach", &WarningLog::attach, "options"_a)
      .def("take", &WarningLog::take);
}

void bind_request(nb::module_& m) {
  nb::class_<SamplingParams>(m, "Sampling")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("seed", &SamplingParams::seed, kOptional)
      .def_rw("choice_index", &SamplingParams::choice_index)
      .def_rw("logprobs", &SamplingParams::logprobs)
      .def("__repr__", describe);
  nb::class_<GrammarSpec> grammar(m, "Grammar");
  nb::enum_<GrammarSpec::Kind>(grammar, "Kind")
      .value("JSON_OBJECT", GrammarSpec::Kind::kJsonObject)
      .value("JSON_SCHEMA", GrammarSpec::Kind::kJsonSchema)
      .value("REGEX", GrammarSpec::Kind::kRegex)
      .value("CHOICE", GrammarSpec::Kind::kChoice)
      .value("LARK", GrammarSpec::Kind::kLark)
      .value("EBNF", GrammarSpec::Kind::kEbnf);
  grammar.def(nb::init<>())
      .def_rw("kind", &GrammarSpec::kind)
      .def_rw("text", &GrammarSpec::text)
      .def_rw("choices", &GrammarSpec::choices);
  nb::class_<ThinkingBudget>(m, "ThinkingBudget")
      .def(nb::init<>())
      .def_rw("tokens", &ThinkingBudget::tokens)
      .def_rw("begin", &ThinkingBudget::begin)
      .def_rw("end", &ThinkingBudget::end)
      .def_rw("begun", &ThinkingBudget::begun);
  nb::class_<RepetitionDetection>(m, "RepetitionDetection")
      .def(nb::init<>())
      .def_rw("min_size", &RepetitionDetection::min_size)
      .def_rw("max_size", &RepetitionDetection::max_size)
      .def_rw("min_count", &RepetitionDetection::min_count);
  nb::class_<PromptPicture>(m, "PromptPicture")
      .def_ro("width", &PromptPicture::width)
      .def_ro("height", &PromptPicture::height);
  nb::class_<ChatPrompt>(m, "ChatPrompt")
      .def_ro("text", &ChatPrompt::text)
      .def_ro("tokens", &ChatPrompt::tokens)
      .def_ro("pictures", &ChatPrompt::pictures);
  nb::class_<GenerateRequest>(m, "Request")
      .def(nb::init<>())
      .def_rw("prompt", &GenerateRequest::prompt)
      .def_rw("pictures", &GenerateRequest::pictures)
      .def_rw("sampling", &GenerateRequest::sampling)
      .def_rw("max_tokens", &GenerateRequest::max_tokens)
      .def_rw("min_tokens", &GenerateRequest::min_tokens)
      .def_rw("ignore_eos", &GenerateRequest::ignore_eos)
      .def_rw("stop_token_ids", &GenerateRequest::stop_token_ids)
      .def_rw("stop", &GenerateRequest::stop)
      .def_rw("cache_namespace", &GenerateRequest::cache_namespace)
      .def_rw("grammar", &GenerateRequest::grammar, kOptional)
      .def_rw("prompt_logprobs", &GenerateRequest::prompt_logprobs)
      .def_rw("shares_prompt", &GenerateRequest::shares_prompt)
      .def_rw("skip_special_tokens", &GenerateRequest::skip_special_tokens)
      .def_rw("allowed_tokens", &GenerateRequest::allowed_tokens)
      .def_rw("bad_words", &GenerateRequest::bad_words)
      .def_rw("thinking", &GenerateRequest::thinking, kOptional)
      .def_rw("repetition", &GenerateRequest::repetition, kOptional)
      .def_rw("speculation", &GenerateRequest::speculation)
      .def_rw("priority", &GenerateRequest::priority)
      .def(
          "continue_text", [](GenerateRequest& request) { request.parts.emplace(); },
          "The text goes on with the prompt's: it is a completion.");
}

void bind_results(nb::module_& m) {
  nb::class_<TokenLogprob>(m, "TokenLogprob")
      .def_ro("token", &TokenLogprob::token)
      .def_ro("logprob", &TokenLogprob::logprob);
  nb::class_<PositionLogprobs>(m, "PositionLogprobs")
      .def_ro("chosen", &PositionLogprobs::chosen)
      .def_ro("top", &PositionLogprobs::top);
  nb::class_<Usage>(m, "Usage")
      .def_ro("prompt_tokens", &Usage::prompt_tokens)
      .def_ro("cached_tokens", &Usage::cached_tokens)
      .def_ro("completion_tokens", &Usage::completion_tokens)
      .def_ro("drafted_tokens", &Usage::drafted_tokens)
      .def_ro("accepted_tokens", &Usage::accepted_tokens)
      .def_ro("queue_s", &Usage::queue_s)
      .def_ro("ttft_s", &Usage::ttft_s)
      .def_ro("total_s", &Usage::total_s);
  nb::class_<Completion>(m, "Completion")
      .def_ro("index", &Completion::index)
      .def_ro("ended", &Completion::ended)
      .def_ro("tokens", &Completion::tokens)
      .def_ro("text", &Completion::text)
      .def_ro("logprobs", &Completion::logprobs)
      .def_ro("prompt_logprobs", &Completion::prompt_logprobs)
      .def_prop_ro("finish_reason", [](const Completion& c) { return finish_reason_name(c.finish.reason); })
      .def_prop_ro("stop_token", [](const Completion& c) { return c.finish.stop_token; })
      .def_prop_ro("repeated", [](const Completion& c) { return c.finish.repeated; })
      .def_prop_ro("stop_text", [](const Completion& c) { return c.finish.stop_text; })
      .def_prop_ro("tokens_per_step", [](const Completion& c) { return c.finish.tokens_per_step; })
      .def_prop_ro("usage", [](const Completion& c) { return c.finish.usage; })
      .def(
          "raise_error",
          [](const Completion& c) {
            if (c.finish.error) throw EngineException(*c.finish.error);
          },
          "Raises the error that ended the request, if one did.");
}

void bind_state(nb::module_& m) {
  nb::class_<EngineInfo>(m, "EngineInfo")
      .def_ro("architecture", &EngineInfo::architecture)
      .def_ro("device", &EngineInfo::device)
      .def_ro("dtype", &EngineInfo::dtype)
      .def_ro("instruction_set", &EngineInfo::instruction_set)
      .def_ro("vocab_size", &EngineInfo::vocab_size)
      .def_ro("max_model_len", &EngineInfo::max_model_len)
      .def_ro("drafters", &EngineInfo::drafters)
      .def_ro("block_size", &EngineInfo::block_size)
      .def_ro("quantization", &EngineInfo::quantization)
      .def_ro("draft_quantization", &EngineInfo::draft_quantization)
      .def_ro("page_size", &EngineInfo::page_size)
      .def_ro("kv_pages", &EngineInfo::kv_pages)
      .def_ro("max_num_seqs", &EngineInfo::max_num_seqs)
      .def_ro("threads", &EngineInfo::threads)
      .def_ro("tensor_parallel_size", &EngineInfo::tensor_parallel_size)
      .def_ro("expert_parallel", &EngineInfo::expert_parallel)
      .def_ro("data_parallel_size", &EngineInfo::data_parallel_size)
      .def_ro("eos_token_ids", &EngineInfo::eos_token_ids)
      .def_ro("default_sampling", &EngineInfo::default_sampling)
      .def_ro("warnings", &EngineInfo::warnings)
      .def("__repr__", describe);
  nb::class_<EngineStats::Verify>(m, "VerifyStats")
      .def_ro("steps", &EngineStats::Verify::steps)
      .def_ro("probes", &EngineStats::Verify::probes)
      .def_ro("plain", &EngineStats::Verify::plain)
      .def_ro("draft_lengths", &EngineStats::Verify::draft_lengths)
      .def_ro("rows", &EngineStats::Verify::rows)
      .def_ro("predicted_tokens", &EngineStats::Verify::predicted_tokens)
      .def_ro("predicted_s", &EngineStats::Verify::predicted_s)
      .def_ro("measured_s", &EngineStats::Verify::measured_s)
      .def_ro("verified_at", &EngineStats::Verify::verified_at)
      .def_ro("survived_at", &EngineStats::Verify::survived_at)
      .def_ro("predicted_at", &EngineStats::Verify::predicted_at)
      .def_ro("last", &EngineStats::Verify::last)
      .def("__repr__", describe);
  nb::class_<EngineStats::PageGroup>(m, "PageGroup")
      .def_ro("window", &EngineStats::PageGroup::window)
      .def_ro("total", &EngineStats::PageGroup::total)
      .def_ro("used", &EngineStats::PageGroup::used)
      .def_ro("cached", &EngineStats::PageGroup::cached)
      .def("__repr__", describe);
  nb::class_<EngineStats>(m, "EngineStats")
      .def_ro("requests_waiting", &EngineStats::requests_waiting)
      .def_ro("requests_running", &EngineStats::requests_running)
      .def_ro("requests_finished", &EngineStats::requests_finished)
      .def_ro("requests_cancelled", &EngineStats::requests_cancelled)
      .def_ro("requests_failed", &EngineStats::requests_failed)
      .def_ro("preemptions", &EngineStats::preemptions)
      .def_ro("steps", &EngineStats::steps)
      .def_ro("verify_steps", &EngineStats::verify_steps)
      .def_ro("prompt_tokens", &EngineStats::prompt_tokens)
      .def_ro("cached_tokens", &EngineStats::cached_tokens)
      .def_ro("generated_tokens", &EngineStats::generated_tokens)
      .def_ro("drafted_tokens", &EngineStats::drafted_tokens)
      .def_ro("accepted_tokens", &EngineStats::accepted_tokens)
      .def_ro("accepted_at", &EngineStats::accepted_at)
      .def_ro("drafted_at", &EngineStats::drafted_at)
      .def_ro("pages_total", &EngineStats::pages_total)
      .def_ro("pages_used", &EngineStats::pages_used)
      .def_ro("pages_cached", &EngineStats::pages_cached)
      .def_ro("page_groups", &EngineStats::page_groups)
      .def_ro("verify", &EngineStats::verify)
      .def("__repr__", describe);
}

// The engine goes when a step under way has ended, and one of a device that hangs never does: other threads go on
// meanwhile. Python drops the last reference, so this thread has its lock.
// A process that was forked from the engine's has none of its threads, for which the engine's end would wait: there it
// stays.
struct Drop {
  pid_t process = getpid();

  void operator()(Engine* engine) const {
    if (getpid() != process) return;
    const WithoutGil unlocked;
    delete engine;
  }
};

std::shared_ptr<Engine> create(const EngineOptions& options) {
  std::unique_ptr<Engine> engine;
  {
    const WithoutGil unlocked;  // minutes, for large models
    engine = value_of(Engine::create(options));
  }
  return {engine.release(), Drop{}};
}

ChatPrompt chat_prompt(const Engine& engine, const std::string& messages_json, const std::string& tools_json,
                       const std::string& template_kwargs_json, bool add_generation_prompt,
                       bool continue_final_message) {
  return value_of(ChatFormat::prompt_of(
      engine, {messages_json, tools_json, template_kwargs_json, add_generation_prompt, continue_final_message}));
}

void bind_chat(nb::module_& m) {
  const auto no_gil = nb::call_guard<WithoutGil>();
  nb::class_<ChatDelta> delta(m, "ChatDelta");
  nb::class_<ChatDelta::ToolCall>(delta, "ToolCall")
      .def_ro("index", &ChatDelta::ToolCall::index)
      .def_ro("id", &ChatDelta::ToolCall::id)
      .def_ro("name", &ChatDelta::ToolCall::name)
      .def_ro("arguments", &ChatDelta::ToolCall::arguments);
  delta.def_ro("content", &ChatDelta::content)
      .def_ro("reasoning", &ChatDelta::reasoning)
      .def_ro("tool_calls", &ChatDelta::tool_calls);
  nb::class_<ChatReader>(m, "ChatReader")
      .def(
          "read",
          [](ChatReader& reader, const Completion& c) {
            return reader.read(c.text, c.marks, c.ended ? &c.finish : nullptr);
          },
          "piece"_a);
  nb::class_<ChatFormat>(m, "ChatFormat")
      .def(
          "render",
          [](const ChatFormat& format, const std::string& messages_json, const std::string& tools_json,
             const std::string& template_kwargs_json, bool add_generation_prompt, bool continue_final_message) {
            return value_of(format.render(
                {messages_json, tools_json, template_kwargs_json, add_generation_prompt, continue_final_message}));
          },
          "messages_json"_a, "tools_json"_a, "template_kwargs_json"_a, "add_generation_prompt"_a,
          "continue_final_message"_a, no_gil)
      .def("end_tokens", &ChatFormat::end_tokens)
      .def("prepare", &ChatFormat::prepare, "request"_a, "tools"_a, "call_id_prefix"_a);
  m.def(
      "find_chat_format", [](const Engine& engine) { return value_of(ChatFormat::find(engine)); }, "engine"_a,
      nb::keep_alive<0, 1>(), nb::sig("def find_chat_format(engine: Engine) -> ChatFormat | None"),
      "None: the model's answers are one text.");
}

void bind_engine(nb::module_& m) {
  const auto no_gil = nb::call_guard<WithoutGil>();
  nb::class_<Engine>(m, "Engine")
      .def("info", [](const Engine& engine) { return EngineInfo(engine.info()); })
      .def("stats", &Engine::stats)
      .def("drop_prefix_cache", &Engine::drop_prefix_cache)
      .def(
          "encode",
          [](const Engine& engine, const std::string& text, bool special) {
            return value_of(engine.encode(text, special));
          },
          "text"_a, "add_special_tokens"_a, no_gil)
      .def(
          "decode",
          [](const Engine& engine, const std::vector<TokenId>& ids, bool skip) { return engine.decode(ids, skip); },
          "ids"_a, "skip_special_tokens"_a, no_gil)
      .def("chat_prompt", chat_prompt, "messages_json"_a, "tools_json"_a, "template_kwargs_json"_a,
           "add_generation_prompt"_a, "continue_final_message"_a, no_gil);
  nb::class_<Session>(m, "Session")
      .def(nb::init<std::shared_ptr<Engine>, bool>(), "engine"_a, "streaming"_a = false)
      .def(
          "submit",
          [](Session& session, int64_t index, const GenerateRequest& request) {
            check(session.submit(index, request));
          },
          "index"_a, "request"_a, no_gil)
      .def("open", &Session::open)
      .def("wait", &Session::wait, "seconds"_a, no_gil)
      .def_prop_ro("descriptor", &Session::descriptor)
      .def("cancel", nb::overload_cast<>(&Session::cancel), no_gil)
      .def("cancel", nb::overload_cast<int64_t>(&Session::cancel), "index"_a, no_gil);
  m.def("create", create, "options"_a, "Loads the models and starts the engine.");
  m.def("known_drafter", apps::known_drafter, "target"_a, "Its name on the Hugging Face hub.");
}

}  // namespace
}  // namespace volley::python

NB_MODULE(_engine, m) {
  m.doc() = "The engine's C++ API. Use the package volley instead.";
  nb::set_leak_warnings(false);  // what daemon threads have at the interpreter's end stays
  nb::register_exception_translator(volley::python::raise_in_python);
  volley::python::bind_options(m);
  volley::python::bind_request(m);
  volley::python::bind_results(m);
  volley::python::bind_state(m);
  volley::python::bind_engine(m);
  volley::python::bind_chat(m);
}
