package waveinfer;

/**
 * A token and how likely it was.
 *
 * @param token its id, in [0, vocab)
 * @param logprob natural logarithm of its probability, as in {@link Event}
 */
public record TokenLogprob(int token, float logprob) {}
