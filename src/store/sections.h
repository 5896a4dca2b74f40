// The container of a session file: a preamble, then sections with a tag, a length and checksums, so that
// damage is found before anything is done with a byte, and later versions can add to the file. Little-endian:
//
//   preamble  magic (8), version u32, kind u32, bytes of the whole file u64, checksum u64 of these 24 bytes
//   section   tag (4), flags u32 (bit 0: may be passed over), payload bytes u64, checksum u64 of these 16,
//             then the payload in pieces of 1 MiB, the last one shorter, each followed by its checksum u64;
//             with bit 1, since version 3: the payload as it is from the next multiple of 4096 on, zeros before
//             it and up to the next such multiple behind it; the section after it has its checksums
//
// Checksums are XXH3-64 seeded with the file offset of what they cover, so that a piece elsewhere is damage
// too. A reader passes over a section that it does not know if the flag allows it, and refuses the file if
// not. A section of fields may grow at its end; an older reader goes on while what was added is zero.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/error.h"
#include "src/memory/less.h"
#include "src/store/byte_stream.h"

namespace wi {

enum class FileKind : uint32_t { session = 1, kv = 2 };

constexpr uint32_t kSessionFileVersion = 3, kOldestSessionFile = 2;  // written; read as well
constexpr uint64_t kPreambleBytes = 32, kSectionHeaderBytes = 24, kChecksumBytes = 8;
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr uint64_t kAlignedBytes = 4096;  // of the file's blocks, as reads past the page cache want them

// Fields one after another without padding.
class FieldWriter {
 public:
  virtual ~FieldWriter() = default;
  virtual void raw(const void* data, size_t bytes) = 0;
  // Bytes that are not in reach: fetch(offset, to, count) copies some of them, in order.
  using Fetch = std::function<void(uint64_t offset, void* to, size_t count)>;
  virtual void fetched(uint64_t bytes, const Fetch& fetch) = 0;
  void u32(uint32_t value) { little_endian(value, 4); }
  void u64(uint64_t value) { little_endian(value, 8); }
  void i32(int32_t value) { u32(static_cast<uint32_t>(value)); }
  void i64(int64_t value) { u64(static_cast<uint64_t>(value)); }
  void f32(float value);
  void text(std::string_view value);  // its length as u32, then its bytes
  void zeros(size_t bytes);

 private:
  void little_endian(uint64_t value, size_t bytes);
};

class FieldReader {
 public:
  virtual ~FieldReader() = default;
  virtual void raw(void* to, uint64_t bytes, const char* field) = 0;
  uint32_t u32(const char* field) { return static_cast<uint32_t>(little_endian(4, field)); }
  uint64_t u64(const char* field) { return little_endian(8, field); }
  int32_t i32(const char* field) { return static_cast<int32_t>(u32(field)); }
  int64_t i64(const char* field) { return static_cast<int64_t>(u64(field)); }
  float f32(const char* field);

 private:
  uint64_t little_endian(size_t bytes, const char* field);
};

// Fields in memory, for what has a form of its own within a section.
class MemoryWriter final : public FieldWriter {
 public:
  void raw(const void* data, size_t bytes) override { fields.append(static_cast<const char*>(data), bytes); }
  void fetched(uint64_t bytes, const Fetch& fetch) override;
  std::string fields;
};
class MemoryReader final : public FieldReader {
 public:
  explicit MemoryReader(std::string_view fields) : fields_(fields) {}
  void raw(void* to, uint64_t bytes, const char* field) override;
  size_t left() const { return fields_.size(); }

 private:
  std::string_view fields_;
};

// Counts what is written.
class FieldCount final : public FieldWriter {
 public:
  void raw(const void*, size_t bytes) override { bytes_ += bytes; }
  void fetched(uint64_t bytes, const Fetch&) override { bytes_ += bytes; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};

class SectionWriter final : private FieldWriter {
 public:
  enum class Need { required, optional };

  SectionWriter() = default;  // writes nowhere, to know bytes() beforehand
  SectionWriter(ByteSink& to, const std::atomic<bool>* cancel);
  void preamble(FileKind kind, uint64_t file_bytes);
  // body(FieldWriter&) runs twice: lengths come first.
  template <class Body>
  void section(std::string_view tag, const Body& body, Need need = Need::required) {
    FieldCount count;
    body(static_cast<FieldWriter&>(count));
    if (to_) {
      open(tag, need, count.bytes());
      body(static_cast<FieldWriter&>(*this));
      if (filled_ > 0) flush_piece();
    } else {
      offset_ += kSectionHeaderBytes + stored_bytes(count.bytes());
    }
  }
  // A section that lies as it is at a multiple of kAlignedBytes. body(put) runs once, if at all: put(data, bytes)
  // takes its pieces in order.
  template <class Body>
  void aligned(std::string_view tag, uint64_t bytes, const Body& body) {
    if (!to_) {
      offset_ = aligned_end(offset_ + kSectionHeaderBytes, bytes);
      return;
    }
    open(tag, Need::required, bytes, true);
    put_zeros();
    body([this](const void* data, size_t count) { put_long(data, count); });
    put_zeros();
  }
  bool measures() const { return !to_; }
  uint64_t bytes() const { return offset_; }
  // Bytes that a payload takes with its checksums.
  static uint64_t stored_bytes(uint64_t payload_bytes) {
    return payload_bytes +
           (payload_bytes / kPieceBytes + (payload_bytes % kPieceBytes != 0)) * kChecksumBytes;
  }

