package waveinfer;

/**
 * How far a task is.
 *
 * @param state what it does
 * @param status of a failed or cancelled task: why
 * @param promptTokens 0 while a text is not tokenised yet
 * @param promptDone of them: read
 * @param answerTokens written, fetched or not
 * @param queuedNs from submission to admission; 0: not admitted yet
 * @param firstTokenNs from submission to the first token; 0: none yet
 * @param message of a failed or cancelled task: what a call would have said
 * @param nativeCode of a failed task: errno or a driver's code; 0: none
 */
public record TaskInfo(
    State state,
    Status status,
    long promptTokens,
    long promptDone,
    long answerTokens,
    long queuedNs,
    long firstTokenNs,
    String message,
    long nativeCode) {
  static TaskInfo of(wi_task_info from) {
    return new TaskInfo(
        State.of(from.getState()),
        Status.of(from.getStatus()),
        from.getPrompt_tokens(),
        from.getPrompt_done(),
        from.getAnswer_tokens(),
        from.getQueued_ns(),
        from.getFirst_token_ns(),
        from.getMessage(),
        from.getNative_code());
  }

  /** What a task does. */
  public enum State {
    /** Waits for memory. */
    QUEUED(wi_task_state.WI_TASK_QUEUED),
    /** Reads its prompt. */
    READING(wi_task_state.WI_TASK_READING),
    /** Writes its answer. */
    WRITING(wi_task_state.WI_TASK_WRITING),
    /** The answer has ended, or has its most tokens. */
    DONE(wi_task_state.WI_TASK_DONE),
    /** By {@link Task#cancel}, by a callback, or because it was closed. */
    CANCELLED(wi_task_state.WI_TASK_CANCELLED),
    /** The status and the message say why. */
    FAILED(wi_task_state.WI_TASK_FAILED),
    /** One that this version of the binding does not know. */
    UNKNOWN(-1);

    private final int value;

    State(int value) {
      this.value = value;
    }

    static State of(int value) {
      for (State state : values()) {
        if (state.value == value) return state;
      }
      return UNKNOWN;
    }

    /**
     * Whether the task has ended.
     *
     * @return true if it is done, cancelled or failed
     */
    public boolean isEnd() {
      return this != QUEUED && this != READING && this != WRITING;
    }
  }
}
