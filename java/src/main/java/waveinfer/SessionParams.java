package waveinfer;

/**
 * What a {@link Session} is made with, forked as, or loaded with. What is not set is the default;
 * when a session is loaded, as it was saved. Copied by the call.
 */
public final class SessionParams {
  private KvType kvType = KvType.F16;
  private PolicyParams policy;
  private SamplingParams sampling;
  private long kvBudgetBytes;
  private int sparseReadTokens;
  private PrefixReuse prefixReuse = PrefixReuse.AUTO;
  private float kvFastShare;

  /** All defaults. */
  public SessionParams() {}

  /**
   * Type of stored keys and values.
   *
   * @param kvType the type; when a session is loaded, {@link KvType#F16} is as saved, for it is
   *     what is there when nothing is set
   * @return this
   */
  public SessionParams kvType(KvType kvType) {
    this.kvType = kvType;
    return this;
  }

  /**
   * How the past is indexed and read.
   *
   * @param policy null: all defaults
   * @return this
   */
  public SessionParams policy(PolicyParams policy) {
    this.policy = policy;
    return this;
  }

  /**
   * How tokens are picked.
   *
   * @param sampling null: greedy; of a fork or a loaded session: the sampler goes on where it was,
   *     while one that is given is taken whole, and its random numbers start from its seed
   * @return this
   */
  public SessionParams sampling(SamplingParams sampling) {
    this.sampling = sampling;
    return this;
  }

  /**
   * Most bytes of this session's KV and index, shared segments included.
   *
   * @param kvBudgetBytes 0: only the runtime's counts; when a session is loaded, -1 says so
   * @return this
   */
  public SessionParams kvBudgetBytes(long kvBudgetBytes) {
    this.kvBudgetBytes = kvBudgetBytes;
    return this;
  }

  /**
   * Chunks of at most so many tokens, appended to a past that has segments, read it through the
   * policy as a decode step does, so that the answer to a short question starts within a few steps'
   * time.
   *
   * @param sparseReadTokens 0: every appended token attends exactly to everything before it; when a
   *     session is loaded, a negative number says so
   * @return this
   */
  public SessionParams sparseReadTokens(int sparseReadTokens) {
    this.sparseReadTokens = sparseReadTokens;
    return this;
  }

  /**
   * Whether a prompt that starts as another living session's did takes over its sealed segments.
   *
   * @param prefixReuse whether
   * @return this
   */
  public SessionParams prefixReuse(PrefixReuse prefixReuse) {
    this.prefixReuse = prefixReuse;
    return this;
  }

  /**
   * In a runtime with a slow tier, as one on a device has: the share of this session's sealed keys
   * and values that may stay in fast memory.
   *
   * @param kvFastShare in (0, 1]; 0: as much as the budgets have room for
   * @return this
   */
  public SessionParams kvFastShare(float kvFastShare) {
    this.kvFastShare = kvFastShare;
    return this;
  }

  static long write(SessionParams from, Call call) {
    if (from == null) return 0;
    wi_session_params to = call.own(new wi_session_params());
    to.setKv_type(from.kvType.value());
    to.setPolicy(PolicyParams.write(from.policy, call));
    to.setSampling(SamplingParams.write(from.sampling, call));
    to.setKv_budget_bytes(from.kvBudgetBytes);
    to.setSparse_read_tokens(from.sparseReadTokens);
    to.setPrefix_reuse(from.prefixReuse.value);
    to.setKv_fast_share(from.kvFastShare);
    return to.address();
  }

  static boolean setSampling(SessionParams from) {
    return from != null && from.sampling != null;
  }

  /** Sealed segments of other sessions that begin alike. */
  public enum PrefixReuse {
    /** Are taken over in whole chunks, which changes no bit; when a session is loaded: as saved. */
    AUTO(wi_prefix_reuse.WI_PREFIX_REUSE_AUTO),
    /** Are not taken over. */
    OFF(wi_prefix_reuse.WI_PREFIX_REUSE_OFF),
    /** Are taken over as far as there are any; logits then differ by rounding. */
    ON(wi_prefix_reuse.WI_PREFIX_REUSE_ON);

    private final int value;

    PrefixReuse(int value) {
      this.value = value;
    }
  }
}
