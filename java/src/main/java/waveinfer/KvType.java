package waveinfer;

/** Type of stored keys and values. Scores, sums and merges are f32 with all of them. */
public enum KvType {
  /**
   * 16 bits, 11 of them significant; the default. When a session or a store is loaded: as saved.
   */
  F16(wi_kv_type.WI_KV_F16),
  /** 16 bits with the range of f32. */
  BF16(wi_kv_type.WI_KV_BF16),
  /** As computed. */
  F32(wi_kv_type.WI_KV_F32);

  private final int value;

  KvType(int value) {
    this.value = value;
  }

  int value() {
    return value;
  }
}
