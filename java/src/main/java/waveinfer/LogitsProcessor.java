package waveinfer;

/**
 * Changes the logits that a token is about to be sampled from: after the logit bias, before penalty
 * and temperature. It runs on the thread that decodes, or on the engine's thread in a task, and
 * belongs to the session and to forks that inherit it until their sampling is set anew. A saved
 * session does not have it.
 */
@FunctionalInterface
public interface LogitsProcessor {
  /**
   * Changes the logits in place. It may be called again for the same token if the call fails after
   * it. What this throws ends the call and is thrown by it; in a task, by the task's last poll.
   * There it ends every task that has the processor, as forks have it that inherit it; a task with
   * sampling of its own has one of its own.
   *
   * @param logits (vocab), of use during the call of this method only
   */
  void process(Logits logits);
}
