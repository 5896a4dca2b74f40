// The session file, version 1, little-endian, sections one after another without padding:
//
//   Header            sizes of all that follows, checked against the file's length before anything else
//   policy name, token ids, logits, sampler, pending bytes
//   sink              one block (layers, kv_heads, {K, V}, 4, head_dim), if there are tokens
//   segments          SegmentHeader, HeadHeader (layers * kv_heads), pages with positions, index
//   tail              whole blocks (layers, kv_heads, {K, V}, 64, head_dim)
//   checksum          XXH3-64 of every byte before it
#include "src/store/session_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "src/error.h"

namespace wi {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'W', 'I', 'S', 'E', 'S', 'S', '\r', '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kChecksumBytes = sizeof(uint64_t);
constexpr size_t kPieceBytes = size_t{8} << 20;  // of one system call, so that a cancel is noticed

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t file_bytes;
  uint64_t model_fingerprint;
  int32_t layers, kv_heads, head_dim, kv_type;
  int32_t segment_tokens, decode_segment_tokens, tokens_per_centroid, kmeans_iterations, max_cluster_tokens,
      policy_bytes;
  int64_t tokens;           // of the session, a pending one included
  int64_t computed_tokens;  // with keys and values
  int64_t sealed_end;
  int64_t exact_end;
  uint64_t segments;
  uint64_t tail_blocks;
  uint64_t logits;
  uint64_t sampler_bytes;
  uint64_t pending_bytes;
};

struct SegmentHeader {
  int64_t first_position;
  int64_t tokens;
  uint64_t index_bytes;
};

struct HeadHeader {
  uint64_t offset, bytes;
  int64_t partitions;
};

Header header_of(const SessionImage& image, const Sequence& sequence);
uint64_t segment_page_bytes(const KvShape& shape, int64_t tokens);

// A file that appears at its path whole or not at all.
class AtomicFile {
 public:
  AtomicFile(std::string path, const std::atomic<bool>* cancel)
      : path_(std::move(path)), cancel_(cancel), hash_(XXH3_createState()) {
    check(hash_ != nullptr, WI_E_MEMORY, "no memory for a checksum");
    XXH3_64bits_reset(hash_);
    temporary_ = path_ + ".XXXXXX";
    file_ = mkstemp(temporary_.data());
    if (file_ < 0) {
      const int reason = errno;
      XXH3_freeState(hash_);
      throw_errno(WI_E_IO, "cannot create a file beside " + path_, reason);
    }
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() {
    XXH3_freeState(hash_);
    if (file_ >= 0) {
      close(file_);
      unlink(temporary_.c_str());
    }
  }

  void write(const void* data, size_t bytes) {
    XXH3_64bits_update(hash_, data, bytes);
    write_unhashed(data, bytes);
  }
  void commit() {
    const uint64_t checksum = XXH3_64bits_digest(hash_);
    write_unhashed(&checksum, sizeof checksum);
    if (fchmod(file_, 0644) != 0 || fsync(file_) != 0) throw_errno(WI_E_IO, "cannot flush " + path_, errno);
    if (rename(temporary_.c_str(), path_.c_str()) != 0)
      throw_errno(WI_E_IO, "cannot rename onto " + path_, errno);
    close(std::exchange(file_, -1));
    // The name itself must survive a power cut as well. The file is whole either way, so no error from here.
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
    if (const int directory = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); directory >= 0) {
      fsync(directory);
      close(directory);
    }
  }

 private:
  void write_unhashed(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      check(!cancel_ || !cancel_->load(std::memory_order_relaxed), WI_E_CANCELLED, "cancelled");
      const ssize_t written = ::write(file_, from, std::min(bytes, kPieceBytes));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_errno(WI_E_IO, "cannot write " + path_, errno);
      from += written;
      bytes -= static_cast<size_t>(written);
    }
  }
  std::string path_, temporary_;
  const std::atomic<bool>* cancel_;
  XXH3_state_t* hash_;
  int file_ = -1;
};

