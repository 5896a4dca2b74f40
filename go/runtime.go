package waveinfer

// #include "callback.h"
import "C"

import (
	"log/slog"
	"runtime"
	"time"
)

// Version returns the library's version, "major.minor.patch".
func Version() string { return C.GoString(C.wi_version()) }

// HugePages says whether the system is asked for huge pages.
type HugePages int32

// The ways of using huge pages.
const (
	HugePagesAuto HugePages = C.WI_HUGE_PAGES_AUTO // for large pieces of KV and copied weights
	HugePagesOff  HugePages = C.WI_HUGE_PAGES_OFF
)

// BindThreads says whether a runtime's threads are pinned to cores.
type BindThreads int32

// The ways of pinning threads.
const (
	BindAuto BindThreads = C.WI_BIND_AUTO // on machines of several NUMA nodes
	BindOff  BindThreads = C.WI_BIND_OFF
)

// BufferManager says which clusters of a slow tier make room for others in the fast one.
type BufferManager int32

// The buffer managers.
const (
	BufferAuto     BufferManager = C.WI_BUFFER_AUTO     // BufferLRU
	BufferLRU      BufferManager = C.WI_BUFFER_LRU      // the least recently used, exactly
	BufferBucketed BufferManager = C.WI_BUFFER_BUCKETED // by age in 64 steps, as a device always does
)

// RuntimeParams are the parameters of a runtime; zero means default.
type RuntimeParams struct {
	// Threads that work, 0 to 1024. 0: the physical cores this process may use.
	Threads int
	// "" or "cpu": the host's own processor; "cuda:N", or "cuda" for the first: a device (see Devices).
	Device string
	// Most bytes that KV, indexes and tails of all sessions and KV stores together may take. 0: 80 % of the
	// memory this process may use. On a device, of its memory; 0: what is free of it, but for a fifth or, where
	// that is less, 4 GiB, and for what weights and scratch take then.
	KVBudgetBytes uint64
	HugePages     HugePages   // whether the system is asked for them; zero: for large pieces
	BindThreads   BindThreads // whether threads are pinned to cores; zero: on machines of several NUMA nodes
	// Nothing less important is logged.
	LogLevel LogLevel
	// 0 to 19, added to the nice value of the runtime's own threads.
	Nice int
	// Where messages go, from any goroutine or thread; nil: nowhere. It must not call the library. A panic of
	// its handler goes on in a call that is about to return.
	Log *slog.Logger
	// Tasks that write wait at most so long for prompts that other tasks read, whole milliseconds from 1 to
	// 60000. 0: 50 ms.
	TaskWait time.Duration
	// A folder on a local disk for keys and values that fast memory has no room for; "": there is no slow
	// tier. The file in it has no name and is gone with the runtime. Not on a device, whose slow tier is pinned
	// memory of the host's.
	SpillFolder string
	// Most bytes in that file. 0: as the disk has room. On a device, in that pinned memory; 0: 80 % of the memory
	// this process may use.
	SpillBytes uint64
	// Which clusters make room for others in the fast tier where there is a slow one; zero: BufferLRU.
	BufferManager BufferManager
}

// Runtime is threads, a memory budget and a log; one per program is usual. Any number of goroutines may use
// it at once. It lives on after Close while a model, session or KV store of it lives.
type Runtime struct {
	handle  *handle[*C.wi_runtime]
	cleanup runtime.Cleanup
}

// NewRuntime makes a runtime: it reads the machine's topology, starts threads, and allocates nothing large.
// nil params mean all defaults.
//
// Errors: [ErrUnsupported] for what is no name of a device, for a SpillFolder beside one, or if the library has
// another ABI than the one this was built with; [ErrDevice], with the reason, for a device that is not there or
// cannot be used; [ErrIO] for a SpillFolder in which no file can be made.
func NewRuntime(params *RuntimeParams) (*Runtime, error) {
	if have := C.wi_abi_version(); have != C.WI_ABI_VERSION {
		return nil, &Error{Code: ErrUnsupported, Message: "libwaveinfer " + Version() + " has another ABI than waveinfer.h"}
	}
	if params == nil {
		params = &RuntimeParams{}
	}
	var pinned pins
	defer pinned.Unpin()
	p := &C.wi_runtime_params{
		struct_size:     C.sizeof_wi_runtime_params,
		threads:         int32Of(params.Threads),
		device:          pinned.name("RuntimeParams.Device", params.Device),
		kv_budget_bytes: C.uint64_t(params.KVBudgetBytes),
		huge_pages:      C.int32_t(params.HugePages),
		bind_threads:    C.int32_t(params.BindThreads),
		log_level:       C.int32_t(params.LogLevel),
		nice:            int32Of(params.Nice),
		task_wait_ms:    int32Of(int(params.TaskWait / time.Millisecond)),
		spill_folder:    pinned.name("RuntimeParams.SpillFolder", params.SpillFolder),
		spill_bytes:     C.uint64_t(params.SpillBytes),
		buffer_manager:  C.int32_t(params.BufferManager),
	}
	if pinned.err != nil {
		return nil, pinned.err
	}
	if params.TaskWait%time.Millisecond != 0 {
		return nil, argumentError("RuntimeParams.TaskWait is %v, must be whole milliseconds", params.TaskWait)
	}
	c, err := newCall(never, func() {})
	if err != nil {
		return nil, err
	}
	defer c.end()
	sink := newLogSink(params.Log)
	if sink != nil {
		p.log = C.wi_log_callback(C.wi_go_log)
		p.log_user = sink.user
		p.log_release = C.wi_release_callback(C.wi_go_log_release)
	}
	out := new(*C.wi_runtime)
	if err := c.check(C.wi_runtime_create(p, out, &c.error)); err != nil {
		if sink != nil {
			freeUser(sink.user)
		}
		return nil, err
	}
	return newRuntime(*out, sink), nil
}

