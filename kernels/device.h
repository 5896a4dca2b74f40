// What a backend has beyond its operations (ops.h) where it runs on a device: memory that the host cannot read,
// and queues, in which operations wait for their turn while the host goes on. A backend of the host's own
// processor has none of this. Nothing here throws; any thread may call anything, one at a time a queue's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace wi {

enum class DeviceFault : int32_t {
  none,
  memory,  // the device, or the system for pinned memory, has no more; the next call works
  failed,  // the call did not; the next may
  lost     // whatever this process asks of the device from now on fails too
};

struct DeviceError {
  DeviceFault fault = DeviceFault::none;
  int64_t native_code = 0;  // the driver's
  char message[192] = {};   // NUL-terminated
};

struct DeviceDescription {
  char name[64] = {};      // as runtimes name it: "cuda:0"
  char product[128] = {};  // as its maker does
  char target[32] = {};    // what kernels are compiled for: "sm_90"
  char bus[16] = {};       // where it is on the PCI bus: "0000:3B:00.0"; empty: nobody says
  char reason[192] = {};   // why it cannot be used; empty: it can
  int32_t processors = 0;  // that run blocks of threads
  uint64_t memory_bytes = 0, free_bytes = 0, l2_bytes = 0;
  bool reads_pageable = false;  // kernels reach any memory of the host's, at the same address, if slowly
};

struct DeviceQueue;
struct HotPages;  // hot_pages.h

// What a queue keeps of its own.
struct QueueBytes {
  uint64_t device = 0, host = 0;
};
// What a call asks of a queue at most, for what it keeps: the widest product of so many rows, and lookups in one pass.
struct DeviceWork {
  int64_t rows = 0, inputs = 0, outputs = 0;
  DType weights = DType::f16;
  bool rows_alike = false;
  int64_t vocab = 0;  // of rows whose tokens are picked; 0: of none
  int32_t lookups = 0, group = 1, head_dim = 0, most_partitions = 0;  // lookups: 0: none
};

inline constexpr int32_t kDeviceMarks = 2;

struct DevicePiece {
  const void* from = nullptr;  // in the device's memory
  uint64_t bytes = 0;
};

struct DeviceCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

struct DeviceTable {
  // How many there are to be described, at least one: where there is none at all, the first says why.
  int32_t (*count)();
  // to_use: by whoever asks, who goes on with it. Else nothing stays on the device of what it takes to ask it.
  void (*describe)(int32_t index, bool to_use, DeviceDescription* out);
  bool (*reads_weights)(DType type);

  // 256-byte aligned; null, and why, if it is refused.
  void* (*allocate)(int32_t index, size_t bytes, DeviceError* error);
  void (*free)(int32_t index, void* data);  // after all that was asked for before
  // Memory of the host's that stays where it is, so that kernels and copies reach it, at the same address. 256-byte
  // aligned; null, and why, if it is refused.
  void* (*allocate_pinned)(int32_t index, size_t bytes, DeviceError* error);
  void (*free_pinned)(int32_t index, void* data);  // nothing reads or writes it any more
  // Between the device's memory and the host's or within either; all done on return, which is waited for once.
  bool (*copy)(int32_t index, const DeviceCopy* pieces, size_t count, DeviceError* error);
  // Pieces of the device's memory one behind the other to the host's, in few calls however many they are.
  bool (*gather)(int32_t index, const DevicePiece* pieces, size_t count, void* to, DeviceError* error);

  DeviceQueue* (*open_queue)(int32_t index, DeviceError* error);
  void (*close_queue)(DeviceQueue* queue);  // null is ignored
  // From the host's memory, which may change when this returns.
  void (*upload)(DeviceQueue* queue, void* to, const void* from, size_t bytes);
  // The same to room of the queue's, which is valid until the next finish(). Null: there is none, which finish()
  // says.
  void* (*stage)(DeviceQueue* queue, const void* from, size_t bytes);
  // To the host's memory, where it is after the next finish().
  void (*download)(DeviceQueue* queue, void* to, const void* from, size_t bytes);
  // Room of the host's that a download to reaches without a copy in between: the queue's own, valid until one for more
  // is asked for. Null: the system has none.
  void* (*download_room)(DeviceQueue* queue, size_t bytes);
  // Beside what the queue was asked for: from allocate_pinned()'s memory to the device's, both as they are until
  // finish(). What is fetched after fetch_after() is fetched when all is done that the queue was asked for before
  // that; what the queue is asked for after await_fetched() finds all that was fetched before that.
  void (*fetch)(DeviceQueue* queue, void* to, const void* from, size_t bytes);
  void (*fetch_after)(DeviceQueue* queue);
  void (*await_fetched)(DeviceQueue* queue);
  // What the queue is asked for from now on finds all done that `first`, of the same device, was asked for before this.
  void (*follow)(DeviceQueue* queue, DeviceQueue* first);
  QueueBytes (*queue_bytes)(const DeviceQueue* queue);
  // What a queue keeps for such work, beside what is copied to the device and back.
  uint64_t (*work_bytes)(const DeviceWork& work);
  // How often since the last call the system refused to pin room of the queue's, which is pageable then: no result is
  // another for that, and the host waits where it would not.
  uint64_t (*take_refused_pins)(DeviceQueue* queue);
  // A step begins that uses this cache, as no other does before it has ended: forgets what is gone, and puts the frames
  // in the order in which they are to go.
  void (*order_hot_pages)(DeviceQueue* queue, const HotPages& pages);
  // What the queue is asked for from now on until finish() is a step, likely to be asked for again with the same arguments
  // and other data: it may be begun no earlier than finish(), and is then told to the device in one call.
  void (*begin_step)(DeviceQueue* queue);
  // One of kDeviceMarks is set behind what the queue was asked for so far, of which no step is being noted; and whether all
  // is done that it was asked for before that: also where the mark was never set, and where something failed, which
  // finish() says.
  void (*mark)(DeviceQueue* queue, int32_t mark);
  bool (*passed)(DeviceQueue* queue, int32_t mark);
  // Waits for everything in the queue. False, and why: something of it since the last call failed, in which
  // case what it should have written is unspecified.
  bool (*finish)(DeviceQueue* queue, DeviceError* error);
};

struct Backend;

// What a library with a backend in it exports under the name kDevicePlugin.
struct DevicePlugin {
  const char* build;  // kernels/*.h as they were: another one's structs are not these
  const Backend* backend;
};
using DevicePluginFunction = const DevicePlugin* (*)();
inline constexpr char kDevicePlugin[] = "wi_device_plugin";

}  // namespace wi