// Reads forward, knows where it is for the error messages, and never asks for more than the file has.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), hash_(XXH3_createState()) {
    check(hash_ != nullptr, WI_E_MEMORY, "no memory for a checksum");
    XXH3_64bits_reset(hash_);
    file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file_ < 0 || fstat(file_, &status) != 0) {
      const int reason = errno;
      release();
      throw_errno(WI_E_IO, "cannot open " + path, reason);
    }
    if (!S_ISREG(status.st_mode)) {
      release();
      fail(WI_E_IO, path, " is not a file");
    }
    bytes_ = static_cast<uint64_t>(status.st_size);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { release(); }

  uint64_t bytes() const { return bytes_; }
  uint64_t offset() const { return offset_; }
  void read(void* out, uint64_t bytes, const char* field) {
    read_unhashed(out, bytes, field);
    XXH3_64bits_update(hash_, out, bytes);
  }
  template <class T>
  T read(const char* field) {
    T value;
    read(&value, sizeof value, field);
    return value;
  }
  void verify_checksum() {
    const uint64_t computed = XXH3_64bits_digest(hash_);
    uint64_t stored;
    read_unhashed(&stored, sizeof stored, "checksum");
    check(stored == computed, WI_E_FORMAT, "checksum at byte ", offset_ - sizeof stored,
          " does not match: the file is damaged");
  }
  template <class... Parts>
  void require(bool holds, const char* field, const Parts&... parts) const {
    check(holds, WI_E_FORMAT, field, " before byte ", offset_, parts...);
  }

 private:
  void read_unhashed(void* out, uint64_t bytes, const char* field) {
    check(bytes <= bytes_ - offset_, WI_E_FORMAT, field, " at byte ", offset_, " needs ", bytes,
          " bytes, the file ends at ", bytes_);
    char* to = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t got = ::read(file_, to, std::min<uint64_t>(bytes, kPieceBytes));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw_errno(WI_E_IO, "cannot read " + path_, errno);
      check(got > 0, WI_E_FORMAT, field, " at byte ", offset_, ": the file became shorter while it was read");
      to += got;
      bytes -= static_cast<uint64_t>(got);
      offset_ += static_cast<uint64_t>(got);
    }
  }
  void release() {
    XXH3_freeState(hash_);
    if (file_ >= 0) close(file_);
  }
  std::string path_;
  XXH3_state_t* hash_;
  int file_ = -1;
  uint64_t bytes_ = 0, offset_ = 0;
};

Header read_header(Reader& reader, const SessionExpectation& expected);
std::shared_ptr<Segment> read_segment(Reader& reader, const SessionExpectation& expected,
                                      int64_t first_position, Sequence& sequence);

}  // namespace

void save_session(const std::string& path, const SessionImage& image, const Sequence& sequence,
                  const std::atomic<bool>* cancel) {
  AtomicFile file(path, cancel);
  const Header header = header_of(image, sequence);
  file.write(&header, sizeof header);
  file.write(image.policy.data(), image.policy.size());
  file.write(image.tokens.data(), image.tokens.size() * sizeof(int32_t));
  file.write(image.logits.data(), image.logits.size() * sizeof(float));
  file.write(image.sampler.data(), image.sampler.size());
  file.write(image.pending_bytes.data(), image.pending_bytes.size());
  if (sequence.tokens() > 0) file.write(sequence.sink()->keys(0, 0), sequence.sink()->bytes());
  for (const auto& segment : sequence.segments()) {
    const SegmentHeader entry{segment->first_position(), segment->tokens(), segment->index().bytes()};
    file.write(&entry, sizeof entry);
    for (const Segment::HeadIndex& head : segment->heads()) {
      const HeadHeader row{head.offset, head.bytes, head.partitions};
      file.write(&row, sizeof row);
    }
    file.write(segment->pages().data(), segment->pages().bytes());
    file.write(segment->index().data(), segment->index().bytes());
  }
  for (uint64_t i = 0; i < header.tail_blocks; ++i)
    file.write(sequence.tail()[i]->keys(0, 0), sequence.tail()[i]->bytes());
  file.commit();
}

