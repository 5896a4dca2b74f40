package waveinfer;

/** How much a runtime logs. */
public enum LogLevel {
  /** As a parameter: the default, {@link #WARNING}. */
  NONE(wi_log_level.WI_LOG_NONE),
  /** What went wrong. */
  ERROR(wi_log_level.WI_LOG_ERROR),
  /** What goes on, but not as it should. */
  WARNING(wi_log_level.WI_LOG_WARNING),
  /** What is done. */
  INFO(wi_log_level.WI_LOG_INFO),
  /** How it is done; also a line of a level that this binding does not know. */
  DEBUG(wi_log_level.WI_LOG_DEBUG);

  private final int value;

  LogLevel(int value) {
    this.value = value;
  }

  int value() {
    return value;
  }

  static LogLevel of(int value) {
    for (LogLevel level : values()) {
      if (level.value == value) return level;
    }
    return DEBUG;
  }
}
