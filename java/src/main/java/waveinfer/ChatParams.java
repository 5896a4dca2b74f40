package waveinfer;

import java.time.Instant;

/** How a conversation is rendered. What is not set is the default. Copied by the call. */
public final class ChatParams {
  private boolean addGenerationPrompt;
  private String toolsJson;
  private String variablesJson;
  private Instant now;

  /** All defaults. */
  public ChatParams() {}

  /**
   * Whether to end with the opening of the assistant's answer.
   *
   * @param addGenerationPrompt true to do so
   * @return this
   */
  public ChatParams addGenerationPrompt(boolean addGenerationPrompt) {
    this.addGenerationPrompt = addGenerationPrompt;
    return this;
  }

  /**
   * Function schemas that the template is given.
   *
   * @param toolsJson a JSON array; null: no tools
   * @return this
   */
  public ChatParams toolsJson(String toolsJson) {
    this.toolsJson = toolsJson;
    return this;
  }

  /**
   * What the template asks for by name, over {@code bos_token} and the like; must not name
   * messages, tools or add_generation_prompt.
   *
   * @param variablesJson a JSON object such as {@code {"enable_thinking": false}}; null: nothing
   * @return this
   */
  public ChatParams variablesJson(String variablesJson) {
    this.variablesJson = variablesJson;
    return this;
  }

  /**
   * The time for templates that print a date.
   *
   * @param now null: the clock's
   * @return this
   */
  public ChatParams now(Instant now) {
    this.now = now;
    return this;
  }

  static long write(ChatParams from, Call call) {
    if (from == null) return 0;
    wi_chat_params to = call.own(new wi_chat_params());
    to.setFlags(from.addGenerationPrompt ? wi_chat_flag.WI_CHAT_ADD_GENERATION_PROMPT : 0);
    to.setTools_json(call.name(from.toolsJson));
    to.setVariables_json(call.name(from.variablesJson));
    to.setNow(from.now == null ? 0 : from.now.getEpochSecond());
    return to.address();
  }
}