 private:
  void raw(const void* data, size_t bytes) override;
  void fetched(uint64_t bytes, const Fetch& fetch) override;
  template <class Fill>  // fill(offset, to, count)
  void in_pieces(uint64_t bytes, const Fill& fill);
  void open(std::string_view tag, Need need, uint64_t payload_bytes, bool aligned = false);
  void flush_piece();
  void put(const void* data, size_t bytes);
  void put_long(const void* data, size_t bytes);
  void put_zeros();  // up to a multiple of kAlignedBytes
  static uint64_t aligned_end(uint64_t header_end, uint64_t payload_bytes);

  ByteSink* to_ = nullptr;
  const std::atomic<bool>* cancel_ = nullptr;
  std::vector<unsigned char> piece_;  // with room for its checksum
  size_t filled_ = 0;                 // of it
  uint64_t offset_ = 0;
};

// Hands out verified bytes only. Holds one piece; whatever else is allocated is allocated by the caller, who
// knows by left() that the file has as much.
class SectionReader final : public FieldReader {
 public:
  // WI_E_FORMAT for what is no such file, of another version, damaged, cut or of another kind.
  SectionReader(ByteSource& from, FileKind kind, const std::atomic<bool>* cancel);

  uint32_t version() const { return version_; }

  // The next section, which must have this tag.
  void open(std::string_view tag);
  bool open_if_any(std::string_view tag);                          // false: the file ends here
  uint64_t left() const { return left_ + (piece_.size() - at_); }  // of the section
  // The section's end. What is left of it was added by a later version, and may be only zeros.
  void close();
  void skip(std::string_view tag);  // a section nobody needs; damage in it is found all the same
  void end();                       // the file's

  // The next section, which must have this tag and lie as it is in the file; returns where. Its bytes are
  // handed out unverified, or left where they are.
  uint64_t open_aligned(std::string_view tag);
  void unverified(void* to, uint64_t bytes, const char* field);
  void leave();          // what is left of it
  void close_aligned();  // its end

  void raw(void* to, uint64_t bytes, const char* field) override;
  // The same for what is not in reach: put(offset, from, count) takes some of the bytes, in order.
  template <class Put>
  void handed(uint64_t bytes, const char* field, const Put& put) {
    check_left(bytes, field);
    for (uint64_t done = 0; done < bytes;) {
      const std::span<const unsigned char> here = next(bytes - done, field);
      put(done, here.data(), here.size());
      done += here.size();
    }
  }
  std::string text(const char* field, uint32_t most_bytes);

  template <class... Parts>
  void require(bool holds, const char* field, const Parts&... parts) const {
    check(holds, WI_E_FORMAT, field, " before byte ", offset(), parts...);
  }
  uint64_t offset() const { return offset_ - (piece_.size() - at_); }
  uint64_t left_of_all() const { return less(from_.bytes(), offset()); }
  void expect(uint64_t offset, uint64_t bytes) { from_.expect(offset, bytes); }
  void poll() const {
    check(!cancel_ || !cancel_->load(std::memory_order_relaxed), WI_E_CANCELLED, "cancelled");
  }

 private:
  bool next_header();  // false at the end of the file
  bool next_known();
  bool has_next();
  void pass();
  void check_left(uint64_t bytes, const char* field) const;
  std::span<const unsigned char> next(uint64_t most_bytes, const char* field);  // at least one
  void next_piece(const char* field);
  void read_piece(unsigned char* to, size_t bytes, const char* field);
  void skip_zeros();  // up to a multiple of kAlignedBytes
  void get(void* to, uint64_t bytes, const char* what);

  ByteSource& from_;
  const std::atomic<bool>* cancel_;
  uint64_t offset_ = 0;  // of the next byte to be read
  uint64_t start_ = 0;   // of the open section
  std::string tag_;      // its tag, printable
  uint32_t version_ = 0;
  bool optional_ = false, aligned_ = false;
  bool ahead_ = false;  // its header is read, and nobody has opened it
  uint64_t left_ = 0;   // payload bytes after piece_
  std::vector<unsigned char> piece_;
  size_t at_ = 0;  // in piece_
};

}  // namespace wi
