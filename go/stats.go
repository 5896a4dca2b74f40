package waveinfer

// #include <waveinfer.h>
import "C"

import "time"

// RuntimeStats is what a runtime holds.
type RuntimeStats struct {
	Sessions          int    // alive now
	KVBudgetBytes     uint64 // in force
	KVBytes           uint64 // KV, index and tail bytes now; what sessions share counts once
	KVBytesPeak       uint64 // most since creation
	ScratchBytes      uint64 // workspaces of prefill and decode, kept for the next step
	PrefixHits        uint64 // segments taken over from another session instead of being computed
	CopiedWeightBytes uint64 // of living models that were opened with WeightsCopied

	// Of the slow tier, 0 without one; since creation from BufferAdmissions on.
	SlowBytes        uint64        // in the file of SpillFolder, or pinned, now
	FrameBytes       uint64        // of KVBytes: frames for what queries want of them
	BufferAdmissions uint64        // partitions that came into frames to stay
	BufferEvictions  uint64        // partitions that made room
	BufferRefusals   uint64        // partitions that were read and found no free frame
	BufferLate       uint64        // partitions that two steps brought in at once
	SlowReadBytes    uint64        // that the disk was asked for
	SlowReads        uint64        // reads that the disk was asked for
	SlowReadTime     time.Duration // that calls waited for them
	SlowWrittenBytes uint64        // that were written to it
	PinningRefused   uint64        // of a device: how often the system refused to pin host memory
	SlowStalls       uint64        // times that a call waited for the disk
}

func runtimeStatsOf(s *C.wi_runtime_stats) RuntimeStats {
	return RuntimeStats{
		Sessions:          int(s.sessions),
		KVBudgetBytes:     uint64(s.kv_budget_bytes),
		KVBytes:           uint64(s.kv_bytes),
		KVBytesPeak:       uint64(s.kv_bytes_peak),
		ScratchBytes:      uint64(s.scratch_bytes),
		PrefixHits:        uint64(s.prefix_hits),
		CopiedWeightBytes: uint64(s.copied_weight_bytes),
		SlowBytes:         uint64(s.slow_bytes),
		FrameBytes:        uint64(s.frame_bytes),
		BufferAdmissions:  uint64(s.buffer_admissions),
		BufferEvictions:   uint64(s.buffer_evictions),
		BufferRefusals:    uint64(s.buffer_refusals),
		BufferLate:        uint64(s.buffer_late),
		SlowReadBytes:     uint64(s.slow_read_bytes),
		SlowReads:         uint64(s.slow_reads),
		SlowReadTime:      time.Duration(s.slow_read_ns),
		SlowWrittenBytes:  uint64(s.slow_written_bytes),
		PinningRefused:    uint64(s.pinning_refused),
		SlowStalls:        uint64(s.slow_stalls),
	}
}

// SessionStats is what a session or a KV store has done, as of the end of its last call. Sums are over its
// life; a fork starts from zero.
type SessionStats struct {
	Segments          int           // sealed
	Tokens            int           // in the session, the pending one included
	KVBytes           uint64        // held in fast memory: keys, values and index, shared segments included
	IndexBytes        uint64        // of them
	PrefillTokens     uint64        // given to Prefill and AppendText
	DecodeSteps       uint64        // of a KV store: calls of Attend
	PrefixTokens      uint64        // of PrefillTokens: taken over from other sessions
	KVBytesRead       uint64        // by decode steps: keys, values and index
	IndexBytesRead    uint64        // of them
	RetrievedTokens   uint64        // read from segments exactly; summed over steps, layers and KV heads
	EstimatedClusters uint64        // likewise
	DroppedClusters   uint64        // ranked, but neither read nor estimated; likewise
	BufferHits        uint64        // partitions found in the fast tier; likewise
	BufferMisses      uint64        // partitions that had to be brought there; likewise
	PrefillTime       time.Duration // of Prefill and AppendText
	IndexTime         time.Duration // of PrefillTime and DecodeTime: sealing segments
	DecodeTime        time.Duration // of Decode, Accept and Logits; in a batch, of the whole step
	WeightsTime       time.Duration // of DecodeTime: everything but attention, mostly products with weights
	SelectTime        time.Duration // of DecodeTime: looking up repeats, ranking clusters
	RetrieveTime      time.Duration // of DecodeTime: bringing them to the fast tier
	AttendTime        time.Duration // of DecodeTime: exact attention
	EstimateTime      time.Duration // of DecodeTime: the estimation zone

	// Share of the attention mass that was covered exactly, mean over steps, layers and heads; 1 before the
	// first step.
	EstimatedCoverage    float64
	CertifiedCoverage    float64 // a lower bound of that share
	CertifiedCoverageMin float64 // the least of these bounds over steps, layers and heads

	SlowBytes uint64 // keys and values in the slow tier, shared segments included

	// Of a slow tier that is a file, what became of BufferMisses, each of which is one of the first three.
	BufferAdmissions uint64 // found frames to stay in
	BufferRefusals   uint64 // found none that was free
	BufferLate       uint64 // were brought in by another step meanwhile
	BufferEvictions  uint64 // partitions, of whichever session, that made room for them
	BufferStalls     uint64 // lookups that waited for the slow tier; summed over steps, layers and KV heads
}