SessionImage load_session(const std::string& path, const SessionExpectation& expected, Sequence& sequence) {
  Reader reader(path);
  const Header header = read_header(reader, expected);
  SessionImage image;
  image.model_fingerprint = header.model_fingerprint;
  image.params = expected.params;
  image.exact_end = header.exact_end;
  image.policy.resize(static_cast<size_t>(header.policy_bytes));
  reader.read(image.policy.data(), image.policy.size(), "policy");
  check(image.policy == expected.policy->name, WI_E_MISMATCH, "the file was saved with policy \"",
        image.policy, "\", this session has \"", expected.policy->name, "\"");
  image.tokens.resize(static_cast<size_t>(header.tokens));
  reader.read(image.tokens.data(), image.tokens.size() * sizeof(int32_t), "tokens");
  for (size_t i = 0; i < image.tokens.size(); ++i) {
    reader.require(image.tokens[i] >= 0 && image.tokens[i] < expected.vocab, "tokens", ": token ", i, " is ",
                   image.tokens[i], ", the vocabulary has ", expected.vocab);
  }
  image.logits.resize(header.logits);
  reader.read(image.logits.data(), image.logits.size() * sizeof(float), "logits");
  image.sampler.resize(header.sampler_bytes);
  reader.read(image.sampler.data(), image.sampler.size(), "sampler");
  image.pending_bytes.resize(header.pending_bytes);
  reader.read(image.pending_bytes.data(), image.pending_bytes.size(), "pending_bytes");

  Sequence loaded = sequence;
  if (header.computed_tokens > 0) {
    BlockRef sink(new TokenBlock(sequence.pool(), expected.shape, kSinkTokens));
    reader.read(sink->keys(0, 0), sink->bytes(), "sink");
    for (uint64_t i = 0; i < header.segments; ++i) {
      std::shared_ptr<Segment> segment =
          read_segment(reader, expected, i == 0 ? kSinkTokens : loaded.tokens(), loaded);
      loaded.adopt(std::move(segment), sink);
    }
    reader.require(header.segments == 0 || loaded.sealed_end() == header.sealed_end, "segments",
                   ": they end at ", loaded.sealed_end(), ", sealed_end is ", header.sealed_end);
    std::vector<BlockRef> tail;
    loaded.check_budget(header.tail_blocks * kBlockTokens * expected.shape.token_bytes(),
                        "a session file's recent tokens");
    for (uint64_t i = 0; i < header.tail_blocks; ++i) {
      tail.emplace_back(new TokenBlock(sequence.pool(), expected.shape, kBlockTokens));
      reader.read(tail.back()->keys(0, 0), tail.back()->bytes(), "tail");
    }
    loaded.restore_tail(sink, std::move(tail), header.computed_tokens);
  }
  reader.verify_checksum();
  sequence = std::move(loaded);
  return image;
}

bool same_index(const PolicyParams& a, const PolicyParams& b) {
  return a.segment_tokens == b.segment_tokens && a.decode_segment_tokens == b.decode_segment_tokens &&
         a.tokens_per_centroid == b.tokens_per_centroid && a.kmeans_iterations == b.kmeans_iterations &&
         a.max_cluster_tokens == b.max_cluster_tokens;
}

