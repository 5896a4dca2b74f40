#include "src/store/sections.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <xxhash.h>

namespace wi {
namespace {

// Numbers are written byte by byte; arrays (tokens, keys, positions) as they lie in memory.
static_assert(std::endian::native == std::endian::little);

constexpr unsigned char kMagic[8] = {'W', 'I', 'S', 'E', 'S', 'S', '\r', '\n'};
constexpr uint32_t kOptional = 1, kAligned = 2;  // flags

// What this version knows, in any order. Others are a later version's.
constexpr std::string_view kTags[] = {"MODL", "SHAP", "POLI", "OPTS", "SMPL", "TEXT", "STAT", "TOKN", "LOGT",
                                      "SINK", "SEGM", "INDX", "PAGE", "SUMS", "TAIL", "PRMT", "GROW", "EXCT"};

uint64_t number_at(const unsigned char* from, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{from[i]} << 8 * i;
  return value;
}

void number_to(uint64_t value, size_t bytes, unsigned char* to) {
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<unsigned char>(value >> 8 * i);
}

// To a multiple of kAlignedBytes.
uint64_t gap_behind(uint64_t offset) { return (kAlignedBytes - offset % kAlignedBytes) % kAlignedBytes; }

uint64_t checksum_of(const unsigned char* data, size_t bytes, uint64_t offset) {
  return XXH3_64bits_withSeed(data, bytes, offset);
}

}  // namespace

// ---- writing ----

void FieldWriter::f32(float value) { u32(std::bit_cast<uint32_t>(value)); }

void FieldWriter::text(std::string_view value) {
  u32(static_cast<uint32_t>(value.size()));
  raw(value.data(), value.size());
}

void FieldWriter::zeros(size_t bytes) {
  static constexpr unsigned char kZeros[4096] = {};
  for (; bytes > 0; bytes -= std::min(bytes, sizeof kZeros)) raw(kZeros, std::min(bytes, sizeof kZeros));
}

void FieldWriter::little_endian(uint64_t value, size_t bytes) {
  unsigned char stored[sizeof value];
  bytes = std::min(bytes, sizeof stored);  // said for compilers that think of more
  number_to(value, bytes, stored);
  raw(stored, bytes);
}

void MemoryWriter::fetched(uint64_t bytes, const Fetch& fetch) {
  const size_t at = fields.size();
  fields.resize(at + static_cast<size_t>(bytes));
  fetch(0, fields.data() + at, static_cast<size_t>(bytes));
}

SectionWriter::SectionWriter(ByteSink& to, const std::atomic<bool>* cancel) : to_(&to), cancel_(cancel) {
  piece_.resize(kPieceBytes + kChecksumBytes);
}

void SectionWriter::preamble(FileKind kind, uint64_t file_bytes) {
  unsigned char bytes[kPreambleBytes];
  std::memcpy(bytes, kMagic, sizeof kMagic);
  number_to(kSessionFileVersion, 4, bytes + 8);
  number_to(static_cast<uint32_t>(kind), 4, bytes + 12);
  number_to(file_bytes, 8, bytes + 16);
  number_to(checksum_of(bytes, 24, 0), 8, bytes + 24);
  if (to_)
    put(bytes, sizeof bytes);
  else
    offset_ += sizeof bytes;
}

void SectionWriter::open(std::string_view tag, Need need, uint64_t payload_bytes, bool aligned) {
  unsigned char header[kSectionHeaderBytes] = {};
  std::memcpy(header, tag.data(), std::min<size_t>(tag.size(), 4));
  number_to((need == Need::optional ? kOptional : 0) | (aligned ? kAligned : 0), 4, header + 4);
  number_to(payload_bytes, 8, header + 8);
  number_to(checksum_of(header, 16, offset_), 8, header + 16);
  put(header, sizeof header);
}

template <class Fill>
void SectionWriter::in_pieces(uint64_t bytes, const Fill& fill) {
  for (uint64_t done = 0; done < bytes;) {
    const auto here = static_cast<size_t>(std::min<uint64_t>(bytes - done, kPieceBytes - filled_));
    fill(done, piece_.data() + filled_, here);
    done += here;
    filled_ += here;
    if (filled_ == kPieceBytes) flush_piece();
  }
}

void SectionWriter::raw(const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  in_pieces(bytes, [&](uint64_t offset, void* to, size_t count) { std::memcpy(to, from + offset, count); });
}

void SectionWriter::fetched(uint64_t bytes, const Fetch& fetch) { in_pieces(bytes, fetch); }

void SectionWriter::flush_piece() {
  number_to(checksum_of(piece_.data(), filled_, offset_), kChecksumBytes, piece_.data() + filled_);
  put(piece_.data(), filled_ + kChecksumBytes);
  filled_ = 0;
}

void SectionWriter::put(const void* data, size_t bytes) {
  check(!cancel_ || !cancel_->load(std::memory_order_relaxed), WI_E_CANCELLED, "cancelled");
  to_->write(data, bytes);
  offset_ += bytes;
}

// In pieces as short as the others.
void SectionWriter::put_long(const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  for (size_t done = 0; done < bytes; done += std::min<size_t>(bytes - done, kPieceBytes))
    put(from + done, std::min<size_t>(bytes - done, kPieceBytes));
}

void SectionWriter::put_zeros() {
  static constexpr unsigned char kZeros[kAlignedBytes] = {};
  if (const uint64_t gap = gap_behind(offset_)) put(kZeros, static_cast<size_t>(gap));
}

uint64_t SectionWriter::aligned_end(uint64_t header_end, uint64_t payload_bytes) {
  const uint64_t end = header_end + gap_behind(header_end) + payload_bytes;
  return end + gap_behind(end);
}

// ---- reading ----

float FieldReader::f32(const char* field) { return std::bit_cast<float>(u32(field)); }

uint64_t FieldReader::little_endian(size_t bytes, const char* field) {
  unsigned char stored[8];
  raw(stored, bytes, field);
  return number_at(stored, bytes);
}

void MemoryReader::raw(void* to, uint64_t bytes, const char* field) {
  check(bytes <= fields_.size(), WI_E_FORMAT, field, " needs ", bytes, " bytes, ", fields_.size(),
        " are left");
  std::memcpy(to, fields_.data(), static_cast<size_t>(bytes));
  fields_.remove_prefix(static_cast<size_t>(bytes));
}

SectionReader::SectionReader(ByteSource& from, FileKind kind, const std::atomic<bool>* cancel)
    : from_(from), cancel_(cancel) {
  poll();
  unsigned char bytes[kPreambleBytes];
  get(bytes, 12, "preamble");
  check(std::memcmp(bytes, kMagic, sizeof kMagic) == 0, WI_E_FORMAT,
        "magic at byte 0: this is not a session file");
  version_ = static_cast<uint32_t>(number_at(bytes + 8, 4));
  check(version_ >= kOldestSessionFile && version_ <= kSessionFileVersion, WI_E_FORMAT,
        "version at byte 8 is ", version_, ", this library reads ", kOldestSessionFile, " to ",
        kSessionFileVersion);
  get(bytes + 12, sizeof bytes - 12, "preamble");
  check(number_at(bytes + 24, 8) == checksum_of(bytes, 24, 0), WI_E_FORMAT,
        "checksum at byte 24 does not match: the file is damaged");
  const uint64_t file_bytes = number_at(bytes + 16, 8), stored_kind = number_at(bytes + 12, 4);
  check(file_bytes == from.bytes(), WI_E_FORMAT, "file_bytes at byte 16 is ", file_bytes, ", the file has ",
        from.bytes(), ": it was cut or grew");
  const auto name = [](uint64_t of) {
    return of == static_cast<uint64_t>(FileKind::session) ? "a session"
           : of == static_cast<uint64_t>(FileKind::kv)    ? "a KV store"
                                                          : "something unknown";
  };
  check(stored_kind == static_cast<uint64_t>(kind), WI_E_FORMAT, "kind at byte 12 is ", stored_kind,
        ": this is ", name(stored_kind), ", not ", name(static_cast<uint64_t>(kind)));
}

bool SectionReader::next_header() {
  poll();
  start_ = offset_;
  if (start_ == from_.bytes()) return false;
  unsigned char header[kSectionHeaderBytes];
  get(header, sizeof header, "section header");
  check(number_at(header + 16, 8) == checksum_of(header, 16, start_), WI_E_FORMAT, "checksum at byte ",
        start_ + 16, " does not match: the file is damaged");
  tag_.clear();
  for (size_t i = 0; i < 4; ++i)
    tag_ += header[i] > ' ' && header[i] < 127 ? static_cast<char>(header[i]) : '?';
  optional_ = number_at(header + 4, 4) & kOptional;
  aligned_ = version_ > 2 && (number_at(header + 4, 4) & kAligned);
  left_ = number_at(header + 8, 8);
  const uint64_t rest = from_.bytes() - offset_, gaps = gap_behind(offset_) + gap_behind(left_);
  check(left_ <= rest && (aligned_ ? gaps <= rest - left_ : SectionWriter::stored_bytes(left_) <= rest),
        WI_E_FORMAT, "section \"", tag_, "\" at byte ", start_, " has ", left_, " bytes, the file ends at ",
        from_.bytes());
  piece_.clear();
  at_ = 0;
  return true;
}

// To the next section that this library knows, past those that it does not and need not.
bool SectionReader::next_known() {
  while (next_header()) {
    if (std::find(std::begin(kTags), std::end(kTags), tag_) != std::end(kTags)) return true;
    check(optional_, WI_E_UNSUPPORTED, "section \"", tag_, "\" at byte ", start_,
          " is unknown to this library, and the file cannot be read without it");
    pass();
  }
  return false;
}

// The next one's header is read, and stays so until somebody opens it.
bool SectionReader::has_next() {
  if (!ahead_) ahead_ = next_known();
  return ahead_;
}

void SectionReader::open(std::string_view tag) {
  check(has_next(), WI_E_FORMAT, "section \"", tag, "\" is missing at byte ", offset_);
  check(open_if_any(tag), WI_E_FORMAT, "section \"", tag_, "\" at byte ", start_, " stands where \"", tag,
        "\" should be");
}

bool SectionReader::open_if_any(std::string_view tag) {
  if (!has_next() || tag_ != tag) return false;
  ahead_ = false;
  check(!aligned_, WI_E_FORMAT, "section \"", tag_, "\" at byte ", start_, " has no checksums");
  return true;
}

void SectionReader::close() {
  const uint64_t more = left();
  while (left()) {
    if (at_ == piece_.size()) next_piece("section");
    for (; at_ < piece_.size(); ++at_)
      check(piece_[at_] == 0, WI_E_UNSUPPORTED, "section \"", tag_, "\" at byte ", start_, " has ", more,
            " bytes more than this library knows, and not all are zero");
  }
}

void SectionReader::skip(std::string_view tag) {
  open(tag);
  pass();
}

void SectionReader::pass() {
  if (aligned_) {
    skip_zeros();
    piece_.resize(static_cast<size_t>(std::min(left_, kPieceBytes)));
    while (left_) unverified(piece_.data(), std::min<uint64_t>(left_, piece_.size()), "section");
    skip_zeros();
  }
  while (left_) next_piece("section");
  piece_.clear();
  at_ = 0;
}

uint64_t SectionReader::open_aligned(std::string_view tag) {
  check(has_next(), WI_E_FORMAT, "section \"", tag, "\" is missing at byte ", offset_);
  ahead_ = false;
  check(tag_ == tag && aligned_, WI_E_FORMAT, "section \"", tag_, "\" at byte ", start_, " stands where \"",
        tag, "\" should be");
  skip_zeros();
  return offset_;
}

void SectionReader::unverified(void* to, uint64_t bytes, const char* field) {
  poll();
  check(bytes <= left_, WI_E_FORMAT, field, " in section \"", tag_, "\" needs ", bytes,
        " bytes, the section has ", left_, " left");
  get(to, bytes, field);
  left_ -= bytes;
}

void SectionReader::leave() {
  offset_ += left_;
  left_ = 0;
}

void SectionReader::close_aligned() {
  check(left_ == 0, WI_E_FORMAT, "section \"", tag_, "\" at byte ", start_, " has ", left_,
        " bytes too many");
  skip_zeros();
}

void SectionReader::skip_zeros() {
  unsigned char zeros[kAlignedBytes];
  const uint64_t gap = gap_behind(offset_);
  get(zeros, gap, "zeros");
  check(std::all_of(zeros, zeros + gap, [](unsigned char byte) { return byte == 0; }), WI_E_FORMAT,
        "section \"", tag_, "\" at byte ", start_, " is damaged: there should be zeros before byte ",
        offset_);
}

void SectionReader::end() {
  check(!has_next(), WI_E_FORMAT, "section \"", tag_, "\" at byte ", start_,
        " stands where the file should end");
}

void SectionReader::raw(void* to, uint64_t bytes, const char* field) {
  check_left(bytes, field);
  auto* out = static_cast<unsigned char*>(to);
  while (bytes > 0) {
    size_t here = static_cast<size_t>(std::min(left_, kPieceBytes));
    if (at_ == piece_.size() && here <= bytes) {
      read_piece(out, here, field);  // a whole one needs no copy
    } else {
      const std::span<const unsigned char> part = next(bytes, field);
      here = part.size();
      std::memcpy(out, part.data(), here);
    }
    out += here;
    bytes -= here;
  }
}

void SectionReader::check_left(uint64_t bytes, const char* field) const {
  check(bytes <= left(), WI_E_FORMAT, field, " in section \"", tag_, "\" before byte ", offset_, " needs ",
        bytes, " bytes, the section has ", left(), " left");
}

std::span<const unsigned char> SectionReader::next(uint64_t most_bytes, const char* field) {
  if (at_ == piece_.size()) next_piece(field);
  const size_t here = static_cast<size_t>(std::min<uint64_t>(most_bytes, piece_.size() - at_));
  at_ += here;
  return {piece_.data() + at_ - here, here};
}

std::string SectionReader::text(const char* field, uint32_t most_bytes) {
  const uint32_t bytes = u32(field);
  require(bytes <= most_bytes && bytes <= left(), field, " has ", bytes, " bytes");
  std::string value(bytes, '\0');
  raw(value.data(), bytes, field);
  return value;
}

// Reads and verifies the next piece; what is left of the one before is forgotten.
void SectionReader::next_piece(const char* field) {
  piece_.resize(static_cast<size_t>(std::min(left_, kPieceBytes)));
  at_ = 0;
  read_piece(piece_.data(), piece_.size(), field);
}

void SectionReader::read_piece(unsigned char* to, size_t bytes, const char* field) {
  poll();
  const uint64_t start = offset_;
  left_ -= bytes;
  unsigned char checksum[kChecksumBytes];
  get(to, bytes, field);
  get(checksum, sizeof checksum, field);
  if (number_at(checksum, sizeof checksum) == checksum_of(to, bytes, start)) return;
  fail(WI_E_FORMAT, "checksum at byte ", start + bytes, " does not match: section \"", tag_, "\" is damaged");
}

void SectionReader::get(void* to, uint64_t bytes, const char* what) {
  check(bytes <= from_.bytes() - offset_, WI_E_FORMAT, what, " at byte ", offset_, " needs ", bytes,
        " bytes, the file ends at ", from_.bytes());
  if (bytes)
    from_.read(offset_, to, static_cast<size_t>(bytes));  // a host may take none of nothing for an end
  offset_ += bytes;
}

}  // namespace wi