func sessionStatsOf(s *C.wi_session_stats) SessionStats {
	return SessionStats{
		Segments:             int(s.segments),
		Tokens:               int(s.tokens),
		KVBytes:              uint64(s.kv_bytes),
		IndexBytes:           uint64(s.index_bytes),
		PrefillTokens:        uint64(s.prefill_tokens),
		DecodeSteps:          uint64(s.decode_steps),
		PrefixTokens:         uint64(s.prefix_tokens),
		KVBytesRead:          uint64(s.kv_bytes_read),
		IndexBytesRead:       uint64(s.index_bytes_read),
		RetrievedTokens:      uint64(s.retrieved_tokens),
		EstimatedClusters:    uint64(s.estimated_clusters),
		DroppedClusters:      uint64(s.dropped_clusters),
		BufferHits:           uint64(s.buffer_hits),
		BufferMisses:         uint64(s.buffer_misses),
		PrefillTime:          time.Duration(s.prefill_ns),
		IndexTime:            time.Duration(s.index_ns),
		DecodeTime:           time.Duration(s.decode_ns),
		WeightsTime:          time.Duration(s.weights_ns),
		SelectTime:           time.Duration(s.select_ns),
		RetrieveTime:         time.Duration(s.retrieve_ns),
		AttendTime:           time.Duration(s.attend_ns),
		EstimateTime:         time.Duration(s.estimate_ns),
		EstimatedCoverage:    float64(s.estimated_coverage),
		CertifiedCoverage:    float64(s.certified_coverage),
		CertifiedCoverageMin: float64(s.certified_coverage_min),
		SlowBytes:            uint64(s.slow_bytes),
		BufferAdmissions:     uint64(s.buffer_admissions),
		BufferRefusals:       uint64(s.buffer_refusals),
		BufferLate:           uint64(s.buffer_late),
		BufferEvictions:      uint64(s.buffer_evictions),
		BufferStalls:         uint64(s.buffer_stalls),
	}
}

// MemoryPlan is what a session of some length would take.
type MemoryPlan struct {
	Fits         bool   // KV, index and sealing fit the budgets, and everything the memory this process may use
	WeightBytes  uint64 // if mapped, shared with other processes and taken back under pressure
	KVBytes      uint64 // keys and values of all tokens
	IndexBytes   uint64 // at most
	SealingBytes uint64 // most that is needed besides while a segment is being built
	ScratchBytes uint64 // activations, estimated; shared by the runtime's sessions that take turns
	TotalBytes   uint64 // sum of these
	MaxTokens    int    // most tokens that fit the budgets if this session has the runtime's to itself
	FastBytes    uint64 // of KV, index and sealing, what must be in fast memory where there is a slow tier
}

func memoryPlanOf(p *C.wi_memory_plan) MemoryPlan {
	return MemoryPlan{
		Fits:         p.fits != 0,
		WeightBytes:  uint64(p.weight_bytes),
		KVBytes:      uint64(p.kv_bytes),
		IndexBytes:   uint64(p.index_bytes),
		SealingBytes: uint64(p.sealing_bytes),
		ScratchBytes: uint64(p.scratch_bytes),
		TotalBytes:   uint64(p.total_bytes),
		MaxTokens:    int(p.max_tokens),
		FastBytes:    uint64(p.fast_bytes),
	}
}