namespace {

Header header_of(const SessionImage& image, const Sequence& sequence) {
  const KvShape& shape = sequence.shape();
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.header_bytes = sizeof header;
  header.model_fingerprint = image.model_fingerprint;
  header.layers = shape.layers;
  header.kv_heads = shape.kv_heads;
  header.head_dim = shape.head_dim;
  header.kv_type = static_cast<int32_t>(shape.dtype);
  header.segment_tokens = image.params.segment_tokens;
  header.decode_segment_tokens = image.params.decode_segment_tokens;
  header.tokens_per_centroid = image.params.tokens_per_centroid;
  header.kmeans_iterations = image.params.kmeans_iterations;
  header.max_cluster_tokens = image.params.max_cluster_tokens;
  header.policy_bytes = static_cast<int32_t>(image.policy.size());
  header.tokens = static_cast<int64_t>(image.tokens.size());
  header.computed_tokens = sequence.tokens();
  header.sealed_end = sequence.sealed_end();
  header.exact_end = image.exact_end;
  header.segments = sequence.segments().size();
  header.tail_blocks = static_cast<uint64_t>((sequence.tail_tokens() + kBlockTokens - 1) / kBlockTokens);
  header.logits = image.logits.size();
  header.sampler_bytes = image.sampler.size();
  header.pending_bytes = image.pending_bytes.size();
  uint64_t bytes = sizeof header + image.policy.size() + image.tokens.size() * sizeof(int32_t) +
                   image.logits.size() * sizeof(float) + image.sampler.size() + image.pending_bytes.size() +
                   kChecksumBytes;
  if (sequence.tokens() > 0) bytes += sequence.sink()->bytes();
  for (const auto& segment : sequence.segments()) {
    bytes += sizeof(SegmentHeader) + segment->heads().size() * sizeof(HeadHeader) + segment->pages().bytes() +
             segment->index().bytes();
  }
  header.file_bytes = bytes + header.tail_blocks * kBlockTokens * shape.token_bytes();
  return header;
}

// Everything a size is computed from is bounded here, so that no later product overflows.
Header read_header(Reader& reader, const SessionExpectation& expected) {
  const Header header = reader.read<Header>("header");
  reader.require(std::memcmp(header.magic, kMagic, sizeof kMagic) == 0, "magic",
                 ": this is not a session file");
  check(header.version == kVersion, WI_E_UNSUPPORTED, "version at byte 8 is ", header.version,
        ", this library reads ", kVersion);
  reader.require(header.header_bytes == sizeof header, "header_bytes", " is ", header.header_bytes,
                 ", must be ", sizeof header);
  reader.require(header.file_bytes == reader.bytes(), "file_bytes", " is ", header.file_bytes,
                 ", the file has ", reader.bytes(), ": it was cut or grew");

  const auto match = [](const char* what, auto saved, auto wanted) {
    check(saved == wanted, WI_E_MISMATCH, what, " is ", saved, " in the file, this session has ", wanted);
  };
  match("model_fingerprint", header.model_fingerprint, expected.model_fingerprint);
  match("layers", header.layers, expected.shape.layers);
  match("kv_heads", header.kv_heads, expected.shape.kv_heads);
  match("head_dim", header.head_dim, expected.shape.head_dim);
  match("kv_type", header.kv_type, static_cast<int32_t>(expected.shape.dtype));
  match("segment_tokens", header.segment_tokens, expected.params.segment_tokens);
  match("decode_segment_tokens", header.decode_segment_tokens, expected.params.decode_segment_tokens);
  match("tokens_per_centroid", header.tokens_per_centroid, expected.params.tokens_per_centroid);
  match("kmeans_iterations", header.kmeans_iterations, expected.params.kmeans_iterations);
  match("max_cluster_tokens", header.max_cluster_tokens, expected.params.max_cluster_tokens);

  constexpr int64_t kMostTokens = int64_t{1} << 31;
  const uint64_t bytes = reader.bytes();
  reader.require(header.policy_bytes >= 0 && header.policy_bytes <= 64, "policy_bytes", " is ",
                 header.policy_bytes);
  reader.require(header.tokens >= 0 && header.tokens < kMostTokens, "tokens", " is ", header.tokens);
  reader.require(header.computed_tokens >= 0 &&
                     (header.computed_tokens == header.tokens || header.computed_tokens == header.tokens - 1),
                 "computed_tokens", " is ", header.computed_tokens, ", tokens is ", header.tokens);
  reader.require(header.exact_end >= 0 && header.exact_end <= header.computed_tokens, "exact_end", " is ",
                 header.exact_end);
  reader.require(header.segments <= bytes / sizeof(SegmentHeader), "segments", " is ", header.segments);
  reader.require(header.sealed_end >= kSinkTokens &&
                     header.sealed_end <= std::max<int64_t>(header.computed_tokens, kSinkTokens) &&
                     (header.segments > 0) == (header.sealed_end > kSinkTokens),
                 "sealed_end", " is ", header.sealed_end, " with ", header.segments, " segments and ",
                 header.computed_tokens, " tokens");
  const int64_t tail = std::max<int64_t>(header.computed_tokens - header.sealed_end, 0);
  reader.require(header.tail_blocks == static_cast<uint64_t>((tail + kBlockTokens - 1) / kBlockTokens),
                 "tail_blocks", " is ", header.tail_blocks, " for ", tail, " tokens");
  reader.require(header.logits == 0 || header.logits == static_cast<uint64_t>(expected.vocab), "logits",
                 " is ", header.logits, ", the vocabulary has ", expected.vocab);
  reader.require(header.computed_tokens < header.tokens || header.tokens == 0 || header.logits > 0, "logits",
                 " is 0 and no token is pending");
  reader.require(header.sampler_bytes <= 4096, "sampler_bytes", " is ", header.sampler_bytes);
  reader.require(header.pending_bytes <= 4096, "pending_bytes", " is ", header.pending_bytes);
  return header;
}

std::shared_ptr<Segment> read_segment(Reader& reader, const SessionExpectation& expected,
                                      int64_t first_position, Sequence& sequence) {
  const KvShape& shape = expected.shape;
  const SegmentHeader entry = reader.read<SegmentHeader>("segment header");
  reader.require(entry.first_position == first_position, "first_position", " is ", entry.first_position,
                 ", the segment before ends at ", first_position);
  reader.require(entry.tokens > 0 && entry.tokens <= (int64_t{1} << 24) && entry.tokens % kBlockTokens == 0,
                 "segment tokens", " is ", entry.tokens);
  const size_t planes = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads);
  const uint64_t page_bytes = segment_page_bytes(shape, entry.tokens);
  const uint64_t left = reader.bytes() - reader.offset();
  reader.require(page_bytes <= left && entry.index_bytes <= left - page_bytes, "segment", " of ",
                 entry.tokens, " tokens and ", entry.index_bytes, " index bytes does not fit the file's ",
                 left, " bytes left");
  std::vector<Segment::HeadIndex> heads(planes);
  for (Segment::HeadIndex& head : heads) {
    const HeadHeader row = reader.read<HeadHeader>("index table");
    reader.require(row.offset % 64 == 0 && row.offset <= entry.index_bytes &&
                       row.bytes <= entry.index_bytes - row.offset,
                   "index table", ": bytes ", row.offset, " + ", row.bytes, " of ", entry.index_bytes);
    reader.require(row.partitions > 0 && row.partitions <= entry.tokens, "partitions", " is ", row.partitions,
                   " for ", entry.tokens, " tokens");
    head = {row.offset, row.bytes, static_cast<int32_t>(row.partitions)};
  }
  sequence.check_budget(page_bytes + entry.index_bytes, "a session file's segment");
  auto segment =
      std::make_shared<Segment>(sequence.pool(), shape, first_position, static_cast<int32_t>(entry.tokens));
  reader.read(segment->pages().data(), segment->pages().bytes(), "pages");
  HostBuffer index;
  if (entry.index_bytes) {
    index = sequence.pool().allocate(entry.index_bytes, "a segment's index");
    reader.read(index.data(), entry.index_bytes, "index");
  }

