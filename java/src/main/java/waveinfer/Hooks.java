package waveinfer;

import java.util.ArrayList;
import java.util.List;

/**
 * The logits processors that the sampler of a session may call: what its sampling was set to, and
 * while a task may yet set it anew, what that brings. They live as long as this.
 */
final class Hooks {
  private final List<LogitsHook> hooks = new ArrayList<>();

  Hooks(LogitsHook hook) {
    set(hook);
  }

  /** What a fork inherits. */
  synchronized Hooks copy() {
    Hooks copy = new Hooks(null);
    copy.hooks.addAll(hooks);
    return copy;
  }

  synchronized void set(LogitsHook hook) {
    hooks.clear();
    if (hook != null) hooks.add(hook);
  }

  synchronized void add(LogitsHook hook) {
    if (hook != null) hooks.add(hook);
  }

  /** What the newest that threw on the engine's thread did; null: nothing. */
  synchronized Throwable thrown() {
    Throwable thrown = null;
    for (LogitsHook hook : hooks) {
      if (hook.thrown() != null) thrown = hook.thrown();
    }
    return thrown;
  }
}
