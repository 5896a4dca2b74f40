package waveinfer;

/**
 * What a runtime runs on.
 *
 * @param threads of the host's, that the runtime works with
 * @param name "cpu", "cuda:0"
 * @param description the processor's or the device's own name
 * @param simd instruction set that the kernels chose, such as "AVX3" or "sm_90"
 * @param cores physical cores this process may use; a device's multiprocessors
 * @param numaNodes with at least one of them
 * @param memoryBytes this process may use: the smaller of the machine's and its control groups'
 * @param l2Bytes per core; 0: unknown
 * @param l3Bytes per group of cores; 0: unknown
 * @param policies that there are on it
 * @param usable whether a runtime can be made on it
 * @param reason why not, in words; empty if it can be used
 */
public record DeviceInfo(
    int threads,
    String name,
    String description,
    String simd,
    int cores,
    int numaNodes,
    long memoryBytes,
    long l2Bytes,
    long l3Bytes,
    int policies,
    boolean usable,
    String reason) {
  static DeviceInfo of(wi_device_info from) {
    return new DeviceInfo(
        from.getThreads(),
        from.getName(),
        from.getDescription(),
        from.getSimd(),
        from.getCores(),
        from.getNuma_nodes(),
        from.getMemory_bytes(),
        from.getL2_bytes(),
        from.getL3_bytes(),
        from.getPolicies(),
        from.getUsable() != 0,
        from.getReason());
  }
}
