package waveinfer;

import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.function.Supplier;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** Events as they come, up to the one that ends the answer. */
final class EventIterator implements Iterator<Event> {
  private final Supplier<Event> next;
  private boolean ended;

  EventIterator(Supplier<Event> next) {
    this.next = next;
  }

  @Override
  public boolean hasNext() {
    return !ended;
  }

  @Override
  public Event next() {
    if (ended) throw new NoSuchElementException();
    Event event = next.get();
    ended = event.isEnd();
    return event;
  }

  static Stream<Event> stream(Iterator<Event> events) {
    int traits = Spliterator.ORDERED | Spliterator.NONNULL;
    return StreamSupport.stream(Spliterators.spliteratorUnknownSize(events, traits), false);
  }
}
