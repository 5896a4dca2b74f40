package waveinfer;

/**
 * The shape of a {@link KvStore}, which has no default. What else is not set is the default, or as
 * saved when a store is loaded. Copied by the call.
 */
public final class KvParams {
  final int layers;
  final int queryHeads;
  final int kvHeads;
  final int headDim;
  private KvType kvType = KvType.F16;
  private PolicyParams policy;
  private long kvBudgetBytes;

  /**
   * A shape, and else all defaults.
   *
   * @param layers 1 to 65536
   * @param queryHeads 1 to 65536, a multiple of {@code kvHeads} (GQA)
   * @param kvHeads 1 to 65536
   * @param headDim 8 to 65536, a multiple of 8; a token takes at most 1 GiB in all layers
   */
  public KvParams(int layers, int queryHeads, int kvHeads, int headDim) {
    this.layers = layers;
    this.queryHeads = queryHeads;
    this.kvHeads = kvHeads;
    this.headDim = headDim;
  }

  /**
   * Type of stored keys and values.
   *
   * @param kvType the type
   * @return this
   */
  public KvParams kvType(KvType kvType) {
    this.kvType = kvType;
    return this;
  }

  /**
   * How the past is indexed and read.
   *
   * @param policy null: all defaults
   * @return this
   */
  public KvParams policy(PolicyParams policy) {
    this.policy = policy;
    return this;
  }

  /**
   * Most bytes of this store's KV and index, shared segments included.
   *
   * @param kvBudgetBytes 0: only the runtime's counts; when a store is loaded, -1 says so
   * @return this
   */
  public KvParams kvBudgetBytes(long kvBudgetBytes) {
    this.kvBudgetBytes = kvBudgetBytes;
    return this;
  }

  /** Of a store that is loaded: C takes a zero as what was saved, which nobody here would know. */
  void needShape() {
    need("layers", layers);
    need("queryHeads", queryHeads);
    need("kvHeads", kvHeads);
    need("headDim", headDim);
  }

  private static void need(String name, int value) {
    if (value < 1) {
      throw new WaveInferException.Argument(0, name + " is " + value + ": the shape is needed");
    }
  }

  long write(Call call) {
    wi_kv_params to = call.own(new wi_kv_params());
    to.setLayers(layers);
    to.setQuery_heads(queryHeads);
    to.setKv_heads(kvHeads);
    to.setHead_dim(headDim);
    to.setKv_type(kvType.value());
    to.setPolicy(PolicyParams.write(policy, call));
    to.setKv_budget_bytes(kvBudgetBytes);
    return to.address();
  }
}
