#include "src/store/token_block.h"

#include <cstring>
#include <vector>

namespace wi {

// Small pages: a block of 8 MB (an 8B model's) is first touched within one decode step, every 64 steps, and that
// step would wait for four huge pages (16 of 40 ms on a virtual machine); small ones come as rows are written.
TokenBlock::TokenBlock(HostPool& pages, const KvShape& shape, int32_t capacity)
    : capacity_(capacity),
      kv_heads_(shape.kv_heads),
      row_bytes_(shape.head_bytes()),
      plane_bytes_(row_bytes_ * static_cast<size_t>(capacity)),
      kv_bytes_(shape.token_bytes() * static_cast<size_t>(capacity)),
      memory_(pages.allocate(kv_bytes_, "recent tokens", HostPages::small)) {}

TokenBlock::TokenBlock(std::shared_ptr<const SpilledBlocks> spilled, size_t number, const TokenBlock& of)
    : capacity_(of.capacity_),
      kv_heads_(of.kv_heads_),
      row_bytes_(of.row_bytes_),
      plane_bytes_(of.plane_bytes_),
      kv_bytes_(of.kv_bytes_),
      spilled_(std::move(spilled)),
      number_(number) {}

void TokenBlock::copy_from(const TokenBlock& other) {
  if (!other.is_slow()) return memory_.copy_in(0, other.memory_.data(), memory_.bytes());
  std::vector<std::byte> read(kv_bytes_);
  other.copy_out(0, read.data(), read.size());
  memory_.copy_in(0, read.data(), read.size());
}

void TokenBlock::copy_out(uint64_t offset, void* to, size_t bytes) const {
  if (!is_slow()) return memory_.copy_out(offset, to, bytes);
  if (bytes == 0) return;
  const size_t plane = head_stride(), first = offset / plane, end = (offset + bytes + plane - 1) / plane;
  std::vector<std::byte> read((end - first) * plane);
  std::vector<ReadRequest> requests;
  for (size_t i = first; i < end; ++i)
    requests.push_back(spilled_->request(number_, i, read.data() + (i - first) * plane));
  SpillReader(file()).read(requests);
  std::memcpy(to, read.data() + (offset - first * plane), bytes);
}

void TokenBlock::copy_tokens(int32_t layer, int32_t head, int64_t first, int64_t count, std::byte* to_keys,
                             std::byte* to_values) const {
  const size_t at = static_cast<size_t>(first) * row_bytes_, bytes = static_cast<size_t>(count) * row_bytes_;
  if (is_slow()) {
    std::vector<std::byte> read(head_stride());
    copy_out(offset(layer, head), read.data(), read.size());
    std::memcpy(to_keys, read.data() + at, bytes);
    std::memcpy(to_values, read.data() + plane_bytes_ + at, bytes);
    return;
  }
  const CopyPiece pieces[] = {{to_keys, keys(layer, head) + at, bytes},
                              {to_values, values(layer, head) + at, bytes}};
  memory_.memory().copy(pieces);
}

}  // namespace wi
