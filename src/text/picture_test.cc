// Protects what a model sees of a picture: the very bytes that its own preprocessing makes, or a sentence.
#include "text/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace volley::text {
namespace {

using nlohmann::json;
using std::string_literals::operator""s;
using testing::HasSubstr;

std::string base64(std::string_view text) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.find('='))) {
    bits = bits << 6 | static_cast<uint32_t>(kDigits.find(c));
    if ((count += 6) >= 8) bytes.push_back(static_cast<char>(bits >> (count -= 8)));
  }
  return bytes;
}

std::string fnv1a(const std::vector<uint8_t>& bytes) {
  uint64_t value = 0xCBF29CE484222325;
  for (const uint8_t byte : bytes) value = (value ^ byte) * 0x100000001B3;
  std::string text(17, '\0');
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  text.pop_back();
  return text;
}

PictureRules rules(int64_t least, int64_t most) {
  PictureRules rules;
  rules.min_pixels = least;
  rules.max_pixels = most;
  return rules;
}

std::string error_of(std::string_view file, PictureRules sizes = rules(3136, 40000)) {
  const auto read = read_picture(file, sizes, true, "", nullptr);
  return read.ok() ? "" : read.error().message;
}

std::map<std::string, std::string> files() {
  std::map<std::string, std::string> files;
  std::ifstream lines("tests/data/pictures.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const json picture = json::parse(line);
    files[picture.at("name")] = base64(picture.at("file").get<std::string>());
  }
  return files;
}

TEST(Picture, IsWhatPillowMakesOfIt) {
  std::ifstream lines("tests/data/pictures.jsonl");
  int pictures = 0;
  for (std::string line; std::getline(lines, line); ++pictures) {
    const json expected = json::parse(line);
    const std::string name = expected.at("name"), file = base64(expected.at("file").get<std::string>());
    const PictureRules sizes = rules(expected.at("min_pixels"), expected.at("max_pixels"));
    const auto read = read_picture(file, sizes, true, "", nullptr),
               measured = read_picture(file, sizes, false, "", nullptr);
    ASSERT_TRUE(read.ok()) << name << ": " << read.error().message;
    ASSERT_TRUE(measured.ok()) << name << ": " << measured.error().message;
    EXPECT_EQ(measured->rgb, nullptr);
    for (const PromptPicture& picture : {*read, *measured}) {
      EXPECT_EQ(picture.width, expected.at("width")) << name;
      EXPECT_EQ(picture.height, expected.at("height")) << name;
    }
    ASSERT_EQ(std::ssize(*read->rgb), int64_t{read->width} * read->height * 3) << name;
    if (expected.contains("fnv1a")) {
      EXPECT_EQ(fnv1a(*read->rgb), expected.at("fnv1a")) << name;
      continue;
    }
    const std::string rgb = base64(expected.at("rgb").get<std::string>());
    ASSERT_EQ(rgb.size(), read->rgb->size()) << name;
    int most = 0;
    for (size_t i = 0; i < rgb.size(); ++i) {
      most = std::max(most, std::abs(static_cast<uint8_t>(rgb[i]) - (*read->rgb)[i]));
    }
    EXPECT_LE(most, expected.at("near").get<int>()) << name;
  }
  EXPECT_EQ(pictures, 40);
}

// A conversation sends its pictures with every turn. Nobody learns from the time it takes what another space has read.
TEST(Picture, AFileIsReadOnceInASpace) {
  const std::string file = files().at("png-64x64");
  const auto pixels = [&](const std::string& from, PictureRules sizes, std::string_view space) {
    return read_picture(from, sizes, true, space, nullptr).value().rgb;
  };
  const PictureRules sizes = rules(3136, 40000);
  const auto first = pixels(file, sizes, "a");
  EXPECT_EQ(pixels(std::string(file), sizes, "a"), first);
  const auto others = {pixels(file, sizes, "b"), pixels(file + "x", sizes, "a"), pixels(file, rules(3136, 40001), "a")};
  for (const auto& other : others) {
    EXPECT_NE(other, first);
    EXPECT_EQ(*other, *first);
  }
  EXPECT_NE(pixels(file, rules(8192, 40000), "a")->size(), first->size());
  for (int i = 0; i < 300; ++i) pixels(file + std::to_string(i), sizes, "a");
  EXPECT_EQ(first.use_count(), 1) << "only the last files are kept";
}

// Every file that is cut or has a wrong byte is a picture or a sentence.
TEST(Picture, DamagedFilesAreRefused) {
  const auto all = files();
  for (const char* name : {"png-64x64", "jpeg-CMYK-turn-0", "jpeg-progressive", "webp-RGBA", "webp-lossy", "gif"}) {
    const std::string& file = all.at(name);
    for (size_t size = 0; size < file.size(); size += 1 + file.size() / 40) {
      const std::string error = error_of(file.substr(0, size));
      if (size < 24) {
        EXPECT_THAT(error, HasSubstr("the picture")) << name << " " << size;
      }
    }
    for (size_t at = 0; at < file.size(); at += 1 + file.size() / 60) {
      std::string wrong = file;
      wrong[at] = static_cast<char>(~wrong[at]);
      (void)error_of(wrong);
    }
  }
}

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

// A PNG whose header claims another size; its checksum is right.
std::string png_of(uint32_t width, uint32_t height) {
  std::string file = files().at("png-64x64");
  file.replace(16, 8, big_endian(width) + big_endian(height));
  uint32_t sum = ~0u;
  for (const char c : file.substr(12, 17)) {
    sum ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ (sum & 1 ? 0xEDB88320u : 0);
  }
  return file.replace(29, 4, big_endian(~sum));
}

TEST(Picture, LimitsAreSentences) {
  EXPECT_THAT(error_of(""), HasSubstr("is no file of PNG, JPEG, WebP or GIF"));
  EXPECT_THAT(error_of("<svg xmlns='http://www.w3.org/2000/svg'/>"), HasSubstr("is no file of PNG"));
  EXPECT_THAT(error_of(std::string((20 << 20) + 1, 'x')), HasSubstr("at most 20971520 are taken"));
  EXPECT_THAT(error_of(png_of(16385, 16384)), HasSubstr("16385 x 16384 pixels, and a side may have 16384"));
  EXPECT_THAT(error_of(png_of(16000, 16000)), HasSubstr("at most 64 million are taken"));
  EXPECT_THAT(error_of(png_of(2010, 10)), HasSubstr("at most 200 times the other"));
  std::string gif = files().at("gif"), jpeg = files().at("jpeg-L-turn-0");
  gif.replace(6, 4, "\x01\x40\x01\x40");
  EXPECT_THAT(error_of(gif), HasSubstr("16385 x 16385 pixels, and a side may have 16384"));
  jpeg.replace(jpeg.find("\xFF\xC0") + 5, 4, "\x20\x00\x40\x00"s);
  EXPECT_THAT(error_of(jpeg), HasSubstr("16384 x 8192 pixels, and at most 64 million"));
  EXPECT_THAT(error_of(png_of(0, 10)), HasSubstr("cannot be read as PNG"));
  EXPECT_THAT(error_of(png_of(8000, 8000)), HasSubstr("cannot be read as PNG"));  // a header that lies
  EXPECT_THAT(error_of(files().at("gif"), rules(0, 0)), HasSubstr("no sizes of pictures"));
  const std::atomic<bool> cancelled = true;
  const auto read = read_picture(files().at("png-large-is-reduced"), rules(3136, 40000), true, "cancelled", &cancelled);
  EXPECT_TRUE(read.ok() || read.error().code == ErrorCode::kCancelled);
}

}  // namespace
}  // namespace volley::text
