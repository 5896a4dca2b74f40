package waveinfer;

/** How text becomes tokens. */
public enum TokenizeFlag {
  /** Put the beginning-of-sequence token first, if the model has one. */
  ADD_BOS(wi_tokenize_flag.WI_TOKENIZE_ADD_BOS),
  /** Text like {@code <|end|>} becomes that control token; else it is text. */
  PARSE_SPECIAL(wi_tokenize_flag.WI_TOKENIZE_PARSE_SPECIAL);

  private final int value;

  TokenizeFlag(int value) {
    this.value = value;
  }

  int value() {
    return value;
  }

  static int bits(TokenizeFlag... flags) {
    int bits = 0;
    for (TokenizeFlag flag : flags) bits |= flag.value;
    return bits;
  }
}
