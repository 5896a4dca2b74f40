#include "src/memory/host_pool.h"

#include "src/error.h"
#include "src/memory/host_memory.h"

namespace wi {

void MemoryBudget::charge(uint64_t bytes, const char* purpose) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    const uint64_t most = this->bytes();
    if (used > most || bytes > most - used)
      fail(WI_E_BUDGET, purpose, " wants ", bytes, " bytes, ", used, " of the budget of ", most, " are used");
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  if (rest_) rest_->elsewhere_.fetch_add(bytes, std::memory_order_relaxed);
  uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (peak < used + bytes && !peak_.compare_exchange_weak(peak, used + bytes, std::memory_order_relaxed)) {
  }
}

std::shared_ptr<HostPool> HostPool::create(uint64_t budget_bytes, bool huge_pages) {
  return create(std::make_shared<MemoryBudget>(budget_bytes), std::make_shared<HostMemory>(huge_pages));
}

std::shared_ptr<HostPool> HostPool::create(std::shared_ptr<MemoryBudget> budget,
                                           std::shared_ptr<Memory> memory) {
  return std::shared_ptr<HostPool>(new HostPool(std::move(budget), std::move(memory)));
}

HostBuffer HostPool::allocate(uint64_t bytes, const char* purpose, HostPages pages) {
  if (bytes == 0) return {};
  budget_->charge(bytes, purpose);
  try {
    std::byte* data = memory_->allocate(bytes, pages);
    if (!data)
      fail(WI_E_MEMORY, "the system refused ", bytes, " bytes for ", purpose, " (", used() - bytes,
           " in use)");
    return {shared_from_this(), data, bytes};
  } catch (...) {
    budget_->refund(bytes);
    throw;
  }
}

void HostPool::free(std::byte* data, uint64_t bytes) noexcept {
  memory_->free(data, bytes);
  budget_->refund(bytes);
}

Memory& HostBuffer::memory() const { return pool_->memory(); }

void HostBuffer::copy_out(uint64_t offset, void* to, size_t bytes) const {
  memory().copy(to, data_ + offset, bytes);
}

void HostBuffer::copy_in(uint64_t offset, const void* from, size_t bytes) const {
  memory().copy(data_ + offset, from, bytes);
}

HostBuffer::~HostBuffer() {
  if (data_) pool_->free(data_, bytes_);
}

}  // namespace wi
