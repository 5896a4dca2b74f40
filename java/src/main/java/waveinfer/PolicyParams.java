package waveinfer;

/**
 * How the past is indexed and what a query reads of it. What is not set is the default, or as saved
 * when a session is loaded; ranges are those of wi_policy_params in the C header.
 */
public final class PolicyParams {
  private String name;
  private int segmentTokens;
  private int decodeSegmentTokens;
  private int tokensPerCentroid;
  private int kmeansIterations;
  private int localWindow;
  private float budget;
  private float estimation;
  private float targetMass;
  private float budgetFloor;
  private float budgetCeiling;
  private int repeats;

  /** All defaults. */
  public PolicyParams() {}

  /**
   * The policy.
   *
   * @param name "wave", "full", "streaming" or "blocks"; null: "wave". {@link WaveRuntime#policies}
   *     lists them; others are {@link WaveInferException.Unsupported}
   * @return this
   */
  public PolicyParams name(String name) {
    this.name = name;
    return this;
  }

  /**
   * Tokens of the longest segments.
   *
   * @param segmentTokens a multiple of 64 in [64, 1048576]; 0: 8192
   * @return this
   */
  public PolicyParams segmentTokens(int segmentTokens) {
    this.segmentTokens = segmentTokens;
    return this;
  }

  /**
   * Tokens of the shortest segments, and of those that are sealed while decoding.
   *
   * @param decodeSegmentTokens a multiple of 64 in [64, 1048576]; 0: 256
   * @return this
   */
  public PolicyParams decodeSegmentTokens(int decodeSegmentTokens) {
    this.decodeSegmentTokens = decodeSegmentTokens;
    return this;
  }

  /**
   * Mean cluster size; much larger clusters are split.
   *
   * @param tokensPerCentroid 1 to 1024; 0: 16
   * @return this
   */
  public PolicyParams tokensPerCentroid(int tokensPerCentroid) {
    this.tokensPerCentroid = tokensPerCentroid;
    return this;
  }

  /**
   * Iterations of spherical k-means.
   *
   * @param kmeansIterations 1 to 100; 0: 10
   * @return this
   */
  public PolicyParams kmeansIterations(int kmeansIterations) {
    this.kmeansIterations = kmeansIterations;
    return this;
  }

  /**
   * Most recent tokens that are never sealed.
   *
   * @param localWindow at most 1048576; 0: 64; negative: none
   * @return this
   */
  public PolicyParams localWindow(int localWindow) {
    this.localWindow = localWindow;
    return this;
  }

  /**
   * Share of the indexed tokens that is read exactly.
   *
   * @param budget in (0, 1], 1: all; 0: 0.018
   * @return this
   */
  public PolicyParams budget(float budget) {
    this.budget = budget;
    return this;
  }

  /**
   * Share of the clusters that is estimated.
   *
   * @param estimation at most 1, all that are not read; 0: 0.232; negative: none
   * @return this
   */
  public PolicyParams estimation(float estimation) {
    this.estimation = estimation;
    return this;
  }

  /**
   * Instead of a fixed budget: read clusters until the estimated share of attention mass that is
   * covered exactly reaches this.
   *
   * @param targetMass in [0, 1), or negative; 0: fixed budget, or as saved when a session is
   *     loaded; negative: fixed budget, whatever was saved
   * @return this
   */
  public PolicyParams targetMass(float targetMass) {
    this.targetMass = targetMass;
    return this;
  }

  /**
   * With a target mass, at least this share.
   *
   * @param budgetFloor in (0, ceiling]; 0: budget / 8
   * @return this
   */
  public PolicyParams budgetFloor(float budgetFloor) {
    this.budgetFloor = budgetFloor;
    return this;
  }

  /**
   * With a target mass, at most this share.
   *
   * @param budgetCeiling in (0, 1]; 0: budget * 4, at most 1
   * @return this
   */
  public PolicyParams budgetCeiling(float budgetCeiling) {
    this.budgetCeiling = budgetCeiling;
    return this;
  }

  /**
   * Under "wave": so many places where the newest tokens stood before are read on from, whatever
   * their rank.
   *
   * @param repeats at most 8; 0: 2; negative: none
   * @return this
   */
  public PolicyParams repeats(int repeats) {
    this.repeats = repeats;
    return this;
  }

  static long write(PolicyParams from, Call call) {
    if (from == null) return 0;
    wi_policy_params to = call.own(new wi_policy_params());
    to.setName(call.name(from.name));
    to.setSegment_tokens(from.segmentTokens);
    to.setDecode_segment_tokens(from.decodeSegmentTokens);
    to.setTokens_per_centroid(from.tokensPerCentroid);
    to.setKmeans_iterations(from.kmeansIterations);
    to.setLocal_window(from.localWindow);
    to.setBudget(from.budget);
    to.setEstimation(from.estimation);
    to.setTarget_mass(from.targetMass);
    to.setBudget_floor(from.budgetFloor);
    to.setBudget_ceiling(from.budgetCeiling);
    to.setRepeats(from.repeats);
    return to.address();
  }
}