func newRuntime(object *C.wi_runtime, sink *logSink) *Runtime {
	r := &Runtime{handle: &handle[*C.wi_runtime]{
		object: object, kind: "runtime", log: sink,
		release: func(object *C.wi_runtime) { C.wi_runtime_release(object) },
	}}
	r.cleanup = runtime.AddCleanup(r, (*handle[*C.wi_runtime]).close, r.handle)
	return r
}

// Close gives the runtime back. Models and sessions made from it go on. It returns nil.
func (r *Runtime) Close() error {
	r.cleanup.Stop()
	r.handle.close()
	return nil
}

// DeviceInfo is what a runtime runs on.
type DeviceInfo struct {
	Threads     int    // of the host's, that the runtime works with
	Name        string // "cpu", "cuda:0"
	Description string // the processor's or the device's own name
	SIMD        string // instruction set that the kernels chose, such as "AVX3" or "sm_90"
	Cores       int    // physical cores this process may use; a device's multiprocessors
	NUMANodes   int    // with at least one of them
	MemoryBytes uint64 // this process may use
	L2Bytes     uint64 // per core; 0: unknown
	L3Bytes     uint64 // per group of cores; 0: unknown
	Usable      bool   // a runtime can be made on it
	Reason      string // why not, in words; empty if it can be used
}

// Devices tells what a runtime could be made on: the host's own processor first, then what is beside it; where
// there is nothing, one that says why.
func Devices() ([]DeviceInfo, error) {
	c, err := newCall(never, func() {})
	if err != nil {
		return nil, err
	}
	defer c.end()
	count := new(C.int32_t)
	if err := c.check(C.wi_device_count(count, &c.error)); err != nil {
		return nil, err
	}
	devices := make([]DeviceInfo, *count)
	for i := range devices {
		info := &C.wi_device_info{struct_size: C.sizeof_wi_device_info}
		if err := c.check(C.wi_device_get_info(C.int32_t(i), info, &c.error)); err != nil {
			return nil, err
		}
		devices[i] = deviceInfoOf(info)
	}
	return devices, nil
}

// DeviceInfo tells what the runtime runs on.
func (r *Runtime) DeviceInfo() (DeviceInfo, error) {
	info, err := r.deviceInfo()
	if err != nil {
		return DeviceInfo{}, err
	}
	return deviceInfoOf(info), nil
}

func deviceInfoOf(info *C.wi_device_info) DeviceInfo {
	return DeviceInfo{
		Threads:     int(info.threads),
		Name:        C.GoString(&info.name[0]),
		Description: C.GoString(&info.description[0]),
		SIMD:        C.GoString(&info.simd[0]),
		Cores:       int(info.cores),
		NUMANodes:   int(info.numa_nodes),
		MemoryBytes: uint64(info.memory_bytes),
		L2Bytes:     uint64(info.l2_bytes),
		L3Bytes:     uint64(info.l3_bytes),
		Usable:      info.usable != 0,
		Reason:      C.GoString(&info.reason[0]),
	}
}

func (r *Runtime) deviceInfo() (*C.wi_device_info, error) {
	c, err := r.handle.begin(never)
	if err != nil {
		return nil, err
	}
	defer c.end()
	info := &C.wi_device_info{struct_size: C.sizeof_wi_device_info}
	return info, c.check(C.wi_runtime_device_info(r.handle.object, info, &c.error))
}

// PolicyInfo is a way of indexing and selecting, to be named in [PolicyParams].
type PolicyInfo struct {
	Name        string // what PolicyParams.Name takes
	Description string // one line in English
}

// Policies lists the policies that there are on the runtime's device.
func (r *Runtime) Policies() ([]PolicyInfo, error) {
	device, err := r.deviceInfo()
	if err != nil {
		return nil, err
	}
	c, err := r.handle.begin(never)
	if err != nil {
		return nil, err
	}
	defer c.end()
	policies := make([]PolicyInfo, device.policies)
	for i := range policies {
		info := &C.wi_policy_info{struct_size: C.sizeof_wi_policy_info}
		if err := c.check(C.wi_runtime_policy(r.handle.object, C.int32_t(i), info, &c.error)); err != nil {
			return nil, err
		}
		policies[i] = PolicyInfo{Name: C.GoString(info.name), Description: C.GoString(info.description)}
	}
	return policies, nil
}

// Stats tells what the runtime holds at this moment; the numbers are each right, but not taken at one instant.
func (r *Runtime) Stats() (RuntimeStats, error) {
	c, err := r.handle.begin(never)
	if err != nil {
		return RuntimeStats{}, err
	}
	defer c.end()
	stats := &C.wi_runtime_stats{struct_size: C.sizeof_wi_runtime_stats}
	if err := c.check(C.wi_runtime_get_stats(r.handle.object, stats, &c.error)); err != nil {
		return RuntimeStats{}, err
	}
	return runtimeStatsOf(stats), nil
}
