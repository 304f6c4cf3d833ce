// The options of `volley serve`, and that its guide names each.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>

#include "apps/cli/parse_for_test.h"

namespace volley::apps {
namespace {

using namespace std::chrono_literals;

Result<Command> parse_serve(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "serve");
  return parse(std::move(arguments));
}

TEST(ServeOptions, ReachTheServer) {
  const auto command = command_of<ServeCommand>(
      parse_words("serve --host ::1 --port 0 --served-model-name a --tool-call-parser llama "
                  "--reasoning-parser none --refuse-hosted-tools --api-key-file keys --cors-origin "
                  "https://a.example --allowed-hosts a.example,b.example --allow-image-hosts c.example,d.example "
                  "--log-format json --log-level "
                  "warning --log-prompts --prefix-cache-per-key --open-json-objects --max-queue 7 --max-n 2 "
                  "--max-choices 3 --max-response-bytes 2000 --max-stored-responses 0 --max-stored-bytes "
                  "3000 --max-body-bytes 1000 --max-total-body-bytes 5000 --max-total-response-bytes 6000 "
                  "--request-timeout 5 --receive-timeout 6 --idle-timeout 8 --drain-timeout 0"));
  const serve::ServerOptions& server = command.server;
  EXPECT_EQ(server.host, "::1");
  EXPECT_EQ(server.port, 0);
  EXPECT_EQ(server.served_model_names, std::vector<std::string>{"a"});
  EXPECT_EQ(server.tool_call_parser, "llama");
  EXPECT_EQ(server.reasoning_parser, "none");
  EXPECT_TRUE(server.refuse_hosted_tools);
  EXPECT_EQ(server.cors_origins, std::vector<std::string>{"https://a.example"});
  EXPECT_EQ(server.allowed_hosts, (std::vector<std::string>{"a.example", "b.example"}));
  EXPECT_EQ(command.image_hosts, (std::vector<std::string>{"c.example", "d.example"}));
  EXPECT_EQ(server.log_format, serve::LogFormat::kJson);
  EXPECT_TRUE(server.log_prompts);
  EXPECT_TRUE(server.prefix_cache_per_key);
  EXPECT_TRUE(server.open_json_objects);
  EXPECT_EQ(server.max_n, 2);
  EXPECT_EQ(server.max_choices, 3);
  EXPECT_EQ(server.max_response_bytes, 2000u);
  EXPECT_EQ(server.max_stored_responses, 0u);
  EXPECT_EQ(server.max_stored_bytes, 3000u);
  EXPECT_EQ(server.max_body_bytes, 1000u);
  EXPECT_EQ(server.max_total_body_bytes, 5000u);
  EXPECT_EQ(server.max_total_response_bytes, 6000u);
  EXPECT_EQ(server.request_timeout, 5s);
  EXPECT_EQ(server.receive_timeout, 6s);
  EXPECT_EQ(server.idle_timeout, 8s);
  EXPECT_EQ(command.engine.base.max_queue, 7);
  EXPECT_EQ(command.api_key_file, "keys");
  EXPECT_EQ(command.log_level, "warning");
  EXPECT_EQ(command.drain_timeout_s, 0);
  EXPECT_EQ(std::get<ServeCommand>(*parse_serve({})).server.request_timeout, 0s) << "no limit unless asked for";
}

// The default can also be given.
TEST(ServeOptions, BoundsOfFilesMayBeLarge) {
  const auto files =
      command_of<ServeCommand>(parse_words("serve --max-files-bytes 17179869184 --max-file-bytes 4294967296")).files;
  EXPECT_EQ(files.max_total_bytes, size_t{16} << 30);
  EXPECT_EQ(files.max_file_bytes, size_t{4} << 30);
}

// More choices than the queue holds could never be queued.
TEST(ServeOptions, ARequestFitsIntoTheQueue) {
  const auto max_choices = [](const std::vector<const char*>& arguments) {
    return std::get<ServeCommand>(*parse_serve(arguments)).server.max_choices;
  };
  EXPECT_EQ(max_choices({"--max-queue", "1"}), 1);
  EXPECT_EQ(max_choices({"--max-queue", "5", "--max-choices", "8"}), 5);
  EXPECT_EQ(max_choices({}), 1024);
}

TEST(ServeOptions, CacheEventsAreAnObject) {
  const auto events =
      command_of<ServeCommand>(
          parse_serve(
              {"--kv-events-config", R"({"enable_kv_cache_events": true, "endpoint": "ipc:///tmp/x", "topic": "t"})"}))
          .cache_events;
  EXPECT_TRUE(events.enabled);
  EXPECT_EQ(events.endpoint, "ipc:///tmp/x");
  EXPECT_EQ(events.topic, "t");
  EXPECT_FALSE(std::get<ServeCommand>(*parse_serve({})).cache_events.enabled);
  const std::string wrong = refusal(parse_serve({"--kv-events-config", R"({"endpont": "x"})"}));
  EXPECT_NE(wrong.find("--kv-events-config"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("endpont"), std::string::npos) << wrong;
}

TEST(ServeOptions, KeysTextAndTls) {
  const auto command = command_of<ServeCommand>(
      parse_words(R"(serve --api-key a --api-key b,c --chat-template t --default-chat-template-kwargs {"a":1,"b":2}
                     --generation-config vllm --override-generation-config {"top_k":5} --ssl-certfile c
                     --ssl-keyfile k --ssl-ca-certs ca --ssl-cert-reqs 2)"));
  EXPECT_EQ(command.api_keys, (std::vector<std::string>{"a", "b,c"}));
  EXPECT_EQ(command.engine.text.chat_template, "t");
  EXPECT_EQ(command.engine.text.template_kwargs, R"({"a":1,"b":2})");
  EXPECT_EQ(command.engine.text.generation_config, "none");
  EXPECT_EQ(command.engine.text.sampling_overrides, R"({"top_k":5})");
  ASSERT_TRUE(command.server.tls);
  EXPECT_EQ(command.server.tls->certificate, "c");
  EXPECT_EQ(command.server.tls->key, "k");
  EXPECT_EQ(command.server.tls->client_authorities, "ca");
  EXPECT_EQ(command.server.tls->client_certificate, serve::TlsOptions::ClientCertificate::kRequired);
  EXPECT_FALSE(std::get<ServeCommand>(*parse_serve({})).server.tls);
}

// A certificate without its key serves no HTTPS.
TEST(ServeOptions, TlsNeedsItsParts) {
  for (const std::string words :
       {"--ssl-keyfile k", "--ssl-certfile c --ssl-cert-reqs required", "--ssl-certfile c --ssl-ca-certs ca",
        "--ssl-cert-reqs 3", "--default-chat-template-kwargs [1]", R"(--override-generation-config {"top_k":1.5})",
        R"(--override-generation-config {"max_new_tokens":5})"}) {
    EXPECT_FALSE(parse_words("serve " + words).ok()) << words;
  }
}

TEST(ServeOptions, RefusesWhatIsOutOfRange) {
  for (const std::string words :
       {"--max-n 0", "--request-timeout -1", "--idle-timeout 0", "--log-format xml", "--log-level loud"}) {
    EXPECT_FALSE(parse_words("serve " + words).ok()) << words;
  }
  EXPECT_FALSE(parse_serve({"--api-key-file", ""}).ok());
}

// Internals are explained by --help-all alone.
TEST(ServeOptions, TheGuideNamesEveryOne) {
  const std::string help = std::get<PrintAndExit>(*parse_serve({"--help"})).text;
  std::ifstream file("docs/serving.md");
  ASSERT_TRUE(file);
  const std::string guide{std::istreambuf_iterator<char>(file), {}};
  const std::regex option("--[a-z][a-z-]+");
  int count = 0;
  for (std::sregex_iterator it(help.begin(), help.end(), option), end; it != end; ++it, ++count) {
    EXPECT_TRUE(it->str().starts_with("--help") || guide.find(it->str()) != std::string::npos) << it->str();
  }
  EXPECT_GT(count, 40);
}

}  // namespace
}  // namespace volley::apps
