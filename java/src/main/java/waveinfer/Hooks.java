package waveinfer;

import java.util.ArrayList;
import java.util.List;

/**
 * The logits processors that the sampler of a session may call: what its sampling was set to, and
 * while a task may yet set it anew, what that brings. They live as long as this.
 */
final class Hooks {
  /** What one setting of the sampling brings. */
  static final class Setting {
    private final LogitsHook hook; // null: none

    private Setting(LogitsHook hook) {
      this.hook = hook;
    }
  }

  private final List<Setting> settings = new ArrayList<>(); // in order

  Hooks(LogitsHook hook) {
    set(hook);
  }

  /** What a fork inherits. */
  synchronized Hooks copy() {
    Hooks copy = new Hooks(null);
    copy.settings.addAll(settings);
    return copy;
  }

  synchronized void set(LogitsHook hook) {
    settings.clear();
    add(hook);
  }

  /** It will be in force, or those before it go on. */
  synchronized Setting add(LogitsHook hook) {
    Setting setting = new Setting(hook);
    settings.add(setting);
    return setting;
  }

  /** It came into force: nothing of those before it is left. Later ones may be added already. */
  synchronized void settle(Setting setting) {
    int at = settings.indexOf(setting);
    if (at > 0) settings.subList(0, at).clear();
  }

  /** What the newest that threw on the engine's thread did; null: nothing. */
  synchronized Throwable thrown() {
    Throwable thrown = null;
    for (Setting setting : settings) {
      if (setting.hook != null && setting.hook.thrown() != null) thrown = setting.hook.thrown();
    }
    return thrown;
  }
}
