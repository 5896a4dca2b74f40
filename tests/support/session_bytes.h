// A saved session taken apart into sections and put together again with right lengths and checksums, by a
// second reading of the format (src/store/sections.h), so that tests reach what lies behind the checksums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include <xxhash.h>

namespace wi::test {

struct SessionBytes {
  struct Section {
    std::string tag;  // 4 bytes
    uint32_t flags = 0;
    std::string payload;
    bool aligned() const { return flags & 2; }
  };
  std::string magic = std::string("WISESS\r\n", 8);
  uint32_t version = 3, kind = 1;
  std::vector<Section> sections;

  static constexpr size_t kPiece = size_t{1} << 20, kAligned = 4096;

  // Of any bytes: what is not there is zero, what a length claims beyond the end is cut.
  explicit SessionBytes(const std::string& bytes) {
    size_t at = 0;
    const auto take = [&](size_t count) {
      std::string taken = bytes.substr(std::min(at, bytes.size()), count);
      taken.resize(count);
      at += count;
      return taken;
    };
    magic = take(8);
    version = number<uint32_t>(take(4));
    kind = number<uint32_t>(take(4));
    at = 32;
    while (at + 24 <= bytes.size()) {
      Section section;
      section.tag = take(4);
      section.flags = number<uint32_t>(take(4));
      uint64_t left = number<uint64_t>(take(8));
      at += 8;
      if (section.aligned() && version > 2) {
        at = std::min(round_up(at), bytes.size());
        section.payload = take(static_cast<size_t>(std::min<uint64_t>(left, bytes.size() - at)));
        at = round_up(at);
        left = 0;
      }
      while (left > 0 && at < bytes.size()) {
        const size_t here = static_cast<size_t>(std::min<uint64_t>({left, kPiece, bytes.size() - at}));
        section.payload += take(here);
        at += 8;
        left -= here;
      }
      sections.push_back(std::move(section));
    }
  }

  std::string bytes() const {
    std::string out = magic + raw(version) + raw(kind) + raw(uint64_t{0});
    out += raw(uint64_t{0});
    for (const Section& section : sections) {
      std::string header = section.tag + raw(section.flags) + raw(uint64_t{section.payload.size()});
      header += raw(static_cast<uint64_t>(XXH3_64bits_withSeed(header.data(), header.size(), out.size())));
      out += header;
      if (section.aligned() && version > 2) {
        out.resize(round_up(out.size()), '\0');
        out += section.payload;
        out.resize(round_up(out.size()), '\0');
        continue;
      }
      for (size_t done = 0; done < section.payload.size(); done += kPiece) {
        const std::string piece = section.payload.substr(done, kPiece);
        const uint64_t checksum = XXH3_64bits_withSeed(piece.data(), piece.size(), out.size());
        out += piece + raw(checksum);
      }
    }
    put(out, 16, uint64_t{out.size()});
    put(out, 24, static_cast<uint64_t>(XXH3_64bits_withSeed(out.data(), 24, 0)));
    return out;
  }

  static size_t round_up(size_t at) { return (at + kAligned - 1) / kAligned * kAligned; }

  Section& section(const std::string& tag, size_t nth = 0) {
    for (Section& one : sections)
      if (one.tag == tag && nth-- == 0) return one;
    std::abort();
  }

  template <class T>
  static T number(const std::string& bytes, size_t at = 0) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
  template <class T>
  static std::string raw(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  template <class T>
  static void put(std::string& bytes, size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
};

}  // namespace wi::test
