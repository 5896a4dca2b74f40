package waveinfer;

import java.util.ArrayList;
import java.util.List;

/** One step of many sessions. */
final class Batch {
  private Batch() {}

  static List<Event> decode(List<Session> sessions, CancelToken cancel) {
    int count = sessions.size();
    long size = wi_event.struct_bytes();
    try (Call call = Call.cancellable(cancel)) {
      long handles = call.allocate(8L * count);
      long events = call.allocate(size * count);
      for (int i = 0; i < count; i++) {
        call.buffer(handles, 8L * count).putLong(8 * i, enter(call, sessions, i));
        at(events, i).setStruct_size((int) size);
      }
      call.check(Native.wi_batch_decode(handles, count, call.cancel(), events, call.error()));
      List<Event> out = new ArrayList<>(count);
      for (int i = 0; i < count; i++) out.add(Event.of(at(events, i)));
      return out;
    }
  }

  private static wi_event at(long events, int i) {
    return new wi_event(events + i * wi_event.struct_bytes(), false);
  }

  /** A session that is there twice is the library's to refuse. */
  private static long enter(Call call, List<Session> sessions, int i) {
    Session session = sessions.get(i);
    for (int before = 0; before < i; before++) {
      if (sessions.get(before).taken() == session.taken()) return call.use(session);
    }
    try {
      return call.alone(session);
    } catch (WaveInferException.Busy e) {
      throw new WaveInferException.Busy(0, "sessions[" + i + "]: " + e.getMessage());
    }
  }
}