  // Positions and indexes are followed without a look while decoding, so they are looked at now.
  std::vector<bool> seen(static_cast<size_t>(entry.tokens));
  for (size_t plane = 0; plane < planes; ++plane) {
    const int32_t layer = static_cast<int32_t>(plane) / shape.kv_heads,
                  head = static_cast<int32_t>(plane) % shape.kv_heads;
    const int32_t* positions = segment->positions(layer, head);
    std::fill(seen.begin(), seen.end(), false);
    for (int64_t i = 0; i < entry.tokens; ++i) {
      const int64_t at = positions[i] - first_position;
      reader.require(at >= 0 && at < entry.tokens && !seen[static_cast<size_t>(at)], "positions",
                     ": position ", positions[i], " of layer ", layer, ", head ", head,
                     " is outside the segment or there twice");
      seen[static_cast<size_t>(at)] = true;
    }
    const Segment::HeadIndex& entry_index = heads[plane];
    const bool valid = expected.policy->index_valid
                           ? expected.policy->index_valid(
                                 index.data() + entry_index.offset, entry_index.bytes, entry_index.partitions,
                                 static_cast<int32_t>(entry.tokens), shape.head_dim, shape.dtype)
                           : entry_index.bytes == 0 && entry_index.partitions == 1;
    reader.require(valid, "index", " of layer ", layer, ", head ", head, " is damaged");
  }
  segment->attach_index(std::move(index), std::move(heads));
  return segment;
}

uint64_t segment_page_bytes(const KvShape& shape, int64_t tokens) {
  const uint64_t planes = static_cast<uint64_t>(shape.layers) * static_cast<uint64_t>(shape.kv_heads);
  return static_cast<uint64_t>(tokens) * (shape.token_bytes() + planes * sizeof(int32_t));
}

}  // namespace
}  // namespace wi
