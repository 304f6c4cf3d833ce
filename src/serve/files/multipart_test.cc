// Valid forms, cut at every byte, and invalid ones.
#include "serve/files/multipart.h"

#include <gtest/gtest.h>

#include <vector>

namespace volley::serve {
namespace {

struct Taken {
  std::vector<MultipartReader::Part> parts;
  std::vector<std::string> bodies;
  std::optional<ApiError> error;
};

// Feeds pieces of `size` bytes.
Taken take(const std::string& body, size_t size, const std::string& boundary = "xyz") {
  Taken taken;
  MultipartReader reader(boundary, {[&](const MultipartReader::Part& part) {
                                      taken.parts.push_back(part);
                                      taken.bodies.emplace_back();
                                      return MultipartReader::Verdict();
                                    },
                                    [&](std::string_view bytes) {
                                      taken.bodies.back() += bytes;
                                      return MultipartReader::Verdict();
                                    }});
  for (size_t at = 0; at < body.size() && !taken.error; at += size) taken.error = reader.feed(body.substr(at, size));
  if (!taken.error) taken.error = reader.finish();
  return taken;
}

std::string part(const std::string& disposition, const std::string& body, const std::string& more = "") {
  return "--xyz\r\nContent-Disposition: form-data; " + disposition + "\r\n" + more + "\r\n" + body + "\r\n";
}
const std::string kEnd = "--xyz--\r\n";

TEST(Multipart, IsTheSameHoweverItIsCut) {
  const std::string data = "{\"a\": 1}\r\n--xy\r\n\r\n--xy-\r\n-\r\n";  // near boundaries
  const std::string body = part("name=\"purpose\"", "batch") +
                           part("name=file; filename=\"a \\\"b\\\" ü.jsonl\"", data,
                                "Content-Type: application/octet-stream\r\ncontent-transfer-encoding: BINARY\r\n") +
                           part("name=\"empty\"", "") + kEnd;
  for (size_t size = 1; size <= body.size(); ++size) {
    const Taken taken = take(body, size);
    ASSERT_FALSE(taken.error) << size << " " << taken.error->message;
    ASSERT_EQ(taken.parts.size(), 3u);
    EXPECT_EQ(taken.parts[0].name, "purpose");
    EXPECT_FALSE(taken.parts[0].filename);
    EXPECT_EQ(taken.parts[1].name, "file");
    EXPECT_EQ(taken.parts[1].filename, "a \"b\" ü.jsonl");
    EXPECT_EQ(taken.bodies, (std::vector<std::string>{"batch", data, ""}));
  }
}

TEST(Multipart, RefusesWhatItCannotTellApart) {
  const std::string good = part("name=\"a\"", "1");
  const std::vector<std::string> bad = {
      "",
      "\r\n",
      "preamble\r\n" + good + kEnd,
      "--xyw\r\n",
      good,                  // no end
      good + "--xyz-",       // half of the end
      good + kEnd + "more",  // an epilogue
      "--xyzz\r\n",          // another boundary with the same beginning
      "--xyz \r\n",          // padding
      "--xyz\n\n",           // bare line ends
      part("filename=\"f\"", "1") + kEnd,
      part("name=\"a\"; name=\"b\"", "1") + kEnd,
      part("name=\"a", "1") + kEnd,
      part("name=\"a\"b\"", "1") + kEnd,
      part("name=\"a\x01\"", "1") + kEnd,
      part("name=\"\xff\"", "1") + kEnd,
      part("name", "1") + kEnd,
      part("name=\"a\"", "1", "Content-Disposition: form-data; name=\"b\"\r\n") + kEnd,
      part("name=\"a\"", "1", "Content-Transfer-Encoding: base64\r\n") + kEnd,
      part("name=\"a\"", "1", ": nameless\r\n") + kEnd,
      "--xyz\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\n1\r\n" + kEnd,
      "--xyz\r\n\r\n\r\n1\r\n" + kEnd,
      part("name=\"a\"", "1", "X: " + std::string(MultipartReader::kMaxHeaderBytes, 'x') + "\r\n") + kEnd,
      "--xyz\r\n" + std::string(100'000, 'x'),
  };
  for (const std::string& body : bad) {
    for (const size_t size : {size_t{1}, size_t{7}, body.size() + 1}) {
      const Taken taken = take(body, size);
      ASSERT_TRUE(taken.error) << body.substr(0, 200);
      EXPECT_EQ(taken.error->status, 400);
    }
  }
  std::string many;
  for (int i = 0; i <= MultipartReader::kMaxParts; ++i) many += good;
  EXPECT_TRUE(take(many + kEnd, 100).error);
}

TEST(Multipart, HeadersOfTheMostBytesAreTakenHoweverTheyAreCut) {
  const std::string disposition = "Content-Disposition: form-data; name=\"a\"\r\nX: ";
  for (const size_t more : {size_t{0}, size_t{1}}) {
    const std::string filler(MultipartReader::kMaxHeaderBytes - disposition.size() + more, 'x');
    const std::string body = "--xyz\r\n" + disposition + filler + "\r\n\r\n1\r\n" + kEnd;
    for (const size_t size : {size_t{1}, size_t{7}, body.size()}) {
      EXPECT_EQ(take(body, size).error.has_value(), more > 0) << more << " past the most, in pieces of " << size;
    }
  }
}

TEST(Multipart, KeepsNothingOfWhatHasPassed) {
  size_t seen = 0, largest = 0;
  MultipartReader reader("xyz", {[](const MultipartReader::Part&) { return MultipartReader::Verdict(); },
                                 [&](std::string_view bytes) {
                                   seen += bytes.size();
                                   largest = std::max(largest, bytes.size());
                                   return MultipartReader::Verdict();
                                 }});
  ASSERT_FALSE(reader.feed("--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n"));
  const std::string piece(4096, '\r');  // each byte may begin a boundary
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(reader.feed(piece));
  EXPECT_GE(seen, 1000 * piece.size() - 8);
  EXPECT_LE(largest, piece.size() + 8);
}

TEST(Multipart, TakesTheBoundaryThatTheHeaderNames) {
  EXPECT_EQ(MultipartReader::boundary_of("multipart/form-data; boundary=abc"), "abc");
  EXPECT_EQ(MultipartReader::boundary_of("Multipart/Form-Data;charset=utf-8; BOUNDARY=\"a b:c\""), "a b:c");
  for (const char* type :
       {"", "application/json", "multipart/mixed; boundary=a", "multipart/form-data",
        "multipart/form-data; boundary=", "multipart/form-data; boundary=\"a", "multipart/form-data; x",
        "multipart/form-data; boundary=a; boundary=b", "multipart/form-data; boundary=a\"b",
        "multipart/form-data; boundary=\"a \"", "multipart/form-data; boundary=a\\b"}) {
    EXPECT_FALSE(MultipartReader::boundary_of(type)) << type;
  }
  EXPECT_FALSE(MultipartReader::boundary_of("multipart/form-data; boundary=" + std::string(71, 'a')));
}

}  // namespace
}  // namespace volley::serve
